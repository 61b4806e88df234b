"""One loader in a process of its own, measured: an arm of ``superdl bench read``.

The first epoch is not measured: in it workers start, modules are imported, files come into the page cache and
SUPER's samples into its cache. The measured epochs follow at once, whole, by the same persistent workers, and
between two readings of the CPU clocks lies nothing else. Which arms there are and what becomes of their
figures is :mod:`benchmarks.read`'s.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.image_sets import Loading  # noqa: TC001  # read where a spec is made from JSON
from benchmarks.processes import BenchmarkError, children_cpu_s, descendants_cpu_s, process_cpu_s

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarks.loading import Contender

__all__ = ["ArmResult", "ArmSpec", "checksum", "measure_arm"]


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One arm: which loader, what it loads, how many epochs are measured, and whose CPU is read beside.

    ``store_pid`` is 0 where no S3 server runs.
    """

    contender: str
    loading: Loading
    epochs: int
    cache_pid: int
    coordinator_pid: int
    store_pid: int = 0


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What was measured; ``checksum`` is of the first epoch's images and labels, see :func:`checksum`."""

    images: int
    batches: int
    wall_s: float
    main_cpu_s: float
    workers_cpu_s: float
    cache_cpu_s: float
    coordinator_cpu_s: float
    functions_cpu_s: float
    store_cpu_s: float
    produced: int
    checksum: int


def measure_arm(spec: ArmSpec) -> ArmResult:
    """Measure the arm in this process, which is fresh."""
    contender = CONTENDERS[spec.contender].open(spec.loading)
    try:
        found = sum(_checked(images, labels, spec.loading.crop) for images, labels in contender)
        produced = contender.produced()
        # Asking for other processes' clocks costs milliseconds of this one: so its own is read last, and at
        # the end first.
        beside = _cpu_beside(spec)
        main_s, wall_s = process_cpu_s(os.getpid()), time.perf_counter()
        images, batches = _consume(contender, spec.epochs)
        wall_s, main_s = time.perf_counter() - wall_s, process_cpu_s(os.getpid()) - main_s
        beside = {name: after_s - beside[name] for name, after_s in _cpu_beside(spec).items()}
        produced = contender.produced() - produced
    finally:
        contender.close()
    return ArmResult(
        images=images,
        batches=batches,
        wall_s=wall_s,
        main_cpu_s=main_s,
        **beside,
        produced=produced,
        checksum=found,
    )


def _cpu_beside(spec: ArmSpec) -> dict[str, float]:
    """CPU seconds until now of all but the main process, by the result's names."""
    return {
        "workers_cpu_s": children_cpu_s(),
        "cache_cpu_s": process_cpu_s(spec.cache_pid),
        "coordinator_cpu_s": process_cpu_s(spec.coordinator_pid),
        "functions_cpu_s": descendants_cpu_s(spec.coordinator_pid),
        "store_cpu_s": process_cpu_s(spec.store_pid) if spec.store_pid else 0.0,
    }


def checksum(images: Tensor, labels: Tensor) -> int:
    """A number of a batch that grows with every pixel, weighted by its image's label.

    Sums over batches do not depend on the order.
    """
    return int((images.sum(dim=(1, 2, 3), dtype=torch.int64) * (labels + 1)).sum())


def _checked(images: Tensor, labels: Tensor, side: int) -> int:
    if images.dtype != torch.uint8 or images.shape != (len(labels), 3, side, side):
        raise BenchmarkError(f"images came as {images.dtype} of shape {tuple(images.shape)}")
    return checksum(images, labels)


def _consume(contender: Contender, epochs: int) -> tuple[int, int]:
    """Take every batch, as a trainer would, and let it go; how many images and batches there were."""
    images = batches = 0
    for _ in range(epochs):
        for _, labels in contender:
            images += len(labels)
            batches += 1
    return images, batches
