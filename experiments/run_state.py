"""What is known of a run while it goes on, and what is written of it at its start and its end.

What a run does is left to `experiments.run`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml

from superdl.cost.bill import bill_of
from superdl.experiments.manifest import Manifest, describe_environment
from superdl.experiments.report import RunReport, print_report, write_report
from superdl.experiments.reporting.run_page import PAGE_NAME, write_page
from superdl.experiments.training.precision import compute_type
from superdl.experiments.training.strategies import strategy_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch
    from rich.console import Console

    from superdl.coordinator.executors.price_table import PriceTable
    from superdl.experiments.job_counters import JobCounters
    from superdl.experiments.monitoring import UtilizationMonitor
    from superdl.experiments.ranks import Ranks
    from superdl.experiments.records import EpochSummary
    from superdl.experiments.spec import Spec
    from superdl.experiments.step_times import StepTimes

__all__ = ["RunState", "say"]

_log = logging.getLogger(__name__)


def say(console: Console, line: str) -> None:
    """Print a line for people as it is."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _write_page(directory: Path, console: Console) -> None:
    """Make the page of the run. What goes wrong there is no fault of the run, which has ended as it has."""
    try:
        page = write_page(directory)
    except Exception as error:  # noqa: BLE001  # whatever drawing raises, the run's own end matters more
        _log.exception("the page of %s could not be made", directory)
        say(console, f"{PAGE_NAME} was not made ({error}); superdl report {directory} tries again")
    else:
        say(console, f"tables and plots: {page}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class RunState:
    """What is known of a run so far; also a listener, so that a failed run reports the epochs it did."""

    spec: Spec
    directory: Path
    device: torch.device
    prices: PriceTable
    ranks: Ranks
    started_at: str = field(default_factory=_now)
    start_s: float = field(default_factory=time.perf_counter)
    status: str = "finished"
    reason: str | None = None
    executor: str | None = None
    classes: tuple[str, ...] = ()
    train_samples: int = 0
    val_samples: int | None = None
    epochs: list[EpochSummary] = field(default_factory=list)
    rest: JobCounters | None = None
    notes: list[str] = field(default_factory=list)
    monitor: UtilizationMonitor | None = None
    loader_settings: dict[str, Any] = field(default_factory=dict)
    manifest: Manifest | None = None
    step_times: StepTimes | None = None
    wall_s: float | None = None

    def begin(self) -> None:
        """Write what is known at the start."""
        if not self.ranks.leads:
            return
        text = yaml.safe_dump(self.spec.to_mapping(), sort_keys=False)
        (self.directory / "spec.yaml").write_text(text, encoding="utf-8")
        self.manifest = Manifest(
            self.directory,
            self.spec,
            self.device,
            started_at=self.started_at,
            ranks=self.ranks.place.replicas,
        )

    def end(self, console: Console, *, page: bool) -> None:
        """Write and print how it went, as a ``page`` too if that is wanted."""
        self.wall_s = time.perf_counter() - self.start_s
        if not self.ranks.leads:
            return
        report = self.report()
        write_report(report, self.directory / "report.json")
        if self.manifest is not None:
            self.manifest.end(self.status, _now())
        print_report(report, console)
        if page:
            _write_page(self.directory, console)

    def compare_machines(self) -> None:
        """Note where the bill has another number of training machines than take part; all ranks call it."""
        (hosts,) = self.ranks.sums([float(self.ranks.place.local_rank == 0)])
        cost = self.spec.cost
        if cost.machine is not None and cost.machines != int(hosts):
            took_part = "1 host took" if hosts == 1 else f"{int(hosts)} hosts took"
            self.notes.append(
                f"the bill has {cost.machines} x {cost.machine} (cost.machines), and {took_part} part"
            )

    def close_account(self, rest: Callable[[], JobCounters | None]) -> None:
        """Ask what was used after the last whole epoch, while loaders are still there to tell."""
        self.rest = rest()

    def file_name(self, name: str) -> str:
        """The name of a file that each rank writes: rank 0's is the plain one."""
        return name if self.ranks.leads else f"{name}-rank{self.ranks.place.rank}"

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Nothing to keep."""

    def on_steps(self, steps: Sequence[object]) -> None:
        """Nothing to keep."""

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Keep the epoch."""
        self.epochs.append(summary)

    def report(self) -> RunReport:
        """Return all that is known, as a value."""
        wall_s = time.perf_counter() - self.start_s if self.wall_s is None else self.wall_s
        return RunReport(
            name=self.spec.name,
            status=self.status,
            reason=self.reason,
            started_at=self.started_at,
            wall_s=wall_s,
            directory=str(self.directory),
            classes=self.classes,
            train_samples=self.train_samples,
            val_samples=self.val_samples,
            epochs=tuple(self.epochs),
            spec=self.spec.to_mapping(),
            environment=describe_environment(self.device),
            notes=tuple(self.notes),
            executor=self.executor,
            utilization=None if self.monitor is None else self.monitor.utilization(),
            loader_settings=self.loader_settings,
            rest=self.rest,
            bill=bill_of(
                self.epochs,
                cost=self.spec.cost,
                executor=self.executor,
                wall_s=wall_s,
                prices=self.prices,
                rest=self.rest,
            ),
            step_times=() if self.step_times is None else tuple(self.step_times.times),
            ranks=self.ranks.place.replicas,
            strategy=strategy_name(self.spec.training.strategy, self.ranks.place),
            precision=str(compute_type(self.spec.training.precision, self.device)).removeprefix("torch."),
        )
