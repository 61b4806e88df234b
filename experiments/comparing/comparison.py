"""A comparison, its file ``compare.json``, and comparisons of runs made elsewhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from superdl.experiments.comparing.figures import (
    FIGURES,
    Figure,
    RoundFigures,
    RoundMeasured,
    Spread,
    mean_by_name,
    round_figures,
    spread_of,
)
from superdl.experiments.output import now_text, write_json
from superdl.experiments.reporting.page import number
from superdl.experiments.reporting.run_files import read_format, read_run
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FILE = "compare.json"
_FORMAT = 3
_LEAST_PERCENT = 0.1  # stalls below this share of training time are in the figures, but not in the text
_MADE_BEFORE = (
    "These runs were made earlier and were not interleaved, so changes on the machine between them affect "
    "the figures. Wall time is measured by the run itself, without the start of its process."
)

# Runs that differ in one of these facts are of different machines.
_MACHINE = ("platform", "device_name", "usable_cpus")
_OTHER_MACHINES = "The runs used different machines; the machine shown is that of the first run."


@dataclass(slots=True)
class ArmReport:
    """An arm, with its settings and the names of its concurrent trials."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round (see `Round`) with its figures. Its runs are in ``folder``."""

    number: int
    repeat: int
    arm: str
    folder: str
    figures: RoundFigures


@dataclass(slots=True)
class Comparison:
    """A comparison, whose ``status`` is running, finished, interrupted or failed."""

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

    def figures_of(self, arm: str) -> tuple[RoundFigures, ...]:
        """Return the figures of an arm's measured rounds."""
        return tuple(report.figures for report in self.rounds if report.arm == arm)

    def spreads(self, key: str) -> dict[str, Spread | None]:
        """Return the spread of a figure for each arm, or None if the arm has no values."""
        return {arm.name: spread_of(self.figures_of(arm.name), key) for arm in self.arms}

    def shown(self) -> tuple[Figure, ...]:
        """Return the figures that at least one arm has."""
        shown = (figure for figure in FIGURES if any(self.spreads(figure.key).values()))
        # The cost of concurrent trials is that of their whole runs.
        at_once = any(len(arm.trials) > 1 for arm in self.arms)
        return tuple(
            figure._replace(whole=True) if at_once and figure.key == "usd_per_epoch" else figure
            for figure in shown
        )

    def words(self) -> Iterator[tuple[str, str]]:
        """Yield (subject, sentence) pairs on what the figures show and what they leave out."""
        repeats = {arm.name: len(figures) for arm in self.arms if (figures := self.figures_of(arm.name))}
        yield "Warm-up:", self._about_warmup()
        once = [name for name, count in repeats.items() if count == 1]
        if len(repeats) > 1 and once:
            text = f"{', '.join(once)} ran only once, so the spread is unknown (use --repeats 3)."
            yield "Chance:", text
        for arm in self.arms:
            causes = mean_by_name([figures.stall_percent_by_cause for figures in self.figures_of(arm.name)])
            parts = [f"{cause} {number(part)}%" for cause, part in causes.items() if part >= _LEAST_PERCENT]
            if parts:
                yield "Why they waited:", f"{arm.name}: {', '.join(parts)} of training time."
        yield from (("Note:", note) for note in self.notes)

    def _about_warmup(self) -> str:
        if not self.warmup_epochs:
            return "no epoch is excluded, so every figure includes the cold start."
        which = "the first epoch" if self.warmup_epochs == 1 else f"the first {self.warmup_epochs} epochs"
        titles = ", ".join(figure.title for figure in self.shown() if figure.whole)
        return f"only figures of the whole run include {which} of each run: {titles}."

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

    def write(self, directory: Path) -> None:
        """Write ``compare.json`` atomically: a reader sees either the old file or the new one."""
        write_json(self.to_mapping(), directory / _FILE)


def is_comparison(directory: Path) -> bool:
    """Check whether the directory contains a comparison."""
    return (directory / _FILE).is_file()


def read_comparison(directory: Path) -> Comparison:
    """Read a comparison from its directory."""
    return TypeAdapter(Comparison).validate_python(read_format(directory / _FILE, _FORMAT))


# ------------------------------------------------------------------------------ runs made elsewhere


def compare_runs(named: Sequence[str], *, warmup_epochs: int | None = None) -> Comparison:
    """Compare finished runs, without running or writing anything.

    Each of ``named`` is a directory or ``NAME=directory``. Runs of the same name are repeats of one arm.
    ``warmup_epochs`` of each run are left out; by default, the largest number in the specs.

    Raises:
        ConfigError: a directory contains no finished run, or a run has no epoch after the warm-up.
    """
    places = [_place(word) for word in named]
    runs = [read_run(place) for _, place in places]
    warmup = warmup_epochs
    if warmup is None:
        warmup = max(run.facts["spec"]["compare"]["warmup_epochs"] for run in runs)
    arms: dict[str, ArmReport] = {}
    rounds: list[RoundReport] = []
    notes = [_MADE_BEFORE]
    for (name, place), run in zip(places, runs, strict=True):
        if run.status != "finished":
            raise ConfigError(f"the run in {place} has status {run.status}: leave it out")
        if not run.passes_after(warmup):
            raise ConfigError(
                f"{place}: {warmup} warm-up epoch(s) leave no epoch to compare; use --warmup-epochs 0"
            )
        values = {f"loader.{key}": run.facts["spec"]["loader"][key] for key in ("kind", "batch_size")}
        arm = arms.setdefault(name or run.name, ArmReport(name or run.name, values))
        repeat = 1 + sum(report.arm == arm.name for report in rounds)
        # A finished run was not observed from outside: use its own clock.
        measured = RoundMeasured((run,), wall_s=run.facts["wall_s"])
        figures = round_figures(measured, warmup)
        rounds.append(RoundReport(len(rounds) + 1, repeat, arm.name, str(place), figures))
        notes += notes_of(str(place), measured, warmup)
    machines = [tuple(run.facts["environment"].get(name) for name in _MACHINE) for run in runs]
    if len(set(machines)) > 1:
        notes.append(_OTHER_MACHINES)
    return Comparison(
        name="runs",
        status="finished",
        started_at=now_text(),
        directory="",
        repeats=max(report.repeat for report in rounds),
        warmup_epochs=warmup,
        arms=list(arms.values()),
        rounds=rounds,
        notes=notes,
        environment=runs[0].facts["environment"],
    )


def _place(word: str) -> tuple[str, Path]:
    """Return the name, which may be empty, and the directory."""
    name, equals, rest = word.partition("=")
    # A directory's own name may contain "=".
    is_named = equals and not Path(word).exists()
    return (name, Path(rest).expanduser()) if is_named else ("", Path(word).expanduser())


def notes_of(name: str, measured: RoundMeasured, warmup_epochs: int) -> Iterator[str]:
    """Yield what a round's figures leave out."""
    run = measured.runs[0]
    executor = str(run.facts["executor"] or "local")
    if executor.startswith("as the coordinator") and not measured.services_cpu_s:
        yield (
            f"{name} used a coordinator that it did not start. The CPU time of that coordinator, its cache "
            "and its functions is not counted, and its cache contained data left by others."
        )
    elif executor != "local" and not measured.services_cpu_s:
        yield f"{name} ran functions with {executor}: their CPU time is not counted."
    if run.ranks > 1:
        yield f"{name} had {run.ranks} ranks: CPU is not compared, as the report covers only rank 0."
    elif warmup_epochs and measured.services_cpu_s:
        yield (
            f"{name} shared a coordinator between its trials, whose CPU is known only for the whole round: "
            "CPU per image is compared with compare.warmup_epochs=0 alone."
        )
