"""A trainer of ``superdl bench train``: its loop, a small network, and what it measures in its own process.

Time is taken where the model computes: on a GPU by an event before and after each step, on a CPU by the
host's clock. What lies between steps is what batches were waited for, copies that do not overlap included. On
a GPU the host may run two steps ahead, as a loop does that looks at its losses now and then.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.arm import Spent, checksum
from benchmarks.contenders import CONTENDERS, PILLOW
from benchmarks.image_sets import Loading  # noqa: TC001  # read where a spec is made from JSON
from benchmarks.loading import Pairs, open_in_planned_order
from benchmarks.processes import ALONE_S, Pids, cpu_s_each
from superdl.experiments.models import build_model
from superdl.experiments.training.device import ComputeSpan, synchronise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.loading import Contender

__all__ = ["MODELS", "SMALL", "EpochResult", "TrainResult", "TrainSpec", "Trainer", "train_on_cores"]

SMALL = "small_resnet"
MODELS = (SMALL, "resnet18", "resnet50")

_AHEAD = 2
_CLASSES = 1000
_SMALL_CLASSES = 100  # what image sets have at most, and any network here at least
_WARMING_STEPS = 2  # the first steps of a process choose and compile kernels
_GPU_WARMING_STEPS = 10  # and take memory


class Trainer:
    """A model in channels_last with its optimiser, and marks around its steps.

    On a CPU torch has one thread and computes in float32, and each loss is kept; on a GPU autocast
    computes in bf16.

    Args:
        network: what is trained; the same from the same seed.
        device: where.
        cores: processors that this process and its workers may use, from now on.

    """

    def __init__(self, network: Callable[[], nn.Module], device: torch.device, cores: Sequence[int]) -> None:
        on_gpu = device.type == "cuda"
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(len(cores) if on_gpu else 1)
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self.device = device
        model: nn.Module = network().to(device)
        self._model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        rate, momentum = (0.01, 0.9) if on_gpu else (0.05, 0.0)
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=rate, momentum=momentum)
        self._precision = torch.bfloat16 if on_gpu else None
        self.steps: list[ComputeSpan] = []
        self.losses: list[float] = []
        self.images = 0

    def moved(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The batch on the device; as it is if a loader has brought it there."""
        images, labels = batch
        return images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Train on one batch, once no more than the steps before the last ones are under way."""
        if len(self.steps) >= _AHEAD:
            self.steps[-_AHEAD].wait()
        images, labels = self.moved(batch)
        with ComputeSpan(self.device) as span:
            with torch.autocast(self.device.type, self._precision, enabled=self._precision is not None):
                loss = cross_entropy(self._model(images), labels)
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            self._optimiser.step()
            if self._precision is None:
                self.losses.append(loss.item())
        self.steps.append(span)
        self.images += len(labels)

    def start_counting(self) -> None:
        """Forget what was counted."""
        self.steps = []
        self.losses = []
        self.images = 0

    def busy_s(self) -> float:
        """Seconds with a step under way."""
        return sum(span.seconds for span in self.steps)

    def blank(self, loading: Loading) -> tuple[Tensor, Tensor]:
        """A batch of black images, on the device."""
        shape = (loading.batch_size, loading.crop, loading.crop, 3)
        images = torch.zeros(shape, dtype=torch.uint8).permute(0, 3, 1, 2)
        return self.moved((images, torch.zeros(loading.batch_size, dtype=torch.int64)))

    def epoch(self, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
        """Seconds of one epoch."""
        began_s = time.perf_counter()
        for batch in batches:
            self.step(batch)
        synchronise(self.device)
        return time.perf_counter() - began_s

    def compute_ms(self, loading: Loading) -> float:
        """Milliseconds of training on an image, with nothing else done: of a CPU's time, of a GPU's clock."""
        size, side = loading.batch_size, loading.crop
        images = torch.randint(0, 256, (size, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        batch = self.moved((images, torch.randint(0, _SMALL_CLASSES, (size,))))
        if self.device.type == "cpu":
            return 1e3 * cpu_s_each(lambda: self.step(batch)) / size
        synchronise(self.device)
        self.start_counting()
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < ALONE_S:
            self.step(batch)
        synchronise(self.device)
        return 1e3 * (time.perf_counter() - began_s) / self.images


def _decode_ms(loading: Loading) -> float:
    """CPU milliseconds of Pillow's way from file to pixels, with nothing else done."""
    pairs = Pairs(loading)
    some = range(min(len(pairs), 64))
    return 1e3 * cpu_s_each(lambda: [pairs[index] for index in some]) / len(some)


# ------------------------------------------------------------------------------------ a trainer of its own


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """What one trainer does.

    ``cores`` are the processors that it and its workers may use; ``width`` is the small network's; ``alone``
    asks for the cost of decoding and of computing, each by itself; ``pids`` are whose CPU is read beside.
    """

    contender: str
    loading: Loading
    cores: list[int]
    model: str
    width: int
    epochs: int
    alone: bool
    pids: Pids = field(default_factory=Pids)


@dataclass(frozen=True, slots=True)
class EpochResult:
    """One epoch: its wall clock, of it the time without a batch, and the CPU beside; in seconds."""

    steps: int
    images: int
    wall_s: float
    wait_s: float
    functions_cpu_s: float
    services_cpu_s: float
    produced: int
    losses: list[float]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """All epochs; the checksum of one epoch more; milliseconds per image of decoding and computing alone."""

    epochs: list[EpochResult]
    checksum: int
    decode_ms_per_image: float | None
    compute_ms_per_image: float | None


def train_on_cores(spec: TrainSpec) -> TrainResult:
    """Train in this process, which is fresh."""
    device = torch.device(spec.loading.device)

    def network() -> nn.Module:
        if spec.model == SMALL:
            return SmallResNet(_SMALL_CLASSES, spec.width)
        return build_model(spec.model, _CLASSES, device)

    warming, trainer = (Trainer(network, device, spec.cores) for _ in range(2))
    blank = warming.blank(spec.loading)
    for _ in range(_GPU_WARMING_STEPS if device.type == "cuda" else _WARMING_STEPS):
        warming.step(blank)
    spent = Spent(spec.pids)
    contender = (
        open_in_planned_order(spec.loading)
        if spec.contender == PILLOW
        else CONTENDERS[spec.contender].open(spec.loading)
    )
    try:
        epochs = [_epoch(contender, trainer, spent) for _ in range(spec.epochs)]
        seen = sum(checksum(*trainer.moved(batch)) for batch in contender)
    finally:
        contender.close()
    if not spec.alone:
        return TrainResult(epochs, seen, None, None)
    return TrainResult(epochs, seen, _decode_ms(spec.loading), warming.compute_ms(spec.loading))


def _epoch(contender: Contender, trainer: Trainer, spent: Spent) -> EpochResult:
    trainer.start_counting()
    wall_s = trainer.epoch(contender)
    used = spent.read(contender)
    return EpochResult(
        steps=len(trainer.steps),
        images=trainer.images,
        wall_s=wall_s,
        wait_s=wall_s - trainer.busy_s(),
        functions_cpu_s=used["functions_cpu_s"],
        services_cpu_s=used["coordinator_cpu_s"] + used["cache_cpu_s"],
        produced=used["produced"],
        losses=trainer.losses,
    )


# ------------------------------------------------------------------------------------------- network


class SmallResNet(nn.Module):
    """A ResNet with one block in each stage, on images made small at once: a millisecond or so an image.

    Takes uint8 of shape (batch, 3, height, width), gives logits of shape (batch, classes). ``width`` is the
    number of channels of the first stage.
    """

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=7, stride=4, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        widths = [width * 2**stage for stage in range(4)]
        self.stages = nn.Sequential(*(_Residual(*one) for one in pairwise([width, *widths])))
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits. Grey levels become about [-2, 2], in the type of the weights unless autocast rules."""
        centred = images.to(self.classifier.weight.dtype).sub_(127.5).div_(64.0)
        logits: Tensor = self.classifier(self.stages(self.stem(centred)).mean(dim=(2, 3)))
        return logits


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; the image is halved where the number of channels changes."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        stride = 1 if channels == channels_in else 2
        self.body = nn.Sequential(
            _convolution(channels_in, channels, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(channels, channels, 3, 1),
        )
        same = channels == channels_in
        self.shortcut = nn.Identity() if same else _convolution(channels_in, channels, 1, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.body(inputs) + self.shortcut(inputs))


def _convolution(channels_in: int, channels_out: int, size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, size, stride=stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(channels_out),
    )
