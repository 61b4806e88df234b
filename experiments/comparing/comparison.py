"""A comparison, its file ``compare.json``, and comparisons of runs made elsewhere."""

from __future__ import annotations

import math
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
    epochs_after,
    first_epoch,
    mean_by_name,
    round_figures,
    spread_of,
)
from superdl.experiments.output import now_text, write_json
from superdl.experiments.reporting.page import number
from superdl.experiments.reporting.run_files import REPORT_FORMAT, REPORT_NAME, read_format
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_FILE = "compare.json"
_FORMAT = 2
_LEAST_PERCENT = 0.1  # stalls below this share of training time are in the figures, but not in the text
_MADE_BEFORE = (
    "These runs were made earlier and were not interleaved, so changes on the machine between them affect "
    "the figures. Wall time is measured by the run itself, without the start of its process."
)
_MACHINE = ("machine", "usable_cpus", "device", "device_name", "platform")


@dataclass(slots=True)
class ArmReport:
    """An arm, with its settings, the names of its concurrent trials, and the settings its loader reported."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round (see `Round`), with its figures or why it has none. Its runs are in ``folder``."""

    number: int
    repeat: int
    arm: str
    folder: str
    figures: RoundFigures | None
    failure: str | None = None


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
        """Return the spread of a figure for each arm, or None if the arm has no values."""
        return {arm.name: spread_of(self.figures_of(arm.name), key) for arm in self.arms}

    def shown(self) -> tuple[Figure, ...]:
        """Return the figures that at least one arm has."""
        return tuple(figure for figure in FIGURES if any(self.spreads(figure.key).values()))

    @property
    def of_whole_runs(self) -> frozenset[str]:
        """Keys of figures that include the warm-up. For concurrent runs, this includes an epoch's cost."""
        at_once = {"usd_per_epoch"} if any(arm.trials for arm in self.arms) else set()
        return frozenset({figure.key for figure in FIGURES if figure.whole} | at_once)

    def words(self) -> Iterator[tuple[str, str]]:
        """Yield (subject, sentence) pairs on what the figures show and what they leave out."""
        repeats = {arm.name: len(figures) for arm in self.arms if (figures := self.figures_of(arm.name))}
        if len(repeats) > 1 and not any(self.spreads("usd").values()):
            yield "Cost:", "not compared, because cost.machine is not set to a machine in the price table."
        yield "Warm-up:", self._about_warmup()
        if len(repeats) > 1:
            yield "Chance:", _about_chance(repeats)
        failed = [report.arm for report in self.rounds if report.figures is None]
        if failed:
            lost = ", ".join(f"{failed.count(arm)} of {arm}" for arm in dict.fromkeys(failed))
            yield "Failed:", f"rounds missing from the figures: {lost}."
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
        titles = ", ".join(figure.title for figure in self.shown() if figure.key in self.of_whole_runs)
        return f"only figures of the whole run include {which} of each run{': ' * bool(titles)}{titles}."

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


def _about_chance(repeats: Mapping[str, int]) -> str:
    """Describe the effect of chance on the two arms most exposed to it, given their repeats."""
    once = [name for name, count in repeats.items() if count == 1]
    if once:
        return f"{', '.join(once)} ran only once, so the spread is unknown (use --repeats 3)."
    first, *others = repeats.values()
    # Of all orders of the values of two equal arms, two have all values of one arm first.
    orders, second = min((round(math.comb(first + other, first) / 2), other) for other in others)
    return (
        f"even if two arms are equal, the ranges of {first} and {second} repeats do not overlap in one "
        f"of {orders} figures."
    )


def is_comparison(directory: Path) -> bool:
    """Check whether the directory contains a comparison."""
    return (directory / _FILE).is_file()


def read_comparison(directory: Path) -> Comparison:
    """Read a comparison from its directory."""
    return TypeAdapter(Comparison).validate_python(read_format(directory / _FILE, _FORMAT))


def read_report(directory: Path) -> dict[str, Any]:
    """Read the report of the run in a directory."""
    path = directory / REPORT_NAME
    if not path.exists():
        raise ConfigError(f"{directory} contains no {REPORT_NAME}, so no run was started there")
    return read_format(path, REPORT_FORMAT)


# ------------------------------------------------------------------------------ runs made elsewhere


def compare_runs(named: Sequence[str], *, warmup_epochs: int | None = None) -> Comparison:
    """Compare finished runs, without running or writing anything.

    Each of ``named`` is a directory or ``NAME=directory``. Runs of the same name are repeats of one arm.
    ``warmup_epochs`` of each run are left out; by default, the number is taken from the specs.

    Raises:
        ConfigError: a directory contains no finished run, or the specs differ in the warm-up.
    """
    places = [_place(word) for word in named]
    runs = [read_report(place) for _, place in places]
    warmups = {run["spec"]["compare"]["warmup_epochs"] for run in runs}
    if warmup_epochs is None and len(warmups) > 1:
        listed = ", ".join(map(str, sorted(warmups)))
        raise ConfigError(f"the runs' specs differ in compare.warmup_epochs ({listed}): set --warmup-epochs")
    warmup = warmups.pop() if warmup_epochs is None else warmup_epochs
    arms: dict[str, ArmReport] = {}
    rounds: list[RoundReport] = []
    notes = [_MADE_BEFORE]
    machines = {tuple(run["environment"].get(key) for key in _MACHINE) for run in runs}
    if len(machines) > 1:
        notes.append(
            f"The runs used {len(machines)} different machines or systems, so ratios also compare those."
        )
    for (name, place), run in zip(places, runs, strict=True):
        if run["status"] != "finished":
            raise ConfigError(f"the run in {place} has status {run['status']}: leave it out")
        if not epochs_after(run, warmup):
            raise ConfigError(
                f"{place}: {warmup} warm-up epoch(s) leave no epoch to compare; use --warmup-epochs 0"
            )
        values = {f"loader.{key}": run["spec"]["loader"][key] for key in ("kind", "batch_size")}
        arm = arms.setdefault(name or run["name"], ArmReport(name or run["name"], values))
        arm.settings = arm.settings or run["loader_settings"]
        repeat = 1 + sum(report.arm == arm.name for report in rounds)
        # A finished run was not observed from outside: use its own clock.
        figures = round_figures(RoundMeasured((run,), wall_s=run["wall_s"]), warmup)
        rounds.append(RoundReport(len(rounds) + 1, repeat, arm.name, str(place), figures))
        notes += _notes(str(place), run)
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
        environment=runs[0]["environment"],
    )


def _place(word: str) -> tuple[str, Path]:
    """Return the name, which may be empty, and the directory."""
    name, equals, rest = word.partition("=")
    # A directory's own name may contain "=".
    is_named = equals and not Path(word).exists()
    return (name, Path(rest).expanduser()) if is_named else ("", Path(word).expanduser())


def _notes(place: str, run: Mapping[str, Any]) -> Iterator[str]:
    if str(run["executor"]).startswith("as the coordinator"):
        yield (
            f"{place} used a coordinator that it did not start. The CPU time of that coordinator, its cache "
            "and its functions is not counted, and its cache contained data left by others."
        )
    if run["ranks"] > 1:
        yield f"{place} had {run['ranks']} ranks: CPU is not compared, as the report covers only rank 0."
    if first_epoch(run) > 0:
        yield (
            f"{place} was resumed in epoch {first_epoch(run) + 1}: its warm-up is counted from there, and "
            "its time, CPU and cost exclude earlier training."
        )
