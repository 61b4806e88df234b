"""The report of a run: one value, shown as a table and written as JSON with the same figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from superdl.experiments.monitoring.monitor import utilization_table
from superdl.experiments.reporting.quantities import ABSENT, count, usd

if TYPE_CHECKING:
    from rich.console import Console

    from superdl.cost.bill import RunBill
    from superdl.experiments.monitoring import Utilization
    from superdl.experiments.records import EpochSummary, LoaderCounters, PassSummary, StepTime

__all__ = ["REPORT_FORMAT", "RunReport", "print_report"]

REPORT_FORMAT = 2


@dataclass(slots=True)
class RunReport:
    """All that is known of a run, gathered while it goes on.

    ``status`` is ``finished``, ``interrupted`` or ``failed``; ``reason`` says why it did not finish.
    ``executor`` is how functions were run; ``None`` where the loader has none. ``loader_settings`` are what
    the training loader was opened with. ``rest`` is what was counted after the last pass of either split, or
    in one that did not end; ``None``: nobody told. The figures of passes are over all ``ranks``, those of
    ``utilization`` of rank 0 and what it started.
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
    loader_settings: dict[str, Any] = field(default_factory=dict)
    rest: LoaderCounters | None = None
    bill: RunBill | None = None
    ranks: int = 1
    strategy: str | None = None
    precision: str | None = None
    step_times: tuple[StepTime, ...] = ()

    @property
    def validated(self) -> tuple[int, PassSummary] | None:
        """The last epoch that was validated, and that validation; None if none was."""
        return next(((one.epoch, one.val) for one in reversed(self.epochs) if one.val is not None), None)

    @property
    def val_accuracy(self) -> float | None:
        """The accuracy of the last validation; None if there was none."""
        return None if self.validated is None else self.validated[1].accuracy

    @property
    def first_batch_s(self) -> float | None:
        """Seconds from the start of the run to its first training batch; None if there was none."""
        phases = () if self.utilization is None else self.utilization.phases
        start = next((phase for phase in phases if phase.epoch is None), None)
        if start is None or not self.epochs:
            return None
        return start.wall_s + self.epochs[0].train.first_batch_s

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
            "loader_settings": {name: _plain(value) for name, value in self.loader_settings.items()},
            "val_accuracy": self.val_accuracy,
            "val_top5_accuracy": None if self.validated is None else self.validated[1].top5_accuracy,
            "first_batch_s": self.first_batch_s,
            "images_per_s": self.images_per_s,
        }


def _plain(value: object) -> object:
    """A setting as JSON has it; what it has not, by its name."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def print_report(report: RunReport, console: Console) -> None:
    """Print the table and what a reader needs to understand it."""
    if report.epochs:
        console.print(_table(report))
        _print_hint(
            console,
            "Seconds overlap: workers read and functions decode while the model computes. Decoding is summed "
            "over functions and counts what they do ahead. Hits, misses and reads from the store are samples "
            "at the first look.",
        )
    if report.utilization is not None and report.epochs:
        console.print(utilization_table(report.utilization, _images(report)))
        together = (
            "CPU per image and memory are of all of these together."
            if report.ranks == 1
            else "CPU per image is left out, since this is rank 0's CPU and the images are of all ranks."
        )
        _print_hint(
            console,
            "Cores in use are CPU seconds per second, of this trainer and the processes that it started; "
            f"what runs elsewhere is not in them. {together}",
        )
    for line in _lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _print_hint(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False)


def _lines(report: RunReport) -> list[str]:
    """What is said below the tables, a line each."""
    lines = [f"run {report.name}: {report.status} in {report.wall_s:.1f} s"]
    if report.reason:
        lines.append(f"reason: {report.reason}")
    lines += _accuracy_lines(report)
    if report.images_per_s is not None:
        lines.append(f"training {report.images_per_s:,.0f} images/s over {len(report.epochs)} epoch(s)")
    if report.executor is not None:
        lines.append(f"functions: {report.executor}")
    waits: dict[str, float] = {}
    for stalls in (figures.stalls for one in report.epochs for _, figures in one.splits()):
        for cause, total in ({} if stalls is None else stalls.causes).items():
            waits[cause] = waits.get(cause, 0.0) + total.wait_s
    if waits:
        longest_first = sorted(waits.items(), key=lambda item: -item[1])
        told = [f"{cause.replace('_', ' ')} {wait_s:.2f} s" for cause, wait_s in longest_first]
        lines.append(f"waited for: {', '.join(told)}")
    if report.bill is not None and report.bill.usd:
        parts = [f"{line.name} {usd(line.usd)}" for line in report.bill.lines if line.usd]
        lines.append(f"cost {usd(report.bill.usd)}: {', '.join(parts)}")
    return [*lines, *(f"note: {note}" for note in report.notes), f"written to {report.directory}"]


def _accuracy_lines(report: RunReport) -> list[str]:
    """What the last validation came to, or why there was none."""
    if report.validated is None:
        if not report.epochs:
            return []
        if report.val_samples is None:
            return ["no validation data was given (data.val)"]
        return ["no epoch was validated" + (" (training.validate_every)" * (report.status == "finished"))]
    epoch, val = report.validated
    top5 = "" if val.top5_accuracy is None else f", top-5 {val.top5_accuracy:.4f}"
    when = "" if epoch == report.epochs[-1].epoch else f", after epoch {epoch + 1}"
    return [f"validation accuracy {val.accuracy:.4f}{top5}{when}"]


def _images(report: RunReport) -> dict[tuple[int | None, str], int]:
    """How many images each pass had whose CPU is known, by epoch and split: none of several ranks."""
    if report.ranks > 1:
        return {}
    passes = [(one.epoch, split, figures) for one in report.epochs for split, figures in one.splits()]
    return {(epoch, split): figures.samples for epoch, split, figures in passes}


def _table(report: RunReport) -> Table:
    table = Table(title=f"{report.name}, by epoch and pass", box=SIMPLE_HEAD, padding=0)
    table.add_column("\npass", overflow="fold")
    for heading in _cells(report.epochs[0].train):
        table.add_column(heading, justify="right", overflow="fold")  # a narrow terminal must not hide digits
    for summary in report.epochs:
        for split, figures in summary.splits():
            table.add_row(f"{summary.epoch + 1} {split}", *_cells(figures).values())
    return table


def _cells(figures: PassSummary) -> dict[str, str]:
    """A row of the table, by its headings."""
    return {
        "\naccuracy": f"{figures.accuracy:.4f}",
        "images\n/s": f"{figures.images_per_s:,.0f}",
        "wait\n(s)": f"{figures.wait_s:.2f}",
        "read\n(s)": f"{figures.read_s:.2f}",
        "decode\n(s)": ABSENT if figures.decode_s is None else f"{figures.decode_s:.2f}",
        "compute\n(s)": f"{figures.compute_s:.2f}",
        "function\ncalls": count(figures.invocations),
        "cache\nhits": count(figures.hits),
        "cache\nmisses": count(figures.misses),
        "store\nreads": count(figures.straight),
    }
