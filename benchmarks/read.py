"""``superdl bench read``: what a trainer's own processes spend per image, with SUPER and with a plain
DataLoader.

It decides which arms there are and in which order they run, and makes figures of what they measured. An arm
itself is :mod:`benchmarks.arm`'s, the loaders are :mod:`benchmarks.contenders`'s.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.arm import ArmResult, ArmSpec, run_arm
from benchmarks.contenders import CONTENDERS, PLAIN, Loading
from benchmarks.errors import BenchmarkError
from benchmarks.image_sets import IMAGE_SETS, ImageSet, data_directory, prepare_images
from benchmarks.options import not_negative, positive
from benchmarks.report import BenchmarkReport, Column, describe_machine
from benchmarks.services import Services

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["add_arguments", "measure"]

_METHOD = (
    (
        "CPU is user and system time of the trainer's main process, all threads, and of its DataLoader "
        "workers, over whole epochs (--epochs) from the second one on, when everything is cached. The "
        "first epoch, and with it start-up and imports, is left out for every loader alike. Batches are "
        "taken and dropped: nothing is computed, and the trainer touches no pixel."
    ),
    (
        "Each arm runs in a process of its own, the arms of a round one after another, with one set of "
        "services for all. Figures are medians over the rounds; one round more comes first, to warm up, "
        "and is not counted."
    ),
    (
        f"'times less' is the CPU of {PLAIN} with the same images, workers and batch size over this row's. "
        "Cache, coordinator and functions are processes of their own, on other machines where there are "
        "any: their CPU is not in the trainer's."
    ),
)

_COLUMNS = (
    Column("num_workers", "workers", "d"),
    Column("contender", "loader"),
    Column("cpu_ms_per_image", "CPU ms\n/image", ".4f"),
    Column("times_less_cpu", "times\nless", ".1f"),
    Column("main_cpu_ms_per_image", "of it\nmain", ".4f"),
    Column("workers_cpu_ms_per_image", "of it\nworkers", ".4f"),
    Column("images_per_s", "\nimages/s", ",.0f"),
    Column("cache_cpu_ms_per_image", "beside:\ncache", ".4f"),
    Column("coordinator_cpu_ms_per_image", "coordi-\nnator", ".4f"),
    Column("functions_cpu_ms_per_image", "func-\ntions", ".4f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--images", nargs="+", choices=IMAGE_SETS, default=list(IMAGE_SETS), help="image sets (all)"
    )
    parser.add_argument("--batch-size", nargs="+", type=positive, default=[256], metavar="N", help="(256)")
    parser.add_argument("--workers", nargs="+", type=not_negative, default=[0, 2], metavar="N", help="(0 2)")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds that count (3)")
    parser.add_argument("--epochs", type=positive, default=3, help="epochs measured in each arm (3)")
    parser.add_argument("--photos", type=positive, default=1024, help="images of the set photos (1024)")
    parser.add_argument(
        "--data", metavar="DIR", help="where image sets are kept (below the temporary directory)"
    )


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all arms; ``say`` is told what happens.

    Raises:
        SuperError: images or services cannot be had, or an arm failed.

    """
    began_s, started_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    environment = describe_machine()
    say("preparing images")
    directory = data_directory(arguments.data)
    sets = [prepare_images(name, directory, arguments.photos) for name in arguments.images]
    cells = list(_cells(sets, arguments.batch_size, arguments.workers))
    runs: list[_Run] = []
    with Services.start("read") as services:
        for number in range(arguments.rounds + 1):
            for cell in cells:
                say(f"round {number} of {arguments.rounds}: {cell}" if number else f"warming up: {cell}")
                result = run_arm(cell.spec(arguments.epochs, services))
                _check(cell, result, arguments.epochs)
                runs.append(_Run(number, cell, result))
                _check_same_pixels(runs)
    return BenchmarkReport(
        benchmark="read",
        started_at=started_at,
        wall_s=time.perf_counter() - began_s,
        settings={
            "image_sets": {one.name: {"about": one.about, "images": one.images} for one in sets},
            "batch_sizes": arguments.batch_size,
            "num_workers": arguments.workers,
            "rounds": arguments.rounds,
            "epochs": arguments.epochs,
        },
        method=_METHOD,
        group_by=("images", "batch_size"),
        columns=_COLUMNS,
        rows=tuple(_rows(cells, [run for run in runs if run.round > 0])),
        rounds=tuple(run.to_mapping() for run in runs),
        environment=environment,
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """One row of the table: a loader under one set of conditions."""

    images: ImageSet
    batch_size: int
    num_workers: int
    contender: str

    def __str__(self) -> str:
        return f"{self.images.name}, batch {self.batch_size}, {self.num_workers} workers, {self.contender}"

    def spec(self, epochs: int, services: Services) -> ArmSpec:
        loading = Loading(
            directory=self.images.directory,
            resize=self.images.resize,
            crop=self.images.crop,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            coordinator=services.coordinator,
        )
        return ArmSpec(self.contender, loading, epochs, services.cache_pid, services.coordinator_pid)

    def conditions(self) -> dict[str, Any]:
        return {
            "images": self.images.name,
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "contender": self.contender,
        }


@dataclass(frozen=True, slots=True)
class _Run:
    """One arm, done. Round 0 is the warm-up."""

    round: int
    cell: _Cell
    result: ArmResult

    def to_mapping(self) -> dict[str, Any]:
        return {"round": self.round, **self.cell.conditions(), **asdict(self.result)}


def _cells(
    sets: Sequence[ImageSet], batch_sizes: Sequence[int], num_workers: Sequence[int]
) -> Iterator[_Cell]:
    """The contenders last, so that those that are compared run side by side in time."""
    for images, batch_size, workers, contender in itertools.product(
        sets, batch_sizes, num_workers, CONTENDERS
    ):
        yield _Cell(images, batch_size, workers, contender)


def _check(cell: _Cell, result: ArmResult, epochs: int) -> None:
    """A figure that is not of what it says is worse than none."""
    if result.images != epochs * cell.images.images:
        raise BenchmarkError(
            f"{cell}: {result.images} images came instead of {epochs} times {cell.images.images}"
        )
    if result.produced:
        raise BenchmarkError(
            f"{cell}: functions decoded {result.produced} samples in the measured epochs: not all was cached"
        )


def _check_same_pixels(runs: Sequence[_Run]) -> None:
    sums: dict[str, dict[int, str]] = {}
    for run in runs:
        sums.setdefault(run.cell.images.name, {})[run.result.pixel_sum] = run.cell.contender
    for name, found in sums.items():
        if len(found) > 1:
            raise BenchmarkError(f"the loaders gave different pixels for {name}: {found}")


def _rows(cells: Sequence[_Cell], runs: Sequence[_Run]) -> Iterator[dict[str, Any]]:
    rows = {cell: _figures(cell, [run.result for run in runs if run.cell == cell]) for cell in cells}
    for cell, row in rows.items():
        plain = rows[_Cell(cell.images, cell.batch_size, cell.num_workers, PLAIN)]
        yield {**row, "times_less_cpu": plain["cpu_ms_per_image"] / row["cpu_ms_per_image"]}


def _figures(cell: _Cell, results: Sequence[ArmResult]) -> dict[str, Any]:
    trainer = [1e3 * (one.main_cpu_s + one.workers_cpu_s) / one.images for one in results]
    parts = ("main", "workers", "cache", "coordinator", "functions")
    return {
        **cell.conditions(),
        "cpu_ms_per_image": median(trainer),
        "cpu_ms_per_image_min": min(trainer),
        "cpu_ms_per_image_max": max(trainer),
        **{
            f"{part}_cpu_ms_per_image": median(
                1e3 * getattr(one, f"{part}_cpu_s") / one.images for one in results
            )
            for part in parts
        },
        "images_per_s": median(one.images / one.wall_s for one in results),
    }
