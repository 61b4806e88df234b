"""The report of a run, as a table and as JSON with the same figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.experiments.console import print_rows, say
from superdl.experiments.reporting.quantities import ABSENT, count
from superdl.experiments.reporting.run_files import REPORT_FORMAT, RunFiles
from superdl.experiments.reporting.run_findings import findings, tiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from superdl.cost.bill import RunBill
    from superdl.experiments.monitoring import Utilization
    from superdl.experiments.records import EpochSummary, LoaderCounters, PassSummary, StepTime
    from superdl.sampler.stats import WorkerUse


@dataclass(frozen=True, slots=True)
class HostUsage:
    """The use of a host's worker from the first training step to the last epoch's end."""

    host: str
    slots: int
    wall_s: float
    cpu_s: float
    cpu_cores: float  # CPU seconds per second of wall_s


def host_usages(
    before: Iterable[WorkerUse], after: Iterable[WorkerUse], wall_s: float
) -> tuple[HostUsage, ...]:
    """Return the use of each remote host's worker, by name, between two readings."""
    # A worker that was started in between counts from its start.
    cpu_before = {worker.name: worker.cpu_s for worker in before}
    usages = []
    for worker in after:
        used_s = worker.cpu_s - cpu_before.get(worker.name, 0.0)
        # The counter of a worker that restarted begins at zero.
        cpu_s = used_s if used_s >= 0 else worker.cpu_s
        # The CPU of the coordinator's own worker is part of the coordinator's.
        if worker.name != "local" and wall_s > 0:
            usages.append(HostUsage(worker.name, worker.slots, wall_s, cpu_s, cpu_s / wall_s))
    return tuple(usages)


@dataclass(slots=True)
class RunReport:
    """Everything known about a run, gathered while it runs; docs/runs.md describes it."""

    name: str
    started_at: str
    directory: str
    spec: dict[str, Any]
    environment: dict[str, Any]
    status: str = "running"
    reason: str | None = None
    wall_s: float = 0.0
    classes: tuple[str, ...] = ()
    train_samples: int = 0
    val_samples: int | None = None
    epochs: tuple[EpochSummary, ...] = ()
    notes: tuple[str, ...] = ()
    executor: str | None = None
    utilization: Utilization | None = None
    loader_settings: dict[str, Any] = field(default_factory=dict)
    rest: LoaderCounters | None = None
    bill: RunBill | None = None
    ranks: int = 1
    model: str | None = None
    strategy: str | None = None
    precision: str | None = None
    step_times: tuple[StepTime, ...] = ()
    hosts: tuple[HostUsage, ...] = ()

    @property
    def validation(self) -> PassSummary | None:
        """The last validation; None if there was none."""
        return next((epoch.val for epoch in reversed(self.epochs) if epoch.val is not None), None)

    @property
    def val_accuracy(self) -> float | None:
        """The accuracy of the last validation; None if there was none."""
        return None if self.validation is None else self.validation.accuracy

    @property
    def first_batch_s(self) -> float | None:
        """Seconds from the run's start to its first training batch; None without one."""
        phases = () if self.utilization is None else self.utilization.phases
        start = next((phase for phase in phases if phase.epoch is None), None)
        if start is None or not self.epochs:
            return None
        return start.wall_s + self.epochs[0].train.first_batch_s

    @property
    def images_per_s(self) -> float | None:
        """Training images per second over all epochs, without validation."""
        wall_s = sum(epoch.train.wall_s for epoch in self.epochs)
        return sum(epoch.train.samples for epoch in self.epochs) / wall_s if wall_s > 0 else None

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        settings = {
            name: value if value is None or isinstance(value, bool | int | float | str) else str(value)
            for name, value in self.loader_settings.items()
        }
        return {
            "format": REPORT_FORMAT,
            **asdict(self),
            "loader_settings": settings,
            "val_accuracy": self.val_accuracy,
            "val_top5_accuracy": None if self.validation is None else self.validation.top5_accuracy,
            "first_batch_s": self.first_batch_s,
            "images_per_s": self.images_per_s,
        }


def print_report(report: RunReport, console: Console) -> None:
    """Print the table with its explanation, then the same findings as the page."""
    if report.epochs:
        heads = ("\npass", *_cells(report.epochs[0].train))
        rows = [
            (f"{epoch.epoch + 1} {split}", *_cells(figures).values())
            for epoch in report.epochs
            for split, figures in epoch.splits()
        ]
        print_rows(console, heads, rows, title=f"{report.name}, by epoch and pass")
        console.print(
            "Seconds overlap: workers read and functions decode while the model computes, and ahead. Hits, "
            "misses and reads from the store are samples at the first look.",
            style="dim",
            highlight=False,
        )
    run = RunFiles(Path(report.directory), report.to_mapping())
    lines = [f"{tile.value} {tile.title} ({tile.note})" for tile in tiles(run)]
    lines += [" ".join(point) for point in findings(run)]
    for host in report.hosts:
        cores = f"{host.cpu_cores:.2f} cores for {host.slots} slots ({host.cpu_s:.1f} s)"
        lines.append(f"CPU of the worker {host.host}: {cores}")
    lines += [f"Note: {note}" for note in report.notes]
    for line in (*lines, f"Written to {report.directory}"):
        say(console, line)


def _cells(figures: PassSummary) -> dict[str, str]:
    return {
        "\ntop-1": f"{figures.accuracy:.4f}",
        "images\n/s": f"{figures.images_per_s:,.0f}",
        "wait\n(s)": f"{figures.wait_s:.2f}",
        "read\n(s)": f"{figures.read_s:.2f}",
        "fetch\n(s)": ABSENT if figures.fetch_s is None else f"{figures.fetch_s:.2f}",
        "decode\n(s)": ABSENT if figures.decode_s is None else f"{figures.decode_s:.2f}",
        "compute\n(s)": f"{figures.compute_s:.2f}",
        "\ncalls": count(figures.invocations),
        "cache\nhits": count(figures.hits),
        "cache\nmisses": count(figures.misses),
        "store\nreads": count(figures.straight),
    }
