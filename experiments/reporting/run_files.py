"""Read the files of a run: report, steps and utilisation, complete or not.

A run writes its report at its start and after each epoch; a killed run has its earlier epochs. `run_page`
interprets the files.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from superdl.experiments.records import StepRecord
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.user_text import read_json
from superdl.super_wire.waits import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["REPORT_NAME", "Pass", "RunFiles", "StepColumns", "UsageRow", "read_run", "run_of_report"]

REPORT_NAME = "report.json"

Made = TypeVar("Made")
_Key = tuple[int, str]

_STEP_FIELDS = tuple(item.name for item in fields(StepRecord))


class StepColumns:
    """The steps of a pass: columns of seconds, loss and accuracy, NaN where absent."""

    def __init__(self) -> None:
        # Compact columns: a run may have millions of steps.
        self._columns = {name: array("d") for name in ("wait_s", "compute_s", "total_s", "loss", "accuracy")}
        self.begun_at_s = float("nan")

    def add(self, step: StepRecord) -> None:
        """Append one step."""
        if not len(self):
            self.begun_at_s = step.finished_at_s - step.total_s
        for name, column in self._columns.items():
            column.append(getattr(step, name))

    def __len__(self) -> int:
        return len(self._columns["total_s"])

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return np.asarray(self._columns[name])


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


class UsageRow(NamedTuple):
    """One sample of a part, as in ``utilization.jsonl``."""

    at_s: float
    subject: str
    cpu_cores: float | None
    gpu_percent: float | None
    gpu_memory_bytes: int | None
    gpu_memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run: ``facts`` is its report, ``troubles`` says what is unreadable."""

    directory: Path
    facts: dict[str, Any]
    steps: dict[_Key, StepColumns]
    usage_by_rank: dict[int, list[UsageRow]]
    passes: tuple[Pass, ...]
    troubles: tuple[str, ...]

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

    @property
    def rank_0_note(self) -> str:
        """A sentence for figures that cover rank 0 only; empty for a single rank."""
        return f" Of {self.ranks} ranks this is rank 0, with what it started." if self.ranks > 1 else ""

    @property
    def trained(self) -> tuple[Pass, ...]:
        """The training passes."""
        return tuple(epoch_pass for epoch_pass in self.passes if epoch_pass.split == "train")


def read_run(directory: Path) -> RunFiles:
    """Read the files of a run.

    Raises:
        ConfigError: the directory holds no run.
    """
    if not (directory / REPORT_NAME).is_file():
        remedy = "name one that superdl run has written"
        if any(any(directory.glob(f"{depth}{REPORT_NAME}")) for depth in ("*/", "*/*/")):
            remedy = f"its runs are below it: name one, or show all by superdl report --book {directory}"
        raise ConfigError(f"{directory} is no directory of a run: it has no {REPORT_NAME}; {remedy}")
    files = _Files(directory)
    facts = files.mapping(REPORT_NAME)
    steps: dict[_Key, StepColumns] = {}
    for step in files.rows("steps.jsonl", _step):
        steps.setdefault((step.epoch, step.split), StepColumns()).add(step)
    usage = {0: list(files.rows("utilization.jsonl", _usage))}
    for path in directory.glob("utilization-rank*.jsonl"):  # of this host; other hosts have their own
        usage[int(path.stem.removeprefix("utilization-rank"))] = list(files.rows(path.name, _usage))
    return RunFiles(directory, facts, steps, usage, _passes(facts), tuple(files.troubles))


def run_of_report(report: dict[str, Any]) -> RunFiles:
    """Build a run from its report alone."""
    return RunFiles(Path(report["directory"]), report, {}, {}, _passes(report), ())


def _passes(facts: dict[str, Any]) -> tuple[Pass, ...]:
    """Return all passes of the report's epochs, in order."""
    return tuple(
        Pass(epoch["epoch"], split, epoch[split])
        for epoch in facts.get("epochs", ())
        for split in ("train", "val")
        if epoch.get(split)
    )


class _Files:
    """The files of a directory, and a description of what could not be read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.troubles: list[str] = []

    def mapping(self, name: str) -> dict[str, Any]:
        try:
            content = read_json(self._directory / name, name)
        except FileNotFoundError:
            return {}
        except ConfigError as error:
            self.troubles.append(str(error))
            return {}
        return content if isinstance(content, dict) else {}

    def rows(self, name: str, make: Callable[[dict[str, Any]], Made]) -> Iterator[Made]:
        """Yield ``make(row)`` for each row, counting broken ones: a killed run may leave half a row at the
        end.
        """
        broken = 0
        try:
            with (self._directory / name).open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        yield make(json.loads(line))
                    except (KeyError, TypeError, ValueError, RecursionError):
                        broken += 1
        except FileNotFoundError:
            return
        except OSError as error:
            self.troubles.append(f"{name} cannot be read: {error}")
        if broken:
            self.troubles.append(
                f"{name} has {broken} line(s) that are no rows of this version, such as one cut off by a kill"
            )


def _step(row: dict[str, Any]) -> StepRecord:
    if row["loss"] is None:  # JSON has null for values that are not finite
        row["loss"] = float("nan")
    return StepRecord(**{name: row[name] for name in _STEP_FIELDS if name in row})


def _usage(row: dict[str, Any]) -> UsageRow:
    at_s, subject, *others = UsageRow._fields
    return UsageRow(row[at_s], row[subject], *(row.get(name) for name in others))
