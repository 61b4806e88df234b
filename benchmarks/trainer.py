"""A trainer of ``superdl bench train``: its step, a small network, and what it costs alone.

Time is taken where the model computes: on a GPU by an event before and after each step, on a CPU by the
host's clock. What lies between steps is what batches were waited for, copies that do not overlap included. On
a GPU the host may run two steps ahead, as a loop does that looks at its losses now and then.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.loading import Pairs
from benchmarks.processes import seconds_each
from superdl.experiments.models import NormalisedNetwork, build_model, declare_operators
from superdl.experiments.training.device import ComputeSpan, synchronise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.image_sets import Loading

__all__ = ["MODELS", "SMALL", "Alone", "Trainer", "TrainerSpec", "costs_alone", "warmed"]

SMALL = "small_resnet"
MODELS = (SMALL, "resnet18", "resnet50")

_AHEAD = 2
_CLASSES = 1000
_SMALL_CLASSES = 100  # what image sets have at most, and any network here at least
_WARMING_STEPS = {"cpu": 2, "cuda": 10}  # the first steps of a process choose and compile kernels
_ALONE_IMAGES = 64


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """What trains on which batches.

    ``cores`` are the processors that it and its workers may use; ``width`` is the small network's.
    """

    loading: Loading
    model: str
    width: int
    cores: Sequence[int]


class Trainer:
    """A model in channels_last with its optimiser, and marks around its steps.

    The process keeps to its cores. On a CPU torch has one thread and computes in float32, and each loss is
    kept; on a GPU autocast computes in bf16.
    """

    def __init__(self, spec: TrainerSpec) -> None:
        self._device = device = torch.device(spec.loading.device)
        self._on_gpu = device.type == "cuda"
        os.sched_setaffinity(0, spec.cores)
        torch.set_num_threads(len(spec.cores) if self._on_gpu else 1)
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        model = (
            small_resnet(_SMALL_CLASSES, spec.width)
            if spec.model == SMALL
            else build_model(spec.model, _CLASSES, device)
        )
        self._model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        rate, momentum = (0.01, 0.9) if self._on_gpu else (0.05, 0.0)
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=rate, momentum=momentum)
        self._steps: list[ComputeSpan] = []
        self._losses: list[float] = []

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Train on one batch, once no more than the steps before the last ones are under way."""
        if len(self._steps) >= _AHEAD:
            self._steps[-_AHEAD].wait()
        images, labels = (part.to(self._device, non_blocking=True) for part in batch)
        with ComputeSpan(self._device) as span:
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._on_gpu):
                loss = cross_entropy(self._model(images), labels)
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            self._optimiser.step()
            if not self._on_gpu:
                self._losses.append(loss.item())
        self._steps.append(span)

    def synchronise(self) -> None:
        """Wait for the last step."""
        synchronise(self._device)

    def figures(self, wall_s: float) -> dict[str, Any]:
        """What the steps since the last call came to, which took so long with all that lies between them."""
        steps, losses = self._steps, self._losses
        self._steps, self._losses = [], []
        busy_s = sum(span.seconds for span in steps)
        return {"steps": len(steps), "wait_s": wall_s - busy_s, "losses": losses}

    def clock_s(self) -> float:
        """CPU seconds of this process, or of a GPU the time at which all steps are done."""
        self.synchronise()
        return time.perf_counter() if self._on_gpu else time.process_time()


def warmed(spec: TrainerSpec) -> Trainer:
    """A fresh trainer, in a process that has trained another."""
    first = Trainer(spec)
    for _ in range(_WARMING_STEPS[spec.loading.device]):
        first.step(_random_batch(spec.loading))
    return Trainer(spec)


def _random_batch(loading: Loading) -> tuple[Tensor, Tensor]:
    size, side = loading.batch_size, loading.crop
    images = torch.randint(0, 256, (size, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    return images, torch.randint(0, _SMALL_CLASSES, (size,))


@dataclass(frozen=True, slots=True)
class Alone:
    """What an image costs in the trainer's own process, in ms: CPU to decode with Pillow, and to train on."""

    decode_ms_per_image: float
    compute_ms_per_image: float

    @property
    def decode_to_compute(self) -> float:
        """The ratio that decides what splitting can gain."""
        return self.decode_ms_per_image / self.compute_ms_per_image

    def gain_bound(self, plain_ms_per_image: float, beside_ms_per_image: float) -> float:
        """How many times faster than ``plain_ms_per_image`` a step can be: neither the trainer's computing
        nor what functions and services do for an image can take less.
        """
        return plain_ms_per_image / max(self.compute_ms_per_image, beside_ms_per_image)


def costs_alone(spec: TrainerSpec) -> Alone:
    """Measure both in this process, which is fresh, with nothing else done. A GPU computes by its clock."""
    trainer, pairs = warmed(spec), Pairs(spec.loading)
    some = range(min(len(pairs), _ALONE_IMAGES))
    decode_s = seconds_each(lambda: [pairs[index] for index in some], time.process_time)
    batch = tuple(part.to(spec.loading.device) for part in _random_batch(spec.loading))
    compute_s = seconds_each(lambda: trainer.step((batch[0], batch[1])), trainer.clock_s)
    return Alone(1e3 * decode_s / len(some), 1e3 * compute_s / spec.loading.batch_size)


def small_resnet(classes: int, width: int) -> nn.Module:
    """A ResNet with one block in each stage, on images made small at once: a millisecond or so an image.

    It takes uint8 images. ``width`` is the number of channels of the first stage.
    """
    declare_operators()
    from torchvision.models.resnet import BasicBlock

    layers: list[nn.Module] = [
        nn.Conv2d(3, width, kernel_size=7, stride=4, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        BasicBlock(width, width),
    ]
    for before, after in pairwise(width * 2**stage for stage in range(4)):
        halved = nn.Conv2d(before, after, kernel_size=1, stride=2, bias=False)
        layers.append(BasicBlock(before, after, 2, nn.Sequential(halved, nn.BatchNorm2d(after))))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes)]
    return NormalisedNetwork(nn.Sequential(*layers), None)
