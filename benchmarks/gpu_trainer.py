"""``python -m benchmarks.gpu_trainer SPEC``: trains a ResNet on an accelerator from one loader, and tells how
long the accelerator had nothing to do; prints one line of JSON.

Time is taken on the device, by an event before and after each step of the stream that computes: the gap
between two steps is what the next batch was waited for, copies that are not overlapped included. The host may
run two steps ahead, as a loop does that looks at its losses now and then. On a CPU the same code runs, to see
that it works. Which loaders and models are compared is :mod:`benchmarks.gpu`'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.child import run_child
from benchmarks.contenders import CONTENDERS
from benchmarks.cpu_clock import children_cpu_s, process_cpu_s
from benchmarks.loading import Contender, Loading, Opened
from benchmarks.resnet import RESNETS, small_resnet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

__all__ = ["SYNTHETIC", "TINY", "GpuResult", "GpuSpec", "run_gpu_trainer"]

SYNTHETIC = "synthetic"
"""One batch that lies on the device, again and again: what the device itself can do."""

TINY = "tiny"
"""A model for seeing that this works."""

_CLASSES = 1000
_AHEAD = 2
_WARMING_STEPS = 10
_COPIES = 20
_SAMPLE_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Which loader and model, and how long. ``images`` are those of an epoch."""

    contender: str
    loading: Loading
    model: str
    cores: list[int]
    epochs: int
    images: int


@dataclass(frozen=True, slots=True)
class GpuResult:
    """What the epochs after the first one gave.

    ``busy_s`` is the time in which the device had a step under way, ``waiting_s`` the gaps between steps.
    ``supply_s`` is what one epoch takes without training, ``first_epoch_s`` the first one with it.
    ``copy_ms`` is one batch's way to the device, alone. ``nvml_percent`` is the driver's figure, if it can be
    asked.
    """

    images: int
    steps: int
    wall_s: float
    busy_s: float
    waiting_s: float
    first_epoch_s: float
    supply_s: float
    copy_ms: float
    trainer_cpu_s: float
    nvml_percent: float | None


def run_gpu_trainer(spec: GpuSpec) -> GpuResult:
    """Train in a fresh process.

    Raises:
        BenchmarkError: it failed; the message has what it said.

    """
    printed = run_child("gpu_trainer", [json.dumps(asdict(spec))], name=f"{spec.contender}, {spec.model}")
    return GpuResult(**json.loads(printed))


class _HostMark:
    """What a CUDA event does, by the host's clock: for a device that computes while the host waits."""

    def record(self) -> None:
        self._s = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is under way."""

    def elapsed_time(self, end: _HostMark) -> float:
        """Milliseconds."""
        return 1e3 * (end._s - self._s)


class _Trainer:
    """A model in bf16 and channels_last, and marks around its steps."""

    def __init__(self, spec: GpuSpec) -> None:
        self.device = torch.device(spec.loading.device)
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        made = small_resnet(_CLASSES, 4) if spec.model == TINY else RESNETS[spec.model](_CLASSES)
        model: nn.Module = made.to(self.device)
        self._model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self.steps: list[tuple[Any, Any]] = []
        self.images = 0

    def mark(self) -> Any:
        """A moment of the stream that computes."""
        event: Any = torch.cuda.Event
        mark = event(enable_timing=True) if self.device.type == "cuda" else _HostMark()
        mark.record()
        return mark

    def synchronize(self) -> None:
        """Wait for all that is under way."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def moved(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The batch on the device; as it is if a loader has brought it there."""
        images, labels = batch
        return images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Train on one batch, once no more than the steps before the last ones are under way."""
        if len(self.steps) >= _AHEAD:
            self.steps[-_AHEAD][1].synchronize()
        images, labels = self.moved(batch)
        began = self.mark()
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = cross_entropy(self._model(images), labels)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self._optimiser.step()
        self.steps.append((began, self.mark()))
        self.images += len(labels)

    def forget(self) -> None:
        """Begin to count anew, from a step of no length that ends now."""
        now = self.mark()
        self.steps = [(now, now)]
        self.images = 0


def _measure(spec: GpuSpec) -> GpuResult:
    os.sched_setaffinity(0, spec.cores)
    torch.set_num_threads(len(spec.cores))
    trainer = _Trainer(spec)
    blank = _blank(spec.loading, trainer)
    for _ in range(_WARMING_STEPS):  # kernels are chosen, memory is taken
        trainer.step(blank)
    contender = _open(spec, blank)
    try:
        first_epoch_s = _seconds(trainer, contender, steps=True)
        trainer.forget()
        cpu_s = process_cpu_s(os.getpid()) + children_cpu_s()
        with _busy_sampled(trainer.device) as percents:
            wall_s = sum(_seconds(trainer, contender, steps=True) for _ in range(spec.epochs))
        cpu_s = process_cpu_s(os.getpid()) + children_cpu_s() - cpu_s
        supply_s = _seconds(trainer, contender, steps=False)
    finally:
        contender.close()
    return GpuResult(
        images=trainer.images,
        steps=len(trainer.steps) - 1,
        wall_s=wall_s,
        busy_s=sum(began.elapsed_time(ended) for began, ended in trainer.steps) / 1e3,
        waiting_s=sum(one[1].elapsed_time(next_one[0]) for one, next_one in pairwise(trainer.steps)) / 1e3,
        first_epoch_s=first_epoch_s,
        supply_s=supply_s,
        copy_ms=_copy_ms(spec.loading, trainer),
        trainer_cpu_s=cpu_s,
        nvml_percent=sum(percents) / len(percents) if percents else None,
    )


def _open(spec: GpuSpec, blank: tuple[Tensor, Tensor]) -> Contender:
    if spec.contender == SYNTHETIC:
        steps = -(-spec.images // spec.loading.batch_size)
        return Opened([blank] * steps)
    return CONTENDERS[spec.contender].open(spec.loading)


def _blank(loading: Loading, trainer: _Trainer) -> tuple[Tensor, Tensor]:
    shape = (loading.batch_size, loading.crop, loading.crop, 3)
    images = torch.zeros(shape, dtype=torch.uint8).permute(0, 3, 1, 2)
    return trainer.moved((images, torch.zeros(loading.batch_size, dtype=torch.int64)))


def _seconds(trainer: _Trainer, batches: Iterable[tuple[Tensor, Tensor]], *, steps: bool) -> float:
    """Of one epoch, with training or without."""
    began_s = time.perf_counter()
    for batch in batches:
        if steps:
            trainer.step(batch)
        else:
            trainer.moved(batch)
    trainer.synchronize()
    return time.perf_counter() - began_s


def _copy_ms(loading: Loading, trainer: _Trainer) -> float:
    """One batch from page-locked memory to the device, with nothing else under way."""
    batch = torch.zeros((loading.batch_size, 3, loading.crop, loading.crop), dtype=torch.uint8)
    if trainer.device.type == "cuda":
        batch = batch.pin_memory()
    trainer.synchronize()
    began = trainer.mark()
    for _ in range(_COPIES):
        batch.to(trainer.device, non_blocking=True)
    ended = trainer.mark()
    trainer.synchronize()
    return float(began.elapsed_time(ended)) / _COPIES


@contextlib.contextmanager
def _busy_sampled(device: torch.device) -> Iterator[list[float]]:
    """The driver's figure, ten times a second; none where there is no GPU or nvidia-ml-py."""
    percents: list[float] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(_SAMPLE_EVERY_S):
            percents.append(torch.cuda.utilization(device))

    if not _can_be_asked(device):
        yield percents
        return
    thread = threading.Thread(target=sample, name="gpu-busy", daemon=True)
    thread.start()
    try:
        yield percents
    finally:
        done.set()
        thread.join()


def _can_be_asked(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    try:
        torch.cuda.utilization(device)
    except (ModuleNotFoundError, RuntimeError):  # no nvidia-ml-py, or a driver that does not tell
        return False
    return True


def _parse(text: str) -> GpuSpec:
    fields = json.loads(text)
    return GpuSpec(**{**fields, "loading": Loading(**fields["loading"])})


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(_parse(sys.argv[1])))))
