"""The report of a run as a table, as sentences from fixed rules, and as JSON with the same figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.console import print_rows, say
from superdl.experiments.reporting.page import ABSENT, count, number, percent, seconds, share, usd
from superdl.experiments.reporting.run_files import REPORT_FORMAT, RunFiles
from superdl.super_wire.waits import UNKNOWN, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from superdl.cost.bill import RunBill
    from superdl.experiments.monitoring import Utilization
    from superdl.experiments.records import EpochSummary, LoaderCounters, PassSummary, StepTime
    from superdl.experiments.reporting.run_files import Pass
    from superdl.sampler.stats import WorkerUse

# Waiting for a smaller share of a pass does not matter; waiting for a larger one limits the pass.
_NO_LIMIT, _LIMIT = 0.05, 0.2


class Tile(NamedTuple):
    """A figure at the top of a page, with its value, its title and a note."""

    value: str
    title: str
    note: str


def tiles(run: RunFiles) -> list[Tile]:
    """Return tiles for throughput, waiting and cost, where known."""
    bill, first, later = run.facts.get("bill"), run.trained[:1], run.trained[1:]
    run_tiles = []
    if first:
        of = "of epochs after the first" if later else f"of {_first_epoch(run)}"
        before = f"first epoch: {_rate(first)}" if later else "training images"
        run_tiles.append(Tile(_rate(later or first), f"images/s {of}", before))
        before = f"first epoch: {percent(_waiting_share(first))}" if later else "training time"
        run_tiles.append(Tile(percent(_waiting_share(later or first)), f"waiting for data, {of}", before))
    if bill:
        run_tiles.append(Tile(usd(bill["usd"]), "cost of the run", _about_cost(bill)))
    return run_tiles


def findings(run: RunFiles) -> list[tuple[str, str]]:
    """Describe the run in (subject, text) pairs: what to change, then what happened."""
    if not run.trained:
        return [_outcome(run)]
    change = ("What to change:", _change(run))
    return [change, _outcome(run), ("Accuracy:", _accuracy(run)), _waiting(run), _first_batch(run)]


def _outcome(run: RunFiles) -> tuple[str, str]:
    if not run.facts:
        return "Unknown:", "report.json cannot be read; the figures shown are from the other files."
    took = _epochs(run)
    if "wall_s" in run.facts:
        took += f" in {seconds(run.facts['wall_s'])}"
    if run.status == "finished":
        return "Finished", f"{took}."
    if run.status == "running":
        return "Running, or killed:", f"{took} so far."
    return run.status.capitalize(), f"after {took}: {run.facts.get('reason') or 'the reason is not known'}."


def _epochs(run: RunFiles) -> str:
    # A resumed run states its first epoch.
    planned = run.spec.get("epochs")
    done = [train_pass.epoch + 1 for train_pass in run.trained]
    if done and done[0] > 1:
        return f"epoch{f's {done[0]} to' if len(done) > 1 else ''} {done[-1]} of {planned}"
    return count(len(done), "epoch") if planned in {None, len(done)} else f"{len(done)} of {planned} epochs"


def _accuracy(run: RunFiles) -> str:
    validated = [epoch_pass for epoch_pass in run.passes if epoch_pass.split == "val"]
    if not validated:
        return "not measured, because no validation finished (data.val, training.validate_every)."
    end, best = validated[-1], max(validated, key=lambda epoch_pass: epoch_pass.figures["accuracy"])
    images = count(end.figures["samples"], "validation image")
    accuracy, top5 = percent(end.figures["accuracy"]), end.figures.get("top5_accuracy")
    sentence = f"{accuracy} of {images} after epoch {end.epoch + 1}."
    if top5 is not None:
        sentence += f" Top-5: {percent(top5)}."
    if best.epoch != end.epoch:
        sentence += f" The best was epoch {best.epoch + 1} with {percent(best.figures['accuracy'])}."
    return sentence


def _rate(passes: Sequence[Pass]) -> str:
    return number(share(_sum(passes, "samples"), _sum(passes, "wall_s")))


def _sum(passes: Sequence[Pass], name: str) -> float:
    return sum(epoch_pass.figures[name] or 0.0 for epoch_pass in passes)


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
    """Return the main cause of waiting and its seconds, or None if negligible or unknown."""
    waits: Counter[str] = Counter()
    for epoch_pass in passes:
        waits.update(epoch_pass.stalls)
    return next(iter(waits.most_common(1)), None) if _waiting_share(passes) >= _NO_LIMIT else None


def _why(passes: Sequence[Pass]) -> str:
    cause = _main_cause(passes)
    return f", mostly because {WAITS[cause[0]].meaning} ({seconds(cause[1])})" if cause else ""


def _change(run: RunFiles) -> str:
    # Later epochs count most, so they come first.
    first, later = run.trained[:1], run.trained[1:]
    for passes, where, are in ((later, "Later epochs", "are"), (first, "The first epoch", "is")):
        waited = _waiting_share(passes)
        if waited >= _NO_LIMIT:
            cause = _main_cause(passes)
            remedy = WAITS[cause[0] if cause else UNKNOWN].remedy
            degree = "could be a little faster" if waited < _LIMIT else f"{are} limited by data"
            return f"{where} {degree}: try {remedy}."
    return "nothing. Data does not limit training."


def _first_batch(run: RunFiles) -> tuple[str, str]:
    sentence = f"{seconds(run.trained[0].figures['first_batch_s'])} after {_first_epoch(run)} began"
    from_start_s = run.facts.get("first_batch_s")
    if from_start_s is not None:
        sentence += (
            f", {seconds(from_start_s)} after the start of the run, which also opens the model and data"
        )
    return "First batch:", f"{sentence}."


def _about_cost(bill: Mapping[str, Any]) -> str:
    absent = [line["name"] for line in bill["lines"] if line["usd"] is None]
    per_million = bill["usd_per_million_images"] if bill["usd"] else None
    parts = [] if per_million is None else [f"{usd(per_million)} for a million training images"]
    parts += [f"without {', '.join(absent)}: no price known"] if absent else []
    return "; ".join(parts) or "no priced services"


@dataclass(frozen=True, slots=True)
class HostUsage:
    """CPU use of a host's worker from the first training step to the end of the last epoch."""

    host: str
    slots: int
    wall_s: float
    cpu_s: float
    cpu_cores: float  # CPU seconds per second of wall_s


def host_usages(
    before: Iterable[WorkerUse], after: Iterable[WorkerUse], wall_s: float
) -> tuple[HostUsage, ...]:
    """Return the CPU use of each remote host's worker between two readings, by name."""
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
    """Everything known about a run, gathered while it runs. docs/runs.md describes it."""

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
        """The last validation, or None if there was none."""
        return next((epoch.val for epoch in reversed(self.epochs) if epoch.val is not None), None)

    @property
    def val_accuracy(self) -> float | None:
        """The accuracy of the last validation, or None if there was none."""
        return None if self.validation is None else self.validation.accuracy

    @property
    def first_batch_s(self) -> float | None:
        """Seconds from the start of the run to its first training batch, or None if there was none."""
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
    """Print the table with an explanation, then the same findings as on the page."""
    if report.epochs:
        heads = ("\npass", *_cells(report.epochs[0].train))
        rows = [
            (f"{epoch.epoch + 1} {split}", *_cells(figures).values())
            for epoch in report.epochs
            for split, figures in epoch.splits()
        ]
        print_rows(console, heads, rows, title=f"{report.name}, by epoch and pass")
        console.print(
            "Seconds overlap, because workers read and functions decode ahead while the model computes. "
            "Hits, misses and reads from the store count samples when they are first looked up.",
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
