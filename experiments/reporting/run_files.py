"""Read the files of a run, complete or not: a killed run has its earlier epochs."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.user_text import read_json
from superdl.super_wire.waits import wait_for

if TYPE_CHECKING:
    from pathlib import Path

REPORT_NAME = "report.json"
REPORT_FORMAT = 2


class Pass(NamedTuple):
    """A pass over a split and its figures, named as in `experiments.records.PassSummary`."""

    epoch: int
    split: str
    figures: dict[str, Any]

    @property
    def name(self) -> str:
        """The name used in tables, with epochs counted from 1."""
        return f"{self.epoch + 1} {self.split}"

    @property
    def job(self) -> dict[str, Any]:
        """The job's counters for this pass; empty if they were not reported."""
        return self.figures.get("job") or {}

    @property
    def stalls(self) -> dict[str, float]:
        """Seconds of waiting by cause of `super_wire.waits`; empty if none is reported."""
        waits: dict[str, float] = {}
        for cause, total in ((self.figures.get("stalls") or {}).get("causes") or {}).items():
            waits[wait_for(cause)] = waits.get(wait_for(cause), 0.0) + float(total["wait_s"])
        return waits


class Learning(NamedTuple):
    """Loss and accuracy of an epoch's training steps, NaN where absent."""

    loss: array[float]  # compact columns: a run may have millions of steps
    accuracy: array[float]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run: ``facts`` is its report, ``troubles`` says what is unreadable."""

    directory: Path
    facts: dict[str, Any]
    learning: dict[int, Learning] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()

    @property
    def passes(self) -> tuple[Pass, ...]:
        """All passes of the report's epochs, in order."""
        return tuple(
            Pass(epoch["epoch"], split, epoch[split])
            for epoch in self.facts.get("epochs", ())
            for split in ("train", "val")
            if epoch.get(split)
        )

    @property
    def trained(self) -> tuple[Pass, ...]:
        """The training passes."""
        return tuple(epoch_pass for epoch_pass in self.passes if epoch_pass.split == "train")

    @property
    def phases(self) -> list[dict[str, Any]]:
        """Process usage in the start phase and in each pass; empty without monitoring."""
        return list((self.facts.get("utilization") or {}).get("phases") or ())

    @property
    def spec(self) -> dict[str, Any]:
        """The spec, with all its defaults."""
        return self.facts.get("spec") or {}

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.facts.get("name") or self.directory.name)

    @property
    def status(self) -> str:
        """Finished, interrupted or failed; running, if the run continues or was killed."""
        return str(self.facts.get("status") or "running")

    @property
    def ranks(self) -> int:
        """The number of ranks that trained."""
        return int(self.facts.get("ranks") or 1)


def read_run(directory: Path) -> RunFiles:
    """Read a run's report and steps, as far as they can be read.

    Raises:
        ConfigError: the directory holds no run.
    """
    if not (directory / REPORT_NAME).is_file():
        remedy = "name one that superdl run has written"
        if any(any(directory.glob(f"{depth}{REPORT_NAME}")) for depth in ("*/", "*/*/")):
            remedy = f"its runs are below it: name one, or show all by superdl report --book {directory}"
        raise ConfigError(f"{directory} is no directory of a run: it has no {REPORT_NAME}; {remedy}")
    troubles = []
    try:
        facts = read_json(directory / REPORT_NAME, REPORT_NAME)
    except ConfigError as error:
        troubles.append(str(error))
        facts = {}
    learning: dict[int, Learning] = {}
    try:
        if broken := _read_steps(directory / "steps.jsonl", learning):
            troubles.append(
                f"steps.jsonl has {broken} line(s) that are no rows of this version, such as one cut off by "
                "a kill"
            )
    except FileNotFoundError:
        pass  # the run ended before its first step
    except OSError as error:
        troubles.append(f"steps.jsonl cannot be read: {error}")
    return RunFiles(directory, facts if isinstance(facts, dict) else {}, learning, tuple(troubles))


def _read_steps(path: Path, learning: dict[int, Learning]) -> int:
    broken = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
                # JSON has null for values that are not finite.
                loss = float("nan") if row["loss"] is None else float(row["loss"])
                accuracy, epoch = float(row["accuracy"]), int(row["epoch"])
                if row["split"] == "train":
                    columns = learning.setdefault(epoch, Learning(array("d"), array("d")))
                    columns.loss.append(loss)
                    columns.accuracy.append(accuracy)
            except (KeyError, TypeError, ValueError, RecursionError):
                broken += 1
    return broken


def read_format(path: Path, expected: int) -> dict[str, Any]:
    """Read a JSON file that names its format."""
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict) or content.get("format") != expected:
        raise ConfigError(f"{path} is not of format {expected}, which this version reads: make it again")
    return content
