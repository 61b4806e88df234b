"""A comparison, its file ``compare.json``, and comparisons of runs made elsewhere.

`compare_runs` reads directories of finished runs. Their arms are the runs' names, or names given to them;
runs of one name are its repeats. `show` displays comparisons.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from superdl.experiments.comparing.figures import (
    FIGURES,
    Figure,
    RoundFigures,
    Spread,
    conclusions,
    mean_by_name,
    round_figures,
    spread_of,
)
from superdl.experiments.comparing.measured import RoundMeasured, read_json, read_measured_run
from superdl.experiments.output import now_text, write_json
from superdl.experiments.reporting.quantities import number
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "ArmReport",
    "Comparison",
    "RoundReport",
    "compare_runs",
    "is_comparison",
    "read_comparison",
    "write_comparison",
]

_REPORT = "compare.json"
_FORMAT = 2
_LEAST_PERCENT = 0.1
"""Stalls below this share of training time are in the figures, but not in the text."""
_MADE_BEFORE = (
    "The runs were made before and not interleaved: what changed on the machine between them is in the "
    "figures. Wall time is the run's own, without the start of its process."
)
_MACHINE = ("machine", "usable_cpus", "device", "device_name", "platform")


@dataclass(slots=True)
class ArmReport:
    """An arm: its settings, its concurrent trials' names, its loader's reported settings."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round (see `Round`): its figures, or why it has none. ``folder`` holds its runs."""

    number: int
    repeat: int
    arm: str
    folder: str
    figures: RoundFigures | None
    failure: str | None = None

    def phrase(self) -> str:
        """Summarise the round in one line."""
        if self.figures is None:
            return f"{self.arm} failed"
        seconds = "" if self.figures.wall_s is None else f" in {self.figures.wall_s:.1f} s"
        rate, waited = number(self.figures.images_per_s), self.figures.wait_percent
        return f"{self.arm} done{seconds}: {rate} images/s, {waited:.1f}% waiting"


@dataclass(slots=True)
class Comparison:
    """A comparison. ``status``: running, finished, interrupted or failed."""

    name: str
    started_at: str
    directory: str
    repeats: int
    warmup_epochs: int
    arms: list[ArmReport]
    rounds: list[RoundReport] = field(default_factory=list)
    status: str = "running"
    reason: str | None = None
    took_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> int:
        """The number of rounds with figures."""
        return sum(report.figures is not None for report in self.rounds)

    def figures_of(self, arm: str) -> tuple[RoundFigures, ...]:
        """Return the figures of an arm's measured rounds."""
        return tuple(
            report.figures for report in self.rounds if report.arm == arm and report.figures is not None
        )

    def spreads(self, key: str) -> dict[str, Spread | None]:
        """Return the spread of a figure for each arm; None without values."""
        return {arm.name: spread_of(self.figures_of(arm.name), key) for arm in self.arms}

    def shown(self) -> tuple[Figure, ...]:
        """Return the figures that at least one arm has."""
        return tuple(figure for figure in FIGURES if any(self.spreads(figure.key).values()))

    @property
    def of_whole_runs(self) -> frozenset[str]:
        """Keys of figures that include the warm-up; with concurrent runs, also an epoch's cost."""
        at_once = {"usd_per_epoch"} if any(arm.trials for arm in self.arms) else set()
        return frozenset({figure.key for figure in FIGURES if figure.whole} | at_once)

    def words(self) -> tuple[tuple[str, str], ...]:
        """Return sentences on what the figures show and leave out, each after its subject."""
        failed = {
            arm.name: lost
            for arm in self.arms
            if (lost := sum(report.figures is None for report in self.rounds if report.arm == arm.name))
        }
        spreads = {figure.key: self.spreads(figure.key) for figure in FIGURES}
        sentences = conclusions(spreads, self.warmup_epochs, failed=failed, whole=self.of_whole_runs)
        waits = [("Why they wait:", text) for text in map(self._told_stalls, self.arms) if text]
        return (*sentences, *waits, *(("Note:", note) for note in self.notes))

    def _told_stalls(self, arm: ArmReport) -> str:
        """Describe an arm's stalls: their causes, and shares of its training time."""
        causes = mean_by_name([figures.stall_percent_by_cause for figures in self.figures_of(arm.name)])
        shares = [f"{cause} {number(part)}%" for cause, part in causes.items() if part >= _LEAST_PERCENT]
        return f"{arm.name}: {', '.join(shares)} of training time." if shares else ""

    def to_mapping(self) -> dict[str, Any]:
        """Return the comparison and its conclusions as plain values for JSON."""
        mapping = {"format": _FORMAT} | asdict(self) | {"words": [" ".join(point) for point in self.words()]}
        for arm in mapping["arms"]:
            spreads = {figure.key: self.spreads(figure.key)[arm["name"]] for figure in FIGURES}
            arm["figures"] = {
                key: spread and {"median": spread.median, "least": spread.least, "most": spread.most}
                for key, spread in spreads.items()
            }
        return mapping


def write_comparison(comparison: Comparison, directory: Path) -> None:
    """Write ``compare.json``; a reader sees the old file or the new one."""
    write_json(comparison.to_mapping(), directory / _REPORT)


def is_comparison(directory: Path) -> bool:
    """Check whether the directory holds a comparison."""
    return (directory / _REPORT).is_file()


def read_comparison(directory: Path) -> Comparison:
    """Read a comparison written by `write_comparison`.

    Raises:
        ConfigError: there is none, or it has another version's format.
    """
    return TypeAdapter(Comparison).validate_python(read_json(directory / _REPORT, _FORMAT))


# ------------------------------------------------------------------------------ runs made elsewhere


def compare_runs(named: Sequence[str], *, warmup_epochs: int | None = None) -> Comparison:
    """Compare the runs in ``named``, each a directory or ``NAME=directory``.

    Nothing is run or written, so the comparison has no directory yet.

    Args:
        named: the runs.
        warmup_epochs: epochs to leave out of each run; None: as the runs' specs say.

    Raises:
        ConfigError: a directory holds no finished run, or the specs differ in the warm-up.
    """
    places = [_place(word) for word in named]
    runs = [read_measured_run(place) for _, place in places]
    names = [name or run.report["name"] for (name, _), run in zip(places, runs, strict=True)]
    warmups = {run.report["spec"]["compare"]["warmup_epochs"] for run in runs}
    if warmup_epochs is None and len(warmups) > 1:
        listed = ", ".join(map(str, sorted(warmups)))
        raise ConfigError(f"the runs' specs differ in compare.warmup_epochs ({listed}): say --warmup-epochs")
    warmup = warmups.pop() if warmup_epochs is None else warmup_epochs
    arms: dict[str, ArmReport] = {}
    rounds: list[RoundReport] = []
    notes = [_MADE_BEFORE]
    machines = {tuple(run.report["environment"].get(key) for key in _MACHINE) for run in runs}
    if len(machines) > 1:
        notes.append(
            f"The runs are of {len(machines)} different machines or systems: ratios compare those too."
        )
    for name, (_, place), run in zip(names, places, runs, strict=True):
        report = run.report
        if report["status"] != "finished":
            raise ConfigError(f"the run in {place} is {report['status']}: leave it out")
        if not run.after(warmup):
            raise ConfigError(
                f"of {place}, {warmup} warm-up epoch(s) leave nothing to compare; say --warmup-epochs 0"
            )
        values = {f"loader.{key}": report["spec"]["loader"][key] for key in ("kind", "batch_size")}
        arms.setdefault(name, ArmReport(name, values, settings=report["loader_settings"]))
        repeat = 1 + names[: len(rounds)].count(name)
        # A finished run was not observed from outside: use its own clock.
        figures = round_figures(RoundMeasured((run,), wall_s=report["wall_s"]), warmup)
        rounds.append(RoundReport(len(rounds) + 1, repeat, name, str(place), figures))
        notes += _notes(str(place), report, run.first_epoch)
    return Comparison(
        name="runs",
        status="finished",
        started_at=now_text(),
        directory="",
        repeats=max(round_report.repeat for round_report in rounds),
        warmup_epochs=warmup,
        arms=list(arms.values()),
        rounds=rounds,
        notes=notes,
        environment=runs[0].report["environment"],
    )


def _place(word: str) -> tuple[str, Path]:
    """Return the name, which may be empty, and the directory."""
    name, equals, rest = word.partition("=")
    return (
        (name, Path(rest).expanduser())
        if equals and not Path(word).exists()
        else ("", Path(word).expanduser())
    )


def _notes(place: str, report: Mapping[str, Any], first_epoch: int) -> Iterator[str]:
    """Yield notes on the limits of a run's report."""
    if str(report["executor"]).startswith("as the coordinator"):
        yield (
            f"{place} used a coordinator that it did not start: its CPU, and that of its cache and functions,"
            " is not counted, and its cache held what others had left."
        )
    if report["ranks"] > 1:
        yield f"{place} had {report['ranks']} ranks: their CPU is not compared, as the report has rank 0's."
    if first_epoch > 0:
        yield (
            f"{place} went on with epoch {first_epoch + 1}: its warm-up is counted from there, and its time, "
            "CPU and cost are without what was trained before."
        )
