"""One loader in a process of its own, measured: an arm of ``superdl bench read``; and what any epoch takes.

The first epoch is not measured: in it workers start, modules are imported, files come into the page cache and
SUPER's samples into its cache. The measured epochs follow at once, whole, by the same persistent workers, and
between two readings of the CPU clocks lies nothing else. Which arms there are and what becomes of their
figures is :mod:`benchmarks.read`'s.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.image_sets import Loading  # noqa: TC001  # read where a spec is made from JSON
from benchmarks.processes import BenchmarkError, Pids, children_cpu_s, process_cpu_s

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarks.loading import Contender

__all__ = ["ArmSpec", "Lap", "checksum", "measure_arm", "take_lap"]


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One arm: which loader, what it loads, how many epochs are measured, and whose CPU is read beside."""

    contender: str
    loading: Loading
    epochs: int
    pids: Pids


@dataclass(frozen=True, slots=True)
class Lap:
    """What whole epochs took; ``first_s`` until the first batch, ``produced`` and ``store_requests`` of the
    job in all. ``checksum`` is of the first epoch's images and labels, see :func:`checksum`.
    """

    images: int
    batches: int
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
    checksum: int = 0


def measure_arm(spec: ArmSpec) -> Lap:
    """Measure the arm in this process, which is fresh."""
    contender = CONTENDERS[spec.contender].open(spec.loading)
    try:
        found = sum(_checked(images, labels, spec.loading.crop) for images, labels in contender)
        produced = contender.produced()
        lap = take_lap(contender, spec.pids, spec.epochs)
    finally:
        contender.close()
    return replace(lap, produced=lap.produced - produced, checksum=found)


def take_lap(contender: Contender, pids: Pids, epochs: int = 1) -> Lap:
    """Take every batch of so many epochs, as a trainer would, and let it go."""
    # Asking for other processes' clocks costs milliseconds of this one: so its own is read last, and at the
    # end first.
    beside = _cpu_beside(pids)
    main_s, began_s = process_cpu_s(os.getpid()), time.perf_counter()
    images = batches = 0
    first_s = 0.0
    for _ in range(epochs):
        for _, labels in contender:
            if not batches:
                first_s = time.perf_counter() - began_s
            images += len(labels)
            batches += 1
    wall_s, main_s = time.perf_counter() - began_s, process_cpu_s(os.getpid()) - main_s
    return Lap(
        images=images,
        batches=batches,
        first_s=first_s,
        wall_s=wall_s,
        main_cpu_s=main_s,
        **{name: after_s - beside[name] for name, after_s in _cpu_beside(pids).items()},
        produced=contender.produced(),
        store_requests=contender.store_requests(),
        checksum=0,
    )


def _cpu_beside(pids: Pids) -> dict[str, float]:
    """CPU seconds until now of all but the main process, by the names of a lap."""
    return {"workers_cpu_s": children_cpu_s(), **pids.cpu_s()}


def checksum(images: Tensor, labels: Tensor) -> int:
    """A number of a batch that grows with every pixel, weighted by its image's label.

    Sums over batches do not depend on the order.
    """
    return int((images.sum(dim=(1, 2, 3), dtype=torch.int64) * (labels + 1)).sum())


def _checked(images: Tensor, labels: Tensor, side: int) -> int:
    if images.dtype != torch.uint8 or images.shape != (len(labels), 3, side, side):
        raise BenchmarkError(f"images came as {images.dtype} of shape {tuple(images.shape)}")
    return checksum(images, labels)
