"""The figures of ``superdl bench read``: what the rows of its table say, from what the arms measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import BOTO3, CONTENDERS, PILLOW, RAM, SOCKET, Kind
from benchmarks.report import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.arm import ArmResult
    from benchmarks.image_sets import ImageSet

__all__ = ["COLUMNS", "Cell", "Run", "rows_of"]

COLUMNS = (
    Column("num_workers", "work-\ners", "d"),
    Column("loader", "loader"),
    Column("cpu_ms_per_image", "CPU ms\n/image", ".4f"),
    Column("main_cpu_ms_per_image", "of it\nmain", ".4f"),
    Column("workers_cpu_ms_per_image", "of it\nworkers", ".4f"),
    Column("images_per_s", "images\n/s", ",.0f"),
    Column("times_less_than_pillow", "less than\nPillow", ".1f"),
    Column("times_less_than_boto3", "\nboto3", ".1f"),
    Column("times_ram_array", "times\nRAM", ".2f"),
    Column("times_socket_loop", "times\nsocket", ".2f"),
    Column("cache_cpu_ms_per_image", "beside:\ncache", ".4f"),
    Column("coordinator_cpu_ms_per_image", "coordi-\nnator", ".4f"),
    Column("functions_cpu_ms_per_image", "func-\ntions", ".4f"),
    Column("store_cpu_ms_per_image", "\nS3", ".3f"),
)

_PARTS = ("main", "workers", "cache", "coordinator", "functions", "store")


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table: a loader under one set of conditions."""

    images: ImageSet
    batch_size: int
    num_workers: int
    contender: str

    def __str__(self) -> str:
        return f"{self.images.name}, batch {self.batch_size}, {self.num_workers} workers, {self.kind.title}"

    @property
    def kind(self) -> Kind:
        """The loader."""
        return CONTENDERS[self.contender]

    @property
    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        return self.kind.missing()

    def conditions(self) -> dict[str, Any]:
        """The row's first columns."""
        return {
            "images": self.images.name,
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "contender": self.contender,
            "loader": self.kind.title,
        }


@dataclass(frozen=True, slots=True)
class Run:
    """One arm, done."""

    round: int
    cell: Cell
    result: ArmResult

    def to_mapping(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"round": self.round, **self.cell.conditions(), **asdict(self.result)}


def rows_of(cells: Sequence[Cell], runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """A row for each cell: medians over its runs, and ratios to other rows; ``None`` where there is none."""
    medians = {cell: _figures([run.result for run in runs if run.cell == cell]) for cell in cells}
    for cell, figures in medians.items():
        row = {**cell.conditions(), "note": cell.missing, **figures, **_ratios(cell, medians)}
        if row["note"]:
            row["loader"] += ": " + row["note"].partition(":")[0]
        yield row


def _figures(results: Sequence[ArmResult]) -> dict[str, float | None]:
    if not results:
        names = ["cpu_ms_per_image", "cpu_ms_per_image_min", "cpu_ms_per_image_max", "images_per_s"]
        return dict.fromkeys([*names, *(f"{part}_cpu_ms_per_image" for part in _PARTS)])
    trainer = [1e3 * (one.main_cpu_s + one.workers_cpu_s) / one.images for one in results]
    return {
        "cpu_ms_per_image": median(trainer),
        "cpu_ms_per_image_min": min(trainer),
        "cpu_ms_per_image_max": max(trainer),
        "images_per_s": median(one.images / one.wall_s for one in results),
        **{
            f"{part}_cpu_ms_per_image": median(
                1e3 * getattr(one, f"{part}_cpu_s") / one.images for one in results
            )
            for part in _PARTS
        },
    }


def _ratios(cell: Cell, medians: dict[Cell, dict[str, float | None]]) -> dict[str, float | None]:
    def cpu_of(contender: str, num_workers: int) -> float | None:
        other = Cell(cell.images, cell.batch_size, num_workers, contender)
        return medians.get(other, {}).get("cpu_ms_per_image")

    own = medians[cell]["cpu_ms_per_image"]
    return {
        "times_less_than_pillow": _over(cpu_of(PILLOW, cell.num_workers), own),
        "times_less_than_boto3": _over(cpu_of(BOTO3, cell.num_workers), own),
        "times_ram_array": _over(own, cpu_of(RAM, cell.num_workers)),
        "times_socket_loop": _over(own, cpu_of(SOCKET, 0)),
    }


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
