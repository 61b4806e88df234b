"""Read and write comparisons as ``compare.json``, and compare existing runs."""

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
from superdl.super_wire.display import counted
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FILE = "compare.json"
_FORMAT = 3
_MIN_PERCENT = 0.1  # causes with less waiting are omitted
_NOT_INTERLEAVED = (
    "These runs were not interleaved, so changes on the machine between them affect the figures. Wall time "
    "is measured by each run, without the start of its process."
)

# Runs that differ in one of these facts used different machines.
_MACHINE = ("platform", "device_name", "usable_cpus")
_OTHER_MACHINES = "The runs used different machines. The machine shown is the first run's."


@dataclass(slots=True)
class ArmReport:
    """An arm's settings, and the names of its concurrent trials."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """The figures of a `Round`. Its runs are in ``folder``."""

    number: int
    repeat: int
    arm: str
    folder: str
    figures: RoundFigures


@dataclass(slots=True)
class Comparison:
    """A comparison and its results. ``status`` is running, finished, interrupted or failed."""

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
        """Return the figures of an arm's rounds."""
        return tuple(report.figures for report in self.rounds if report.arm == arm)

    def spreads(self, key: str) -> dict[str, Spread | None]:
        """Return the spread of a figure for each arm, or None for an arm without values."""
        return {arm.name: spread_of(self.figures_of(arm.name), key) for arm in self.arms}

    def shown(self) -> tuple[Figure, ...]:
        """Return the figures that have a value for at least one arm."""
        shown = (figure for figure in FIGURES if any(self.spreads(figure.key).values()))
        # Concurrent trials have a cost only for whole runs.
        at_once = any(len(arm.trials) > 1 for arm in self.arms)
        return tuple(
            figure._replace(whole=True) if at_once and figure.key == "usd_per_epoch" else figure
            for figure in shown
        )

    def conclusions(self) -> Iterator[tuple[str, str]]:
        """Yield (subject, sentence) pairs that explain the figures and their limits."""
        repeats = {arm.name: len(figures) for arm in self.arms if (figures := self.figures_of(arm.name))}
        yield "Warm-up:", self._about_warmup()
        once = [name for name, count in repeats.items() if count == 1]
        if len(repeats) > 1 and once:
            yield "Chance:", f"{', '.join(once)} ran only once, so the spread is unknown. Use --repeats 3."
        for arm in self.arms:
            causes = mean_by_name([figures.stall_percent_by_cause for figures in self.figures_of(arm.name)])
            parts = [f"{cause} {number(part)}%" for cause, part in causes.items() if part >= _MIN_PERCENT]
            if parts:
                yield "Why they waited:", f"{arm.name}: {', '.join(parts)} of training time."
        yield from (("Note:", note) for note in self.notes)

    def _about_warmup(self) -> str:
        if not self.warmup_epochs:
            return "no epoch is excluded, so all figures include the cold start."
        which = "the first epoch" if self.warmup_epochs == 1 else f"the first {self.warmup_epochs} epochs"
        titles = ", ".join(figure.title for figure in self.shown() if figure.whole)
        return f"only figures of whole runs include {which}: {titles}."

    def to_mapping(self) -> dict[str, Any]:
        """Return the comparison and its conclusions as plain values for JSON."""
        words = [" ".join(point) for point in self.conclusions()]
        mapping = {"format": _FORMAT} | asdict(self) | {"words": words}
        for arm in mapping["arms"]:
            spreads = {figure.key: self.spreads(figure.key)[arm["name"]] for figure in FIGURES}
            arm["figures"] = {
                key: spread and {"median": spread.median, "least": spread.least, "most": spread.most}
                for key, spread in spreads.items()
            }
        return mapping

    def write(self, directory: Path) -> None:
        """Write ``compare.json`` atomically."""
        write_json(self.to_mapping(), directory / _FILE)


def is_comparison(directory: Path) -> bool:
    """Return whether the directory contains a comparison."""
    return (directory / _FILE).is_file()


def read_comparison(directory: Path) -> Comparison:
    """Read a comparison from its directory."""
    return TypeAdapter(Comparison).validate_python(read_format(directory / _FILE, _FORMAT))


# ------------------------------------------------------------------------------------- existing runs


def compare_runs(named: Sequence[str], *, warmup_epochs: int | None = None) -> Comparison:
    """Compare finished runs.

    Args:
        named: run directories, optionally as ``NAME=path``. Runs with the same name are repeats of one arm.
        warmup_epochs: the number of initial epochs to exclude, by default the largest in the runs' specs.

    Raises:
        ConfigError: a directory contains no finished run, or a run has no epochs after the warm-up.
    """
    places = [_parse_place(text) for text in named]
    runs = [read_run(place) for _, place in places]
    warmup = warmup_epochs
    if warmup is None:
        warmup = max(run.facts["spec"]["compare"]["warmup_epochs"] for run in runs)
    arms: dict[str, ArmReport] = {}
    rounds: list[RoundReport] = []
    notes = [_NOT_INTERLEAVED]
    for (name, place), run in zip(places, runs, strict=True):
        if run.status != "finished":
            raise ConfigError(f"cannot compare the run in {place}: its status is {run.status}. Omit it.")
        if not run.passes_after(warmup):
            raise ConfigError(
                f"{place} has no epoch after {counted(warmup, 'warm-up epoch')}. Use --warmup-epochs 0."
            )
        values = {f"loader.{key}": run.facts["spec"]["loader"][key] for key in ("kind", "batch_size")}
        arm = arms.setdefault(name or run.name, ArmReport(name or run.name, values))
        repeat = 1 + sum(report.arm == arm.name for report in rounds)
        # Nothing timed the process from outside, so use the run's own clock.
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


def _parse_place(text: str) -> tuple[str, Path]:
    """Split the text into a name, which may be empty, and a directory."""
    name, equals, directory = text.partition("=")
    # The name of an existing directory may contain "=".
    is_named = equals and not Path(text).exists()
    return (name, Path(directory).expanduser()) if is_named else ("", Path(text).expanduser())


def notes_of(name: str, measured: RoundMeasured, warmup_epochs: int) -> Iterator[str]:
    """Yield notes about what a round's figures do not include."""
    run = measured.runs[0]
    executor = str(run.facts["executor"] or "local")
    if executor.startswith("as the coordinator") and not measured.services_cpu_s:
        yield (
            f"{name} used a coordinator that it did not start. The CPU time of coordinator, cache and "
            "functions is not counted, and the cache may have contained other runs' samples."
        )
    elif executor != "local" and not measured.services_cpu_s:
        yield f"{name} ran functions with {executor}. Their CPU time is not counted."
    if run.ranks > 1:
        yield f"{name} had {run.ranks} ranks. CPU is not compared, because the report covers only rank 0."
    elif warmup_epochs and measured.services_cpu_s:
        yield (
            f"{name} shared a coordinator between its trials. Its CPU time is known only for whole rounds, "
            "so CPU per image is compared only with compare.warmup_epochs=0."
        )
