"""A comparison as one value, written as ``compare.json`` and ``compare.csv``, and read back.

What people see of it is left to `show`.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from superdl.experiments.comparing.arms import Round
from superdl.experiments.comparing.conclusions import conclusions
from superdl.experiments.comparing.figures import (
    FIGURES,
    Figure,
    RoundFigures,
    Spread,
    mean_by_name,
    spread_of,
)
from superdl.experiments.output import write_json
from superdl.experiments.reporting.quantities import number
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from superdl.experiments.comparing.measured import RunMeasured

__all__ = [
    "COMPARE_FORMAT",
    "ArmReport",
    "Comparison",
    "RoundReport",
    "is_comparison",
    "read_comparison",
    "settings_of",
    "write_comparison",
]

COMPARE_FORMAT = 1

_REPORT = "compare.json"
_LEAST_PERCENT = 0.1
"""Causes that make less of training time are in the figures, not in the words."""


@dataclass(frozen=True, slots=True)
class ArmReport:
    """An arm: what it sets, the names of its trials if it has several runs at once, and its loader's settings
    as the loader tells them. ``simulated``: its runs were predicted, not made.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    simulated: bool = False

    @property
    def title(self) -> str:
        """Its name, marked where it was not measured."""
        return f"{self.name} (simulated)" if self.simulated else self.name


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round: its figures, or why it has none. ``folder`` is where its runs are."""

    round: Round
    folder: str
    figures: RoundFigures | None
    failure: str | None

    def phrase(self) -> str:
        """How it went, in one line."""
        if self.figures is None:
            return f"{self.round.arm} failed"
        seconds = "" if self.figures.wall_s is None else f" in {self.figures.wall_s:.1f} s"
        rate = self.figures.images_per_s
        return (
            f"{self.round.arm} done{seconds}: {'-' if rate is None else f'{rate:,.0f}'} images/s, "
            f"{self.figures.wait_percent:.1f}% waiting"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that is known of a comparison. ``status``: running, finished, interrupted or failed."""

    name: str
    status: str
    reason: str | None
    started_at: str
    took_s: float
    directory: str
    repeats: int
    warmup_epochs: int
    arms: tuple[ArmReport, ...]
    rounds: tuple[RoundReport, ...]
    notes: tuple[str, ...]
    spec: Mapping[str, Any]
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> int:
        """How many rounds have figures."""
        return sum(one.figures is not None for one in self.rounds)

    def figures_of(self, arm: str) -> tuple[RoundFigures, ...]:
        """The rounds of an arm that were measured."""
        return tuple(one.figures for one in self.rounds if one.round.arm == arm and one.figures is not None)

    def spread(self, arm: str, key: str) -> Spread | None:
        """A figure of an arm over its repeats; None where there is none."""
        return spread_of(self.figures_of(arm), key)

    def shown(self) -> tuple[Figure, ...]:
        """The figures that some arm has."""
        return tuple(
            figure for figure in FIGURES if any(self.spread(arm.name, figure.key) for arm in self.arms)
        )

    def words(self) -> tuple[tuple[str, str], ...]:
        """What the figures say, and what they leave out, each sentence after its subject."""
        spreads = {
            figure.key: {arm.title: self.spread(arm.name, figure.key) for arm in self.arms}
            for figure in FIGURES
        }
        waits = [("Why they wait:", text) for text in map(self._told_stalls, self.arms) if text]
        settings = [("Settings:", text) for text in map(_told_settings, self.arms) if text]
        notes = [("Note:", note) for note in self.notes]
        failed = {
            arm.title: lost
            for arm in self.arms
            if (lost := sum(one.figures is None for one in self.rounds if one.round.arm == arm.name))
        }
        said = conclusions(spreads, self.warmup_epochs, failed=failed, whole=self.of_whole_runs)
        return (*said, *waits, *settings, *notes)

    @property
    def of_whole_runs(self) -> frozenset[str]:
        """The keys of figures that have the warm-up in them: of runs at once, that of their cost too."""
        at_once = {"usd_per_epoch"} if any(arm.trials for arm in self.arms) else set()
        return frozenset({figure.key for figure in FIGURES if figure.whole} | at_once)

    def _told_stalls(self, arm: ArmReport) -> str:
        """Why an arm's steps stalled, and for what share of its training time."""
        causes = mean_by_name([one.stall_percent_by_cause for one in self.figures_of(arm.name)])
        told = [
            f"{cause.replace('_', ' ')} {number(percent)}%"
            for cause, percent in causes.items()
            if percent >= _LEAST_PERCENT
        ]
        return f"{arm.title}: {', '.join(told)} of training time." if told else ""

    def to_mapping(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        plain = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("arms", "rounds")
        }
        return {
            "format": COMPARE_FORMAT,
            **plain,
            "words": [" ".join(point) for point in self.words()],
            "arms": [asdict(arm) | {"figures": self._figures(arm.name)} for arm in self.arms],
            "rounds": [asdict(one) for one in self.rounds],
        }

    def _figures(self, arm: str) -> dict[str, Any]:
        spreads = {figure.key: self.spread(arm, figure.key) for figure in FIGURES}
        return {
            key: None
            if spread is None
            else {"median": spread.median, "least": spread.least, "most": spread.most}
            for key, spread in spreads.items()
        }


def _told_settings(arm: ArmReport) -> str:
    """What an arm's loader was given, and what that follows."""
    given = {name: value for name, value in arm.settings.items() if name != "documentation"}
    if not given:
        return ""
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    documented = arm.settings.get("documentation")
    return f"{arm.title} was given {words}" + (f" ({documented})." if documented else ".")


def settings_of(run: RunMeasured) -> dict[str, Any]:
    """What a run's loader was opened with, where its report tells it."""
    told = run.facts.get("loader_settings")
    return dict(told) if isinstance(told, dict) else {}


def write_comparison(comparison: Comparison, directory: Path) -> None:
    """Write ``compare.json`` and ``compare.csv``; a reader sees the old files or the new ones."""
    write_json(comparison.to_mapping(), directory / _REPORT)
    keys = [figure.key for figure in FIGURES]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["number", "arm", "repeat", "failed", *keys])
    for one in comparison.rounds:
        values = ["" if one.figures is None else getattr(one.figures, key) for key in keys]
        table.writerow([one.round.number, one.round.arm, one.round.repeat, int(one.figures is None), *values])
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
    path = directory / _REPORT
    try:
        mapping = json.loads(path.read_text(encoding="utf-8"))
        if mapping.pop("format") != COMPARE_FORMAT:
            raise ConfigError(f"{path} is of another format than {COMPARE_FORMAT}: compare the runs again")
        arms = tuple(_arm(arm) for arm in mapping.pop("arms"))
        rounds = tuple(_round(one) for one in mapping.pop("rounds"))
        notes = tuple(mapping.pop("notes"))
        del mapping["words"]
        return Comparison(arms=arms, rounds=rounds, notes=notes, **mapping)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a comparison as this version writes it: {error!r}") from error


def _arm(mapping: dict[str, Any]) -> ArmReport:
    del mapping["figures"]  # they follow from the rounds
    return ArmReport(**mapping | {"trials": tuple(mapping["trials"])})


def _round(mapping: dict[str, Any]) -> RoundReport:
    figures = mapping["figures"]
    if figures is not None:
        epochs = {int(epoch): value for epoch, value in figures["decodes_by_epoch"].items()}
        accuracy = tuple(figures["val_accuracy"])
        figures = RoundFigures(**figures | {"decodes_by_epoch": epochs, "val_accuracy": accuracy})
    return RoundReport(Round(**mapping["round"]), mapping["folder"], figures, mapping["failure"])
