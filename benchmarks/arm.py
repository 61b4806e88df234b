"""One loader in a process of its own, measured: an arm of ``superdl bench read``; and what any epoch takes.

Over files the first epoch is not measured: in it workers start, modules are imported, files come into the
page cache and SUPER's samples into its cache. The measured epochs follow at once, whole, by the same
persistent workers, and between two readings of the CPU clocks lies nothing else. Over shards the first epochs
are what is measured. Which arms there are and what becomes of their figures is :mod:`benchmarks.read`'s.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.image_sets import Loading  # noqa: TC001  # read where a spec is made from JSON
from benchmarks.processes import BenchmarkError, Pids, children_cpu_s, process_cpu_s

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarks.loading import Contender

__all__ = ["ArmResult", "ArmSpec", "Lap", "Spent", "checksum", "measure_arm", "take_lap"]


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One arm: which loader, what it loads, how many epochs are measured, and whose CPU is read beside."""

    contender: str
    loading: Loading
    epochs: int
    pids: Pids


@dataclass(frozen=True, slots=True)
class Lap:
    """What whole epochs took; ``first_s`` until the first batch. Functions ``produced`` samples and sent
    ``store_requests``; ``source_requests`` are theirs, or those of a loader that reads by itself.
    ``checksum`` is of one epoch's images and labels, see :func:`checksum`.
    """

    images: int
    first_s: float
    wall_s: float
    main_cpu_s: float
    workers_cpu_s: float
    cache_cpu_s: float
    coordinator_cpu_s: float
    functions_cpu_s: float
    store_cpu_s: float
    produced: int
    store_requests: int
    source_requests: int
    checksum: int = 0

    @property
    def trainer_cpu_s(self) -> float:
        """CPU of the process that reads and of its workers."""
        return self.main_cpu_s + self.workers_cpu_s

    @property
    def cpu_of_all_s(self) -> float:
        """CPU of everything but the S3 server."""
        return self.trainer_cpu_s + self.cache_cpu_s + self.coordinator_cpu_s + self.functions_cpu_s


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The laps that an arm has taken."""

    laps: list[Lap]


class Spent:
    """What was spent beside the main process, and done by functions, since the last reading."""

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        self._before: dict[str, Any] = self._cpu_s()

    def _cpu_s(self) -> dict[str, float]:
        return {"workers_cpu_s": children_cpu_s(), **self._pids.cpu_s()}

    def read(self, contender: Contender) -> dict[str, Any]:
        """The figures by the names of a lap; functions begin while a loader is opened, so before that."""
        before, self._before = self._before, {**contender.counts(), **self._cpu_s()}
        return {name: value - before.get(name, 0) for name, value in self._before.items()}


def measure_arm(spec: ArmSpec) -> ArmResult:
    """Measure the arm in this process, which is fresh: a lap of all epochs, or one of each over shards."""
    if spec.loading.shards:
        return _measure_cold(spec)
    contender, spent = CONTENDERS[spec.contender].open(spec.loading), Spent(spec.pids)
    try:
        seen = _checksum_of_epoch(contender, spec.loading)
        spent.read(contender)
        return ArmResult([replace(take_lap(contender, spent, spec.epochs), checksum=seen)])
    finally:
        contender.close()


def _measure_cold(spec: ArmSpec) -> ArmResult:
    """Measure each epoch from the first one on. Opening is part of the first, importing is not."""
    form = CONTENDERS[spec.contender]
    for module in form.imports:
        import_module(module)
    spent = Spent(spec.pids)
    began_s = time.perf_counter()
    contender = (form.open_shards or form.open)(spec.loading)
    opening_s = time.perf_counter() - began_s
    try:
        first, *laps = [take_lap(contender, spent, settle=True) for _ in range(spec.epochs)]
        seen = _checksum_of_epoch(contender, spec.loading)
    finally:
        contender.close()
    first = replace(first, first_s=opening_s + first.first_s, wall_s=opening_s + first.wall_s)
    return ArmResult([replace(lap, checksum=seen) for lap in (first, *laps)])


def take_lap(contender: Contender, spent: Spent, epochs: int = 1, *, settle: bool = False) -> Lap:
    """Take every batch of so many epochs, as a trainer would, and let it go.

    Args:
        contender: the loader.
        spent: was read when the lap began, or before.
        epochs: how many.
        settle: whether what functions still do after the last batch counts as well.

    """
    # Asking for other processes' clocks costs milliseconds of this one: so its own is read last, and at the
    # end first.
    main_s, began_s = process_cpu_s(os.getpid()), time.perf_counter()
    images, first_s = 0, 0.0
    for _ in range(epochs):
        for _, labels in contender:
            if not images:
                first_s = time.perf_counter() - began_s
            images += len(labels)
    wall_s, main_s = time.perf_counter() - began_s, process_cpu_s(os.getpid()) - main_s
    if settle:
        contender.settle()
    return Lap(
        images=images,
        first_s=first_s,
        wall_s=wall_s,
        main_cpu_s=main_s,
        **spent.read(contender),
    )


def checksum(images: Tensor, labels: Tensor) -> int:
    """A number of a batch that grows with every pixel, weighted by its image's label.

    Sums over batches do not depend on the order.
    """
    return int((images.sum(dim=(1, 2, 3), dtype=torch.int64) * (labels + 1)).sum())


def _checksum_of_epoch(contender: Contender, loading: Loading) -> int:
    return sum(_checked(images, labels, loading.crop) for images, labels in contender)


def _checked(images: Tensor, labels: Tensor, side: int) -> int:
    if images.dtype != torch.uint8 or images.shape != (len(labels), 3, side, side):
        raise BenchmarkError(f"images came as {images.dtype} of shape {tuple(images.shape)}")
    return checksum(images, labels)
