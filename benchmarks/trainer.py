"""``python -m benchmarks.trainer SPEC``: trains a small network on one core and tells how long steps took.

The process holds itself, and with it the loader's workers, to the cores that it is given. Which loaders are
compared, and where functions and services run, is :mod:`benchmarks.train`'s.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from benchmarks.arm import checksum
from benchmarks.child import run_child
from benchmarks.contenders import CONTENDERS, PILLOW
from benchmarks.cpu_clock import descendants_cpu_s, process_cpu_s
from benchmarks.loading import Contender, Loading, Opened
from benchmarks.plain_loaders import Pairs, collate
from benchmarks.planned_order import PlannedOrder
from benchmarks.resnet import small_resnet

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

__all__ = ["EpochResult", "TrainResult", "TrainSpec", "run_trainer"]

_CLASSES = 10
_LEARNING_RATE = 0.05
_ALONE_S = 2.0
"""How long decoding and computing are measured alone."""
_WARMING_STEPS = 2


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """What one trainer does.

    ``cores`` are the processors that it and its workers may use; ``width`` is the network's; ``alone`` asks
    for the cost of decoding and of computing, each by itself. Process ids are 0 where no services run.
    """

    contender: str
    loading: Loading
    cores: list[int]
    width: int
    epochs: int
    alone: bool
    cache_pid: int = 0
    coordinator_pid: int = 0


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


def run_trainer(spec: TrainSpec) -> TrainResult:
    """Train in a fresh process.

    Raises:
        BenchmarkError: it failed; the message has what it said.

    """
    printed = run_child("trainer", [json.dumps(asdict(spec))], name=f"training with {spec.contender}")
    fields = json.loads(printed)
    return TrainResult(**{**fields, "epochs": [EpochResult(**epoch) for epoch in fields["epochs"]]})


class _Training:
    """A network, its optimiser, and one step of it. The same from the same seed."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        model: nn.Module = small_resnet(_CLASSES, width)
        self._model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=_LEARNING_RATE)

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Train on one batch; its loss."""
        self._optimiser.zero_grad()
        loss = cross_entropy(self._model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self._optimiser.step()
        return loss.item()


def _train(spec: TrainSpec) -> TrainResult:
    os.sched_setaffinity(0, spec.cores)
    torch.set_num_threads(1)
    loading = spec.loading
    blank = torch.zeros((loading.batch_size, loading.crop, loading.crop, 3), dtype=torch.uint8)
    throwaway = _Training(spec.width)
    for _ in range(_WARMING_STEPS):  # the first steps of a process choose and compile kernels
        throwaway.step(blank.permute(0, 3, 1, 2), torch.zeros(len(blank), dtype=torch.int64))
    training = _Training(spec.width)
    contender = _open(spec)
    try:
        epochs = [_epoch(contender, training, spec) for _ in range(spec.epochs)]
        seen = sum(checksum(images, labels) for images, labels in contender)
    finally:
        contender.close()
    if not spec.alone:
        return TrainResult(epochs, seen, None, None)
    return TrainResult(epochs, seen, _decode_ms(loading), _compute_ms(throwaway, blank))


def _open(spec: TrainSpec) -> Contender:
    if spec.contender != PILLOW:
        return CONTENDERS[spec.contender].open(spec.loading)
    loading = spec.loading
    pairs = Pairs(loading)
    batches: DataLoader[Any] = DataLoader(
        pairs,
        batch_sampler=PlannedOrder(len(pairs), loading.batch_size, loading.seed),
        num_workers=loading.num_workers,
        persistent_workers=loading.num_workers > 0,
        collate_fn=collate,
    )
    return Opened(batches)


def _epoch(contender: Contender, training: _Training, spec: TrainSpec) -> EpochResult:
    produced, functions_s, services_s = contender.produced(), *_cpu_beside(spec)
    losses, images, wait_s = [], 0, 0.0
    began_s = asked_s = time.perf_counter()
    for batch, labels in contender:
        wait_s += time.perf_counter() - asked_s
        losses.append(training.step(batch, labels))
        images += len(labels)
        asked_s = time.perf_counter()
    ended_s = time.perf_counter()
    functions_end_s, services_end_s = _cpu_beside(spec)
    return EpochResult(
        steps=len(losses),
        images=images,
        wall_s=ended_s - began_s,
        wait_s=wait_s + ended_s - asked_s,  # to learn that the epoch has ended
        functions_cpu_s=functions_end_s - functions_s,
        services_cpu_s=services_end_s - services_s,
        produced=contender.produced() - produced,
        losses=losses,
    )


def _cpu_beside(spec: TrainSpec) -> tuple[float, float]:
    """CPU seconds until now of the functions, and of cache and coordinator."""
    if not spec.coordinator_pid:
        return 0.0, 0.0
    services_s = process_cpu_s(spec.coordinator_pid) + process_cpu_s(spec.cache_pid)
    return descendants_cpu_s(spec.coordinator_pid), services_s


def _decode_ms(loading: Loading) -> float:
    """Of the loader's own way from file to pixels, by one process that does nothing else."""
    pairs = Pairs(loading)
    some = range(min(len(pairs), 64))
    return 1e3 * _seconds_each(lambda: [pairs[index] for index in some]) / len(some)


def _compute_ms(training: _Training, blank: Tensor) -> float:
    images = torch.randint(0, 256, blank.shape, dtype=torch.uint8).permute(0, 3, 1, 2)
    labels = torch.randint(0, _CLASSES, (len(blank),))
    return 1e3 * _seconds_each(lambda: training.step(images, labels)) / len(blank)


def _seconds_each(work: Callable[[], object]) -> float:
    """CPU seconds of one call: other processes of the machine do not count."""
    began_s = time.perf_counter()
    cpu_s = time.process_time()
    count = 0
    while time.perf_counter() - began_s < _ALONE_S:
        work()
        count += 1
    return (time.process_time() - cpu_s) / count


def _parse(text: str) -> TrainSpec:
    fields = json.loads(text)
    return TrainSpec(**{**fields, "loading": Loading(**fields["loading"])})


if __name__ == "__main__":
    print(json.dumps(asdict(_train(_parse(sys.argv[1])))))
