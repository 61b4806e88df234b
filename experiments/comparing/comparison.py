"""A comparison as one value, written as ``compare.json`` and ``compare.csv``, and read back.

What people see of it is left to `show`.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from superdl.experiments.comparing.conclusions import conclusions
from superdl.experiments.comparing.figures import (
    FIGURES,
    Figure,
    RoundFigures,
    Spread,
    mean_by_name,
    spread_of,
)
from superdl.experiments.comparing.measured import read_json
from superdl.experiments.output import write_json
from superdl.experiments.reporting.quantities import number

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ArmReport", "Comparison", "RoundReport", "is_comparison", "read_comparison", "write_comparison"]

_REPORT = "compare.json"
_FORMAT = 2
_LEAST_PERCENT = 0.1
"""Causes that make less of training time are in the figures, not in the words."""


@dataclass(slots=True)
class ArmReport:
    """An arm: what it sets, the names of its trials if it has several runs at once, and its loader's settings
    as the loader tells them.
    """

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round, by `Round`: its figures, or why it has none. ``folder`` is where its runs are."""

    number: int
    repeat: int
    arm: str
    folder: str
    figures: RoundFigures | None
    failure: str | None = None

    def phrase(self) -> str:
        """How it went, in one line."""
        if self.figures is None:
            return f"{self.arm} failed"
        seconds = "" if self.figures.wall_s is None else f" in {self.figures.wall_s:.1f} s"
        rate, waited = number(self.figures.images_per_s), self.figures.wait_percent
        return f"{self.arm} done{seconds}: {rate} images/s, {waited:.1f}% waiting"


@dataclass(slots=True)
class Comparison:
    """All that is known of a comparison. ``status``: running, finished, interrupted or failed."""

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
        """How many rounds have figures."""
        return sum(one.figures is not None for one in self.rounds)

    def figures_of(self, arm: str) -> tuple[RoundFigures, ...]:
        """The rounds of an arm that were measured."""
        return tuple(one.figures for one in self.rounds if one.arm == arm and one.figures is not None)

    def spreads(self, key: str) -> dict[str, Spread | None]:
        """A figure of each arm over its repeats; None where there is none."""
        return {arm.name: spread_of(self.figures_of(arm.name), key) for arm in self.arms}

    def shown(self) -> tuple[Figure, ...]:
        """The figures that some arm has."""
        return tuple(figure for figure in FIGURES if any(self.spreads(figure.key).values()))

    @property
    def of_whole_runs(self) -> frozenset[str]:
        """The keys of figures that have the warm-up in them: of runs at once, that of their cost too."""
        at_once = {"usd_per_epoch"} if any(arm.trials for arm in self.arms) else set()
        return frozenset({figure.key for figure in FIGURES if figure.whole} | at_once)

    def words(self) -> tuple[tuple[str, str], ...]:
        """What the figures say, and what they leave out, each sentence after its subject."""
        failed = {
            arm.name: lost
            for arm in self.arms
            if (lost := sum(one.figures is None for one in self.rounds if one.arm == arm.name))
        }
        spreads = {figure.key: self.spreads(figure.key) for figure in FIGURES}
        said = conclusions(spreads, self.warmup_epochs, failed=failed, whole=self.of_whole_runs)
        waits = [("Why they wait:", text) for text in map(self._told_stalls, self.arms) if text]
        return (*said, *waits, *(("Note:", note) for note in self.notes))

    def _told_stalls(self, arm: ArmReport) -> str:
        """Why an arm's steps stalled, and for what share of its training time."""
        causes = mean_by_name([one.stall_percent_by_cause for one in self.figures_of(arm.name)])
        told = [
            f"{cause.replace('_', ' ')} {number(percent)}%"
            for cause, percent in causes.items()
            if percent >= _LEAST_PERCENT
        ]
        return f"{arm.name}: {', '.join(told)} of training time." if told else ""

    def to_mapping(self) -> dict[str, Any]:
        """Return it as plain values for JSON, with what follows from them."""
        mapping = {"format": _FORMAT} | asdict(self) | {"words": [" ".join(point) for point in self.words()]}
        for arm in mapping["arms"]:
            spreads = {figure.key: self.spreads(figure.key)[arm["name"]] for figure in FIGURES}
            arm["figures"] = {
                key: one and {"median": one.median, "least": one.least, "most": one.most}
                for key, one in spreads.items()
            }
        return mapping


def write_comparison(comparison: Comparison, directory: Path) -> None:
    """Write ``compare.json`` and ``compare.csv``; a reader sees the old files or the new ones."""
    write_json(comparison.to_mapping(), directory / _REPORT)
    keys = [figure.key for figure in FIGURES]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["number", "arm", "repeat", "failed", *keys])
    for one in comparison.rounds:
        values = [getattr(one.figures, key, None) for key in keys]
        table.writerow([one.number, one.arm, one.repeat, int(one.figures is None), *values])
    partial = directory / ".compare.csv"
    partial.write_text(text.getvalue(), encoding="utf-8")
    partial.replace(directory / "compare.csv")


def is_comparison(directory: Path) -> bool:
    """Whether `write_comparison` has written there."""
    return (directory / _REPORT).is_file()


def read_comparison(directory: Path) -> Comparison:
    """Read what `write_comparison` has written.

    Raises:
        ConfigError: there is none, or not one of this version's.

    """
    return TypeAdapter(Comparison).validate_python(read_json(directory / _REPORT, _FORMAT))
