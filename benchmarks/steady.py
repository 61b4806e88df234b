"""``superdl bench steady``: how much of a training loop's time goes by waiting for data.

A loop that computes for a fixed time per batch reads through the embedded default: once while functions still
produce what it reads, then with everything cached. What reading costs in CPU is :mod:`benchmarks.read`'s.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.command import not_negative, positive
from benchmarks.image_sets import ImageSet, add_image_options, prepare_images
from benchmarks.loading import Contender, Loading, open_super
from benchmarks.processes import BenchmarkError
from benchmarks.results import BenchmarkReport, Column, Started
from benchmarks.services import embedded_services

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from torch import Tensor

__all__ = ["add_arguments", "measure"]

SUPER = "SUPER"
FIRST = "first epoch"
LATER = "later epochs"
BARE = "bare DataLoader"
ASLEEP = "asleep"
BUSY = "busy"

_METHOD = (
    (
        "One training process with a DataLoader, and the embedded default on the same machine: coordinator, "
        "cache and functions. The loop takes a batch and computes for a fixed time; the time in which it "
        "asks for a batch and has none is waiting. The share is of the wall clock of whole epochs, the start "
        f"of each epoch's iterator included. '{BUSY}' keeps a processor of this machine busy meanwhile; "
        f"'{ASLEEP}' waits, as a process does while an accelerator computes. '{BARE}' is the same loop over "
        "zeros of the same shape, which workers make: what torch takes to hand a batch over, and no data."
    ),
    (
        f"'{FIRST}' begins with an empty cache; functions decode on the trainer's own cores. In '{LATER}' "
        "all is cached; figures are medians over these epochs, 'worst' the epoch with the largest share. The "
        "first epoch of each further loop, which starts worker processes, is left out."
    ),
)

_COLUMNS = (
    Column("loader", "loader"),
    Column("compute", "trainer"),
    Column("epochs", "epochs"),
    Column("batches", "batches\n/epoch", ",d"),
    Column("wait_percent", "% of wall\nwaiting", ".2f"),
    Column("worst_wait_percent", "\nworst", ".2f"),
    Column("wait_ms_per_batch", "wait ms\n/batch", ".2f"),
    Column("longest_wait_ms", "longest\nms", ".1f"),
    Column("images_per_s", "\nimages/s", ",.0f"),
)

_QUICK = {"images": "digits", "batch_size": 256, "compute_ms": 5, "epochs": 1, "workers": 1, "photos": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_image_options(parser, photos=6400)
    parser.add_argument("--batch-size", type=positive, default=256, help="(256)")
    parser.add_argument("--compute-ms", type=positive, default=250, help="computing for each batch (250)")
    parser.add_argument("--workers", type=not_negative, default=2, help="of the DataLoader (2)")
    parser.add_argument("--epochs", type=positive, default=6, help="measured after the first (6)")
    parser.add_argument("--quick", action="store_true", help="very small, to see that it works")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Train; ``say`` gets a line for each epoch.

    Raises:
        SuperError: images or services cannot be had, or not all images came.

    """
    started = Started("steady")
    if arguments.quick:
        vars(arguments).update(_QUICK)
    images = prepare_images(arguments.images, arguments, say)
    epochs: list[_Epoch] = []
    with embedded_services("steady") as services:
        loading = images.loading(
            batch_size=arguments.batch_size,
            num_workers=arguments.workers,
            coordinator=services.coordinator,
        )
        for compute, name in itertools.product((ASLEEP, BUSY), (SUPER, BARE)):
            loader = open_super(loading) if name == SUPER else _open_bare(loading, images.images)
            loop = _Loop(name, compute, arguments.compute_ms / 1e3)
            try:
                epochs += _train(loader, images, arguments.epochs + 1, loop, say)
            finally:
                loader.close()
    conditions = ("images", "batch_size", "compute_ms", "workers")
    group = {name: getattr(arguments, name) for name in conditions}
    return started.report(
        settings={
            "image_sets": images.described(),
            **{name: getattr(arguments, name) for name in ("batch_size", "compute_ms", "workers", "epochs")},
        },
        method=_METHOD,
        group_by=conditions,
        columns=_COLUMNS,
        rows=({**group, **row} for row in _rows(epochs)),
        rounds=(asdict(epoch) for epoch in epochs),
    )


def _open_bare(loading: Loading, images: int) -> Contender:
    """A DataLoader whose workers make zeros of the same shapes, one item for each batch."""
    starts = range(0, images, loading.batch_size)
    sizes = [min(loading.batch_size, images - start) for start in starts]
    batches: DataLoader[Any] = DataLoader(
        _Zeros(sizes, loading.crop),
        batch_size=None,
        num_workers=loading.num_workers,
        persistent_workers=loading.num_workers > 0,
    )
    return Contender(batches)


class _Zeros(Dataset[tuple["Tensor", "Tensor"]]):
    def __init__(self, sizes: list[int], side: int) -> None:
        self._sizes = sizes
        self._side = side

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        size = self._sizes[index]
        pixels = torch.zeros((size, self._side, self._side, 3), dtype=torch.uint8)
        return pixels.permute(0, 3, 1, 2), torch.zeros(size, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class _Loop:
    """Over which loader, and what computing is."""

    loader: str
    compute: str
    compute_s: float


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One epoch: its wall clock, and of it the time without a batch, in seconds."""

    loader: str
    compute: str
    number: int
    batches: int
    images: int
    wall_s: float
    wait_s: float
    longest_wait_s: float
    produced: int

    @property
    def wait_percent(self) -> float:
        return 100 * self.wait_s / self.wall_s


def _train(
    loader: Contender, images: ImageSet, epochs: int, loop: _Loop, say: Callable[[str], None]
) -> Iterator[_Epoch]:
    produced = loader.produced()
    for number in range(epochs):
        waits, taken, began_s = [], 0, time.perf_counter()
        asked_s = began_s
        for _, labels in loader:
            now_s = time.perf_counter()
            waits.append(now_s - asked_s)
            taken += len(labels)
            _compute(loop.compute, now_s + loop.compute_s)
            asked_s = time.perf_counter()
        waits.append(time.perf_counter() - asked_s)  # to learn that the epoch has ended
        wall_s = time.perf_counter() - began_s
        if taken != images.images:
            raise BenchmarkError(f"{taken} images came in epoch {number} instead of {images.images}")
        before, produced = produced, loader.produced()
        epoch = _Epoch(
            loop.loader,
            loop.compute,
            number,
            len(waits) - 1,
            taken,
            wall_s,
            sum(waits),
            max(waits),
            produced - before,
        )
        say(f"{loop.loader}, {loop.compute}, epoch {number}: {epoch.wait_percent:.2f}% of {wall_s:.2f} s")
        yield epoch


def _compute(how: str, until_s: float) -> None:
    if how == ASLEEP:
        time.sleep(max(0.0, until_s - time.perf_counter()))
    while time.perf_counter() < until_s:
        pass


def _rows(epochs: list[_Epoch]) -> Iterator[dict[str, Any]]:
    parts = {(FIRST, epochs[0].loader, epochs[0].compute): epochs[:1]}
    for epoch in epochs:
        if epoch.number > 0:
            parts.setdefault((LATER, epoch.loader, epoch.compute), []).append(epoch)
    for (name, loader, compute), some in parts.items():
        yield {
            "loader": loader,
            "compute": compute,
            "epochs": name,
            "count": len(some),
            "batches": some[0].batches,
            "wait_percent": median(epoch.wait_percent for epoch in some),
            "worst_wait_percent": max(epoch.wait_percent for epoch in some),
            "wait_ms_per_batch": 1e3 * median(epoch.wait_s / epoch.batches for epoch in some),
            "longest_wait_ms": 1e3 * max(epoch.longest_wait_s for epoch in some),
            "wall_s": median(epoch.wall_s for epoch in some),
            "images_per_s": median(epoch.images / epoch.wall_s for epoch in some),
            "produced": sum(epoch.produced for epoch in some),
        }
