"""The report of a run: one value, shown as a table and written as JSON with the same figures.

Measuring is left to `experiments.training`, TensorBoard to `experiments.tensorboard_log`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from experiments.monitoring.table import utilization_table
from experiments.strict_json import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from experiments.monitoring import Utilization
    from experiments.records import EpochSummary, PassSummary

__all__ = ["REPORT_FORMAT", "RunReport", "print_report", "write_report"]

REPORT_FORMAT = 1

_ABSENT = "-"
_HEADINGS = (
    "\naccuracy",
    "images\n/s",
    "wait\n(s)",
    "read\n(s)",
    "decode\n(s)",
    "compute\n(s)",
    "function\ncalls",
    "cache\nhits",
    "cache\nmisses",
)


@dataclass(frozen=True, slots=True)
class RunReport:
    """All that is known of a run at its end.

    ``status`` is ``finished``, ``interrupted`` or ``failed``; ``reason`` says why it did not finish.
    ``executor`` is how functions were run; ``None`` where the loader has none.
    """

    name: str
    status: str
    reason: str | None
    started_at: str
    wall_s: float
    directory: str
    classes: tuple[str, ...]
    train_samples: int
    val_samples: int | None
    epochs: tuple[EpochSummary, ...]
    spec: dict[str, Any]
    environment: dict[str, Any]
    notes: tuple[str, ...] = ()
    executor: str | None = None
    utilization: Utilization | None = None

    @property
    def val_accuracy(self) -> float | None:
        """The validation accuracy after the last epoch; None without validation data."""
        last = self.epochs[-1].val if self.epochs else None
        return None if last is None else last.accuracy

    @property
    def images_per_s(self) -> float | None:
        """Training images per second over all epochs, validation left out."""
        wall_s = sum(epoch.train.wall_s for epoch in self.epochs)
        return sum(epoch.train.samples for epoch in self.epochs) / wall_s if wall_s > 0 else None

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {
            "format": REPORT_FORMAT,
            **asdict(self),
            "val_accuracy": self.val_accuracy,
            "images_per_s": self.images_per_s,
        }


def write_report(report: RunReport, path: Path) -> None:
    """Write the report as JSON; a reader sees the old file or the new one, never half of it."""
    write_json(report.to_mapping(), path)


def print_report(report: RunReport, console: Console) -> None:
    """Print the table and what a reader needs to understand it."""
    if report.epochs:
        console.print(_table(report))
        console.print(
            "Seconds overlap: workers read and functions decode while the model computes. Decoding is summed "
            "over functions and counts what they do ahead. Hits and misses are samples at the first look.",
            style="dim",
            highlight=False,
        )
    if report.utilization is not None and report.epochs:
        console.print(utilization_table(report.utilization, _images(report)))
        console.print(
            "Cores in use are CPU seconds per second, of this trainer and the processes that it started; "
            "what runs elsewhere is not in them. CPU per image and memory are of all of these together.",
            style="dim",
            highlight=False,
        )
    lines = [f"run {report.name}: {report.status} in {report.wall_s:.1f} s"]
    if report.reason:
        lines.append(f"reason: {report.reason}")
    if report.val_accuracy is not None:
        lines.append(f"validation accuracy {report.val_accuracy:.4f}")
    elif report.epochs:
        lines.append("no validation data was given (data.val)")
    if report.images_per_s is not None:
        lines.append(f"training {report.images_per_s:,.0f} images/s over {len(report.epochs)} epoch(s)")
    if report.executor is not None:
        lines.append(f"functions: {report.executor}")
    lines += [f"note: {note}" for note in report.notes]
    lines.append(f"written to {report.directory}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _images(report: RunReport) -> dict[tuple[int | None, str], int]:
    """How many images each pass had, by epoch and split."""
    passes = [(one.epoch, split, figures) for one in report.epochs for split, figures in one.splits()]
    return {(epoch, split): figures.samples for epoch, split, figures in passes}


def _table(report: RunReport) -> Table:
    table = Table(title=f"{report.name}, by epoch and pass", box=SIMPLE_HEAD, padding=0)
    table.add_column("\npass", overflow="fold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", overflow="fold")  # a narrow terminal must not hide digits
    for summary in report.epochs:
        table.add_row(f"{summary.epoch + 1} train", *_cells(summary.train))
        if summary.val is not None:
            table.add_row(f"{summary.epoch + 1} val", *_cells(summary.val))
    return table


def _cells(figures: PassSummary) -> tuple[str, ...]:
    return (
        f"{figures.accuracy:.4f}",
        f"{figures.images_per_s:,.0f}",
        f"{figures.wait_s:.2f}",
        f"{figures.read_s:.2f}",
        _ABSENT if figures.decode_s is None else f"{figures.decode_s:.2f}",
        f"{figures.compute_s:.2f}",
        _ABSENT if figures.invocations is None else f"{figures.invocations:,}",
        f"{figures.hits:,}",
        f"{figures.misses:,}",
    )
