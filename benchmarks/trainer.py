"""A trainer of ``superdl bench train``: its step, a small network, and what it costs alone, on one core.

What lies between steps is time in which batches were waited for.
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
from superdl.experiments.models import NormalisedNetwork, declare_operators

if TYPE_CHECKING:
    from benchmarks.image_sets import Loading

__all__ = ["Alone", "Trainer", "TrainerSpec", "costs_alone", "warmed"]

_CLASSES = 100  # what image sets have at most
_WARMING_STEPS = 2  # the first steps of a process choose kernels
_ALONE_IMAGES = 64


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """What trains on which batches.

    ``core`` is the processor that it and its workers use; ``width`` is the network's.
    """

    loading: Loading
    width: int
    core: int


class Trainer:
    """A small ResNet in channels_last with its optimiser, float32 in one torch thread; keeps each loss."""

    def __init__(self, spec: TrainerSpec) -> None:
        os.sched_setaffinity(0, {spec.core})
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._model = small_resnet(_CLASSES, spec.width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=0.05)
        self._busy_s = 0.0
        self._losses: list[float] = []

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Train on one batch."""
        began_s = time.perf_counter()
        images, labels = batch
        loss = cross_entropy(self._model(images), labels)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self._optimiser.step()
        self._losses.append(loss.item())
        self._busy_s += time.perf_counter() - began_s

    def figures(self, wall_s: float) -> dict[str, Any]:
        """Steps since the last call, their losses, and what is left of ``wall_s`` beside them."""
        losses, busy_s = self._losses, self._busy_s
        self._losses, self._busy_s = [], 0.0
        return {"steps": len(losses), "wait_s": wall_s - busy_s, "losses": losses}


def warmed(spec: TrainerSpec) -> Trainer:
    """A fresh trainer, in a process that has trained another."""
    first = Trainer(spec)
    for _ in range(_WARMING_STEPS):
        first.step(_random_batch(spec.loading))
    return Trainer(spec)


def _random_batch(loading: Loading) -> tuple[Tensor, Tensor]:
    size, side = loading.batch_size, loading.crop
    images = torch.randint(0, 256, (size, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    return images, torch.randint(0, _CLASSES, (size,))


@dataclass(frozen=True, slots=True)
class Alone:
    """CPU time of an image in the trainer's own process, in ms: to decode with Pillow, and to train on."""

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
    """Measure both in this process, which is fresh, with nothing else done."""
    trainer, pairs = warmed(spec), Pairs(spec.loading)
    some = range(min(len(pairs), _ALONE_IMAGES))
    decode_s = seconds_each(lambda: [pairs[index] for index in some], time.process_time)
    batch = _random_batch(spec.loading)
    compute_s = seconds_each(lambda: trainer.step(batch), time.process_time)
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
