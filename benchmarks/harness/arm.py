"""Arms of ``superdl bench read``, ``store`` and ``train``, each of which reads epochs in its own process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import torch

from benchmarks.harness.processes import BenchmarkError, Pids, children_cpu_s, process_cpu_s, run_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from benchmarks.harness.image_sets import Loading
    from superdl.sampler import SuperSampler

_SETTLED_S, _POLL_S = 30.0, 0.05
_PARTS = ("main", "workers", "cache", "coordinator", "functions", "s3")


class Trainer(Protocol):
    """A trainer that consumes an arm's batches."""

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Train on one batch."""

    def figures(self, wall_s: float) -> dict[str, Any]:
        """Return the step count and waiting time since the last call, which was ``wall_s`` seconds ago."""


class Contender:
    """An open loader. Each iteration over it is one epoch, in a new order.

    Images are uint8 of shape (batch, 3, height, width), and labels are int64 of shape (batch,). A batch is
    valid only until the next one is requested, because a loader may reuse its memory.

    Args:
        batches: the iterable of batches. It is closed if it has a ``close`` method, and released otherwise.
        pair: converts each item to a pair of images and labels, unless the items already are such pairs.
        sampler: SUPER's sampler, if any, which is closed too.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        pair: Callable[[Any], tuple[Tensor, Tensor]] | None = None,
        sampler: SuperSampler | None = None,
    ) -> None:
        self._batches: Iterable[Any] | None = batches
        self._pair = pair
        self._sampler = sampler

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = () if self._batches is None else self._batches
        return iter(batches) if self._pair is None else map(self._pair, batches)

    def counts(self) -> dict[str, int]:
        """Return the counts of samples decoded and GETs sent so far, or an empty dict without a sampler."""
        if self._sampler is None:
            return {}
        stats = self._sampler.job_stats()
        return {
            "decoded": int(stats.samples_produced),
            "gets": int(stats.source_requests + stats.store_requests),
        }

    def settle(self) -> None:
        """Wait until functions are idle, because their last results arrive after the last batch."""
        until_s = time.monotonic() + _SETTLED_S
        while self._sampler is not None and self._sampler.job_stats().total_requests_in_flight:
            if time.monotonic() > until_s:
                raise BenchmarkError(f"functions are still running {_SETTLED_S:g} s after the last batch")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Stop the workers, and close everything else that was opened."""
        batches, self._batches = self._batches, None  # the last reference: persistent workers end with it
        close = getattr(batches, "close", None)
        if close is not None:
            close()
        del batches, close
        if self._sampler is not None:
            self._sampler.close()


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One arm. The epochs of each lap run without a pause between them."""

    open: Callable[[Loading], Contender]
    loading: Loading
    laps: Sequence[int]  # epochs of each lap
    pids: Pids = field(default_factory=Pids)  # further processes whose CPU is measured
    imports: Sequence[str] = ()  # modules to import first
    from_cold: bool = False  # the first lap includes opening, and each lap the functions' work after it
    checked: bool = False  # one more epoch after the laps is read for its checksum
    trainer: Callable[[], Trainer] | None = None  # None: batches are dropped


@dataclass(frozen=True, slots=True)
class Lap:
    """The costs of one lap, which is one or more epochs."""

    images: int
    first_s: float  # until the first batch
    wall_s: float
    main_cpu_s: float
    workers_cpu_s: float
    cache_cpu_s: float
    coordinator_cpu_s: float
    functions_cpu_s: float
    s3_cpu_s: float
    # By functions; None if there are none.
    decoded: int | None = None
    gets: int = 0
    # Of a trainer: its steps, and the time between them.
    steps: int = 0
    wait_s: float = 0.0
    checksum: int = 0  # of one epoch's images and labels

    def figures(self) -> dict[str, float]:
        """Return the table's figures: rates, and CPU in ms per image. ``reader`` is main plus workers."""
        cpu_s = {part: getattr(self, f"{part}_cpu_s") for part in _PARTS}
        cpu_s["reader"] = cpu_s["main"] + cpu_s["workers"]
        cpu_s["all"] = cpu_s["reader"] + cpu_s["cache"] + cpu_s["coordinator"] + cpu_s["functions"]
        counts = {} if self.decoded is None else {"decodes": self.decoded, "gets": self.gets}
        return {
            **{f"{part}_cpu_ms": 1e3 * seconds / self.images for part, seconds in cpu_s.items()},
            "images_per_s": self.images / self.wall_s,
            "first_batch_ms": 1e3 * self.first_s,
            **{name: number / self.images for name, number in counts.items()},
            "checksum": self.checksum,
        }


class _Spent:
    """CPU time used outside the main process, and work done by functions, since the last reading."""

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        self._before: dict[str, Any] = self._cpu_s()

    def _cpu_s(self) -> dict[str, float]:
        return {"workers_cpu_s": children_cpu_s(), **self._pids.cpu_s()}

    def read(self, contender: Contender) -> dict[str, Any]:
        before, self._before = self._before, {**contender.counts(), **self._cpu_s()}
        return {name: value - before.get(name, 0) for name, value in self._before.items()}


def run_checked(spec: ArmSpec, name: str, environment: Mapping[str, str] | None = None) -> list[Lap]:
    """Measure an arm in a fresh process. Check its images, and that functions decode only in the first lap.

    Raises:
        BenchmarkError: the arm failed, or did not do what the table says.
    """
    laps = run_child(measure_arm, replace(spec, checked=True), name=name, environment=environment)
    for count, lap in zip(spec.laps, laps, strict=True):
        if lap.images != count * spec.loading.images:
            raise BenchmarkError(f"{name}: {lap.images} images arrived in {count} epochs")
    for lap in laps[1:]:
        if lap.decoded:
            raise BenchmarkError(f"{name}: functions decoded {lap.decoded} samples after everything was read")
    return laps


def measure_arm(spec: ArmSpec) -> list[Lap]:
    """Measure the arm in this process, which must be fresh."""
    for module in spec.imports:
        import_module(module)
    trainer = spec.trainer() if spec.trainer else None
    spent, began_s = _Spent(spec.pids), time.perf_counter()
    contender = spec.open(spec.loading)
    opening_s = time.perf_counter() - began_s
    try:
        laps = [_lap(spec, contender, trainer, spent, epochs) for epochs in spec.laps]
        epoch_checksum = (
            sum(_checked(*batch, spec.loading.crop) for batch in contender) if spec.checked else 0
        )
    finally:
        contender.close()
    if spec.from_cold:
        first = laps[0]
        laps[0] = replace(first, first_s=first.first_s + opening_s, wall_s=first.wall_s + opening_s)
    return [replace(lap, checksum=epoch_checksum) for lap in laps]


def _lap(spec: ArmSpec, contender: Contender, trainer: Trainer | None, spent: _Spent, epochs: int) -> Lap:
    """Read every batch of ``epochs`` epochs, as a trainer would."""
    # Reading the clocks of other processes takes milliseconds, so read this process's own clock last here,
    # and first at the end.
    main_s, began_s = process_cpu_s(os.getpid()), time.perf_counter()
    images, first_s = 0, 0.0
    for _ in range(epochs):
        for batch in contender:
            if not images:
                first_s = time.perf_counter() - began_s
            images += len(batch[1])
            if trainer is not None:
                trainer.step(batch)
    wall_s, main_s = time.perf_counter() - began_s, process_cpu_s(os.getpid()) - main_s
    if spec.from_cold:
        contender.settle()
    return Lap(
        images=images,
        first_s=first_s,
        wall_s=wall_s,
        main_cpu_s=main_s,
        **({} if trainer is None else trainer.figures(wall_s)),
        **spent.read(contender),
    )


def checksum(images: Tensor, labels: Tensor) -> int:
    """Return the sum of a batch's pixels, each weighted by the label of its image."""
    # Sums over batches do not depend on the order.
    return int((images.sum(dim=(1, 2, 3), dtype=torch.int64) * (labels + 1)).sum())


def _checked(images: Tensor, labels: Tensor, side: int) -> int:
    if images.dtype != torch.uint8 or images.shape != (len(labels), 3, side, side):
        raise BenchmarkError(
            f"expected uint8 images of shape {(len(labels), 3, side, side)}, "
            f"but got {images.dtype} of shape {tuple(images.shape)}"
        )
    return checksum(images, labels)
