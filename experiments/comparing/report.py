"""The report of a comparison: one value, shown as a table with words, and written as JSON and CSV.

The page is `experiments.comparing.page`'s, the words are `experiments.comparing.words`'s.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from experiments.comparing.figures import FIGURES, Figure, RoundFigures, Spread, spread_of
from experiments.comparing.words import conclusions
from experiments.strict_json import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from experiments.comparing.arms import Arm
    from experiments.comparing.schedule import Round

__all__ = ["COMPARE_FORMAT", "Comparison", "RoundReport", "print_comparison", "write_comparison"]

COMPARE_FORMAT = 1

_ABSENT = "-"


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round: its figures, or why it has none. ``folder`` is relative to the comparison's directory."""

    round: Round
    folder: str
    figures: RoundFigures | None
    failure: str | None

    def phrase(self) -> str:
        """How it went, in one line."""
        if self.figures is None:
            return f"{self.round.arm} failed"
        seconds = "" if self.figures.wall_s is None else f" in {self.figures.wall_s:.1f} s"
        return (
            f"{self.round.arm} done{seconds}: {self.figures.images_per_s:,.0f} images/s, "
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
    arms: tuple[Arm, ...]
    repeats: int
    warmup_epochs: int
    rounds: tuple[RoundReport, ...]
    notes: tuple[str, ...]
    spec: dict[str, Any]

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

    def words(self) -> tuple[str, ...]:
        """What the figures say."""
        spreads = {
            figure.key: {arm.name: self.spread(arm.name, figure.key) for arm in self.arms}
            for figure in FIGURES
        }
        return (*conclusions(spreads, self.warmup_epochs), *self.notes)

    def to_mapping(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        return {
            "format": COMPARE_FORMAT,
            "name": self.name,
            "status": self.status,
            "reason": self.reason,
            "started_at": self.started_at,
            "took_s": self.took_s,
            "directory": self.directory,
            "repeats": self.repeats,
            "warmup_epochs": self.warmup_epochs,
            "arms": [self._arm(arm) for arm in self.arms],
            "rounds": [_round(one) for one in self.rounds],
            "words": list(self.words()),
            "spec": self.spec,
        }

    def _arm(self, arm: Arm) -> dict[str, Any]:
        spreads = {figure.key: self.spread(arm.name, figure.key) for figure in FIGURES}
        return {
            "name": arm.name,
            "values": dict(arm.values),
            "trials": [trial.name for trial in arm.trials if trial.name],
            "figures": {
                key: None
                if spread is None
                else {"median": spread.median, "least": spread.least, "most": spread.most}
                for key, spread in spreads.items()
            },
        }


def _round(one: RoundReport) -> dict[str, Any]:
    return {
        "number": one.round.number,
        "arm": one.round.arm,
        "repeat": one.round.repeat,
        "folder": one.folder,
        "failure": one.failure,
        "figures": None if one.figures is None else asdict(one.figures),
    }


def write_comparison(comparison: Comparison, directory: Path) -> None:
    """Write ``compare.json`` and ``compare.csv``; a reader sees the old files or the new ones."""
    write_json(comparison.to_mapping(), directory / "compare.json")
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


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, and in words what it says."""
    if any(one.figures is not None for one in comparison.rounds):
        console.print(_table(comparison))
    lines = [f"comparison {comparison.name}: {comparison.status} in {comparison.took_s:.1f} s"]
    if comparison.reason:
        lines.append(f"reason: {comparison.reason}")
    lines += comparison.words()
    lines.append(f"written to {comparison.directory}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(comparison: Comparison) -> Table:
    repeats = comparison.repeats
    table = Table(
        title=f"{comparison.name}: median of {repeats} repeat(s), and below it least to most",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("figure", overflow="fold")
    table.add_column("unit", overflow="fold")
    for arm in comparison.arms:
        table.add_column(arm.name, justify="right", overflow="fold")
    for figure in comparison.shown():
        cells = [_cell(comparison.spread(arm.name, figure.key), figure.digits) for arm in comparison.arms]
        table.add_row(figure.title, figure.unit, *cells)
    return table


def _cell(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return _ABSENT
    middle, least, most = (f"{value:,.{digits}f}" for value in (spread.median, spread.least, spread.most))
    return middle if least == most else f"{middle}\n{least} to {most}"
