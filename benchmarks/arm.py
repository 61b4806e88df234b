"""``python -m benchmarks.arm SPEC``: one loader in a process of its own, measured; prints one line of
JSON.

The first epoch is not measured: in it workers start, modules are imported, files come into the page cache and
SUPER's samples into its cache. The measured epochs follow at once, whole, by the same persistent workers, and
between two readings of the CPU clocks lies nothing else. Which arms there are and what becomes of their
figures is :mod:`benchmarks.read`'s.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from benchmarks.child import run_child
from benchmarks.contenders import CONTENDERS
from benchmarks.cpu_clock import children_cpu_s, descendants_cpu_s, process_cpu_s
from benchmarks.errors import BenchmarkError
from benchmarks.loading import Contender, Loading
from benchmarks.object_store import ENVIRONMENT

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ArmResult", "ArmSpec", "checksum", "run_arm"]


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


def run_arm(spec: ArmSpec) -> ArmResult:
    """Measure an arm in a fresh process.

    Raises:
        BenchmarkError: it failed; the message has what it said.

    """
    arguments = [json.dumps(asdict(spec))]
    printed = run_child("arm", arguments, name=spec.contender, environment=ENVIRONMENT)
    return ArmResult(**json.loads(printed))


@dataclass(frozen=True, slots=True)
class _Reading:
    """All clocks at one moment, in seconds."""

    wall_s: float
    main_s: float
    workers_s: float
    cache_s: float
    coordinator_s: float
    functions_s: float
    store_s: float

    @classmethod
    def now(cls, spec: ArmSpec) -> _Reading:
        return cls(
            wall_s=time.perf_counter(),
            main_s=process_cpu_s(os.getpid()),
            workers_s=children_cpu_s(),
            cache_s=process_cpu_s(spec.cache_pid),
            coordinator_s=process_cpu_s(spec.coordinator_pid),
            functions_s=descendants_cpu_s(spec.coordinator_pid),
            store_s=process_cpu_s(spec.store_pid) if spec.store_pid else 0.0,
        )


def _measure(spec: ArmSpec) -> ArmResult:
    contender = CONTENDERS[spec.contender].open(spec.loading)
    try:
        found = sum(_checked(images, labels, spec.loading.crop) for images, labels in contender)
        produced = contender.produced()
        start = _Reading.now(spec)
        images, batches = _consume(contender, spec.epochs)
        end = _Reading.now(spec)
        produced = contender.produced() - produced
    finally:
        contender.close()
    return ArmResult(
        images=images,
        batches=batches,
        wall_s=end.wall_s - start.wall_s,
        main_cpu_s=end.main_s - start.main_s,
        workers_cpu_s=end.workers_s - start.workers_s,
        cache_cpu_s=end.cache_s - start.cache_s,
        coordinator_cpu_s=end.coordinator_s - start.coordinator_s,
        functions_cpu_s=end.functions_s - start.functions_s,
        store_cpu_s=end.store_s - start.store_s,
        produced=produced,
        checksum=found,
    )


def checksum(images: Tensor, labels: Tensor) -> int:
    """A number of a batch that grows with every pixel, weighted by its image's label; sums over batches do
    not depend on the order.
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


def _parse(text: str) -> ArmSpec:
    fields = json.loads(text)
    return ArmSpec(**{**fields, "loading": Loading(**fields["loading"])})


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(_parse(sys.argv[1])))))
