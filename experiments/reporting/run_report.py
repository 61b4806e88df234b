"""A run's report as a table, as sentences derived by fixed rules, and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.console import print_rows, say
from superdl.experiments.reporting.page import cell_text, number, percent, seconds, share, usd
from superdl.experiments.reporting.run_files import REPORT_FORMAT, RunFiles
from superdl.experiments.reporting.tables import passes_table
from superdl.super_wire.display import counted
from superdl.super_wire.stall_causes import UNKNOWN, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from superdl.cost.bill import RunBill
    from superdl.experiments.monitoring import PhaseUsage
    from superdl.experiments.records import EpochSummary, LoaderCounters, PassSummary, StepTime
    from superdl.experiments.reporting.run_files import Pass
    from superdl.sampler.stats import WorkerUse

# Waiting is negligible below the first share of a pass's time, and limits the pass from the second on.
_NO_LIMIT, _LIMIT = 0.05, 0.2


class Tile(NamedTuple):
    """A number at the top of a page, with a title and a note."""

    value: str
    title: str
    note: str


def tiles(run: RunFiles) -> list[Tile]:
    """Return tiles for throughput, waiting and cost. Unknown values are omitted."""
    bill, first, later = run.facts["bill"], run.trained[:1], run.trained[1:]
    run_tiles = []
    if first:
        of = f"{'after' if later else 'in'} {_first_epoch(run)}"
        before = f"first epoch: {_rate(first)}" if later else "training images"
        run_tiles.append(Tile(_rate(later or first), f"images/s {of}", before))
        before = f"first epoch: {percent(_waiting_share(first))}" if later else "training time"
        run_tiles.append(Tile(percent(_waiting_share(later or first)), f"waiting for data {of}", before))
    if bill and (first or bill["usd"]):
        run_tiles.append(Tile(usd(bill["usd"]), "cost of the run", _about_cost(bill)))
    return run_tiles


def findings(run: RunFiles) -> list[tuple[str, str]]:
    """Describe the run in (subject, text) pairs: first what to change, then what happened."""
    if not run.trained:
        return [_outcome(run)]
    change = ("What to change:", _change(run))
    return [change, _outcome(run), ("Accuracy:", _accuracy(run)), _waiting(run)]


def _outcome(run: RunFiles) -> tuple[str, str]:
    took = f"{_epochs(run)} in {seconds(run.facts['wall_s'])}"
    if run.status == "finished":
        return "Finished", f"{took}."
    if run.status == "running":
        return "Running, or killed:", f"{took} so far."
    return run.status.capitalize(), f"after {took}: {run.facts['reason']}."


def _epochs(run: RunFiles) -> str:
    # For a resumed run, include the first epoch's number.
    planned = run.facts["spec"]["epochs"]
    done = [train_pass.epoch + 1 for train_pass in run.trained]
    if done and done[0] > 1:
        return f"epoch{f's {done[0]} to' if len(done) > 1 else ''} {done[-1]} of {planned}"
    return counted(len(done), "epoch") if planned == len(done) else f"{len(done)} of {planned} epochs"


def _accuracy(run: RunFiles) -> str:
    if not run.validated:
        return "not measured, because no validation finished (see data.val and training.validate_every)."
    end = run.validated[-1]
    best = max(run.validated, key=lambda epoch_pass: epoch_pass.metrics["accuracy"])
    images = counted(end.metrics["samples"], "validation image")
    accuracy, top5 = percent(end.metrics["accuracy"]), end.metrics["top5_accuracy"]
    sentence = f"{accuracy} of {images} after epoch {end.epoch + 1}."
    if top5 is not None:
        sentence += f" Top-5: {percent(top5)}."
    if best.epoch != end.epoch:
        sentence += f" The best was epoch {best.epoch + 1} with {percent(best.metrics['accuracy'])}."
    return sentence


def _rate(passes: Sequence[Pass]) -> str:
    return number(share(_sum(passes, "samples"), _sum(passes, "wall_s")))


def _sum(passes: Sequence[Pass], name: str) -> float:
    return sum(epoch_pass.metrics[name] or 0.0 for epoch_pass in passes)


def _waiting(run: RunFiles) -> tuple[str, str]:
    first, later = run.trained[:1], run.trained[1:]
    sentence = f"{percent(_waiting_share(first))} of the time in {_first_epoch(run)}{_why(first)}"
    if later:
        sentence += f", {percent(_waiting_share(later))} in later epochs{_why(later)}"
    return "Waiting for data:", f"{sentence}."


def _first_epoch(run: RunFiles) -> str:
    epoch = run.trained[0].epoch
    return f"epoch {epoch + 1}" if epoch else "the first epoch"


def _waiting_share(passes: Sequence[Pass]) -> float:
    return share(_sum(passes, "wait_s"), _sum(passes, "wall_s")) or 0.0


def _main_cause(passes: Sequence[Pass]) -> tuple[str, float] | None:
    """Return the main cause of waiting and the seconds waited, or None if waiting is negligible."""
    waits: Counter[str] = Counter()
    for epoch_pass in passes:
        waits.update(epoch_pass.stalls)
    return next(iter(waits.most_common(1)), None) if _waiting_share(passes) >= _NO_LIMIT else None


def _why(passes: Sequence[Pass]) -> str:
    cause = _main_cause(passes)
    return f", mostly because {WAITS[cause[0]].meaning} ({seconds(cause[1])})" if cause else ""


def _change(run: RunFiles) -> str:
    # Later epochs come first, because most time is spent there.
    first, later = run.trained[:1], run.trained[1:]
    for passes, where, are in ((later, "Later epochs", "are"), (first, "The first epoch", "is")):
        waited = _waiting_share(passes)
        if waited >= _NO_LIMIT:
            cause = _main_cause(passes)
            remedy = WAITS[cause[0] if cause else UNKNOWN].remedy(run.setup)
            degree = "could be a little faster" if waited < _LIMIT else f"{are} limited by data"
            return f"{where} {degree}: try {remedy}."
    return "nothing. Data does not limit training."


def _about_cost(bill: Mapping[str, Any]) -> str:
    absent = [line["name"] for line in bill["lines"] if line["usd"] is None]
    per_million = bill["usd_per_million_images"] if bill["usd"] else None
    parts = [] if per_million is None else [f"{usd(per_million)} for a million training images"]
    parts += [f"without {', '.join(absent)}: no price known"] if absent else []
    return "; ".join(parts) or "no priced services"


@dataclass(frozen=True, slots=True)
class LearningPoint:
    """Mean loss and accuracy of several training steps. The last step ends after ``epochs_done`` epochs."""

    epochs_done: float
    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class HostUsage:
    """CPU seconds that a remote host's worker used during training."""

    host: str
    slots: int
    cpu_s: float


def host_usages(before: Iterable[WorkerUse], after: Iterable[WorkerUse]) -> tuple[HostUsage, ...]:
    """Return each remote worker's CPU time between two readings. A restarted worker counts from zero."""
    cpu_before = {worker.name: worker.cpu_s for worker in before}
    usages = []
    for worker in after:
        used_s = worker.cpu_s - cpu_before.get(worker.name, 0.0)
        if worker.name != "local":  # part of the coordinator's CPU
            usages.append(HostUsage(worker.name, worker.slots, used_s if used_s >= 0 else worker.cpu_s))
    return tuple(usages)


@dataclass(slots=True)
class RunReport:
    """The content of a run's report, collected during the run. docs/runs.md describes the fields."""

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
    hosts: tuple[HostUsage, ...] = ()
    learning: list[LearningPoint] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    executor: str | None = None
    phases: tuple[PhaseUsage, ...] | None = None
    loader_settings: dict[str, Any] = field(default_factory=dict)
    rest: LoaderCounters | None = None
    bill: RunBill | None = None
    ranks: int = 1
    model: str | None = None
    strategy: str | None = None
    precision: str | None = None
    step_times: tuple[StepTime, ...] = ()

    @property
    def validation(self) -> PassSummary | None:
        """The last validation pass, or None if there was none."""
        return next((epoch.val for epoch in reversed(self.epochs) if epoch.val is not None), None)

    @property
    def val_accuracy(self) -> float | None:
        """The accuracy of the last validation, or None if there was none."""
        return None if self.validation is None else self.validation.accuracy

    @property
    def first_batch_s(self) -> float | None:
        """Seconds from the run's start to its first training batch, or None if there was none."""
        start = next((phase for phase in self.phases or () if phase.epoch is None), None)
        if start is None or not self.epochs:
            return None
        return start.wall_s + self.epochs[0].train.first_batch_s

    @property
    def images_per_s(self) -> float | None:
        """Training images per second over all epochs, excluding validation."""
        wall_s = sum(epoch.train.wall_s for epoch in self.epochs)
        return sum(epoch.train.samples for epoch in self.epochs) / wall_s if wall_s > 0 else None

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        settings = {
            name: value if value is None or isinstance(value, bool | int | float | str) else str(value)
            for name, value in self.loader_settings.items()
        }
        fields = asdict(self)
        phases = fields.pop("phases")
        return {
            "format": REPORT_FORMAT,
            **fields,
            "utilization": phases and {"phases": phases},
            "loader_settings": settings,
            "val_accuracy": self.val_accuracy,
            "val_top5_accuracy": None if self.validation is None else self.validation.top5_accuracy,
            "first_batch_s": self.first_batch_s,
            "images_per_s": self.images_per_s,
        }


def print_report(report: RunReport, console: Console) -> None:
    """Print a table of the passes, followed by the page's findings."""
    run = RunFiles(Path(report.directory), report.to_mapping())
    passes = passes_table(run)
    if passes is not None:
        # Fit 80 columns by omitting some of them, and by printing each word of a head on its own line.
        printed = [at for at, head in enumerate(passes.heads) if not head.startswith(("steps", "skipped"))]
        heads = [passes.heads[at].replace(" ", "\n") for at in printed]
        rows = [[cell_text(row[at]) for at in printed] for row in passes.rows]
        print_rows(console, heads, rows, title=f"{report.name}, by epoch and pass")
    lines = [f"{tile.value} {tile.title} ({tile.note})" for tile in tiles(run)]
    lines += [" ".join(point) for point in findings(run)]
    lines += [f"Note: {note}" for note in report.notes]
    for line in (*lines, f"Written to {report.directory}"):
        say(console, line)
