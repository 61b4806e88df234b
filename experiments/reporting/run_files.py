"""Reads what a run has left in its directory, whole or not: report, manifest, steps, stalls, utilisation.

A run that was killed has no report: then its passes are added up from the steps that it wrote. What is made
of it all is left to `run_page`.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from superdl.experiments.records import PassTotals, StepRecord
from superdl.experiments.stalls import stall_summary
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.user_text import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["OF_A_RUN", "Pass", "RunFiles", "StepColumns", "UsageRow", "read_run", "run_of_report"]

OF_A_RUN = ("manifest.json", "report.json")
"""Files of which a run leaves at least one."""

Made = TypeVar("Made")
_Key = tuple[int, str]

_STEP_FIELDS = tuple(item.name for item in fields(StepRecord))


class StepColumns:
    """The steps of one pass, in order: columns of seconds and of what was learnt, NaN where it is absent."""

    def __init__(self) -> None:
        self._columns = {name: array("d") for name in ("wait_s", "compute_s", "total_s", "loss", "accuracy")}
        self.totals = PassTotals()
        self.begun_at_s = self.ended_at_s = float("nan")

    def add(self, step: StepRecord) -> None:
        """Append one step."""
        if not len(self):
            self.begun_at_s = step.finished_at_s - step.total_s
        self.ended_at_s = step.finished_at_s
        for name, column in self._columns.items():
            column.append(getattr(step, name))
        self.totals.add(step)

    def __len__(self) -> int:
        return len(self._columns["total_s"])

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return np.asarray(self._columns[name])


class Pass(NamedTuple):
    """A pass over a split and its figures, as `experiments.records.PassSummary` names them.

    ``complete`` is False for one that has not come to its end. ``of_rank_0``: added up from the steps of one
    rank of several, where a report has those of all.
    """

    epoch: int
    split: str
    figures: dict[str, Any]
    complete: bool = True
    of_rank_0: bool = False

    @property
    def name(self) -> str:
        """As tables name it; epochs are counted from 1 for people."""
        of_what = ("" if self.complete else ", in part") + (", of rank 0" if self.of_rank_0 else "")
        return f"{self.epoch + 1} {self.split}{of_what}"

    @property
    def job(self) -> dict[str, Any]:
        """What the job counted meanwhile; empty where nobody told."""
        return self.figures.get("job") or {}

    @property
    def stalls(self) -> dict[str, float]:
        """Seconds of waiting by cause, the longest first; empty where nobody told."""
        causes = (self.figures.get("stalls") or {}).get("causes") or {}
        waits = {name: float(total["wait_s"]) for name, total in causes.items()}
        return dict(sorted(waits.items(), key=lambda item: -item[1]))


class UsageRow(NamedTuple):
    """A part's sample, as ``utilization.jsonl`` has it."""

    at_s: float
    subject: str
    cpu_cores: float | None
    gpu_percent: float | None
    gpu_memory_bytes: int | None
    gpu_memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What a run has left. ``facts`` are its report's over its manifest's; ``troubles`` say in sentences what
    could not be read.
    """

    directory: Path
    report: dict[str, Any] | None
    facts: dict[str, Any]
    steps: dict[_Key, StepColumns]
    usage_by_rank: dict[int, list[UsageRow]]
    passes: tuple[Pass, ...]
    troubles: tuple[str, ...]

    @property
    def spec(self) -> dict[str, Any]:
        """The spec, with all its defaults; paths of the machine are left out without a report."""
        return self.facts.get("spec") or {}

    @property
    def name(self) -> str:
        """What the run is called."""
        return str(self.facts.get("name") or self.directory.name)

    @property
    def status(self) -> str:
        """How it ended: finished, interrupted, failed; running, of one that goes on or was killed."""
        return str(self.facts.get("status") or "running")

    @property
    def ranks(self) -> int:
        """How many ranks trained."""
        return int(self.facts.get("ranks") or 1)

    @property
    def rank_0_note(self) -> str:
        """A sentence for what is of rank 0 alone, where there are more."""
        return f" Of {self.ranks} ranks this is rank 0, with what it started." if self.ranks > 1 else ""

    @property
    def trained(self) -> tuple[Pass, ...]:
        """The training passes."""
        return tuple(one for one in self.passes if one.split == "train")


def read_run(directory: Path) -> RunFiles:
    """Read the files of a run.

    Raises:
        ConfigError: the directory is of no run.

    """
    if not any((directory / name).is_file() for name in OF_A_RUN):
        below = [f"{depth}{name}" for depth in ("*/", "*/*/") for name in OF_A_RUN]
        has_runs = any(any(directory.glob(pattern)) for pattern in below)
        remedy = "name one that superdl run has written"
        if has_runs:
            remedy = f"its runs are below it: name one, or show all by superdl report --book {directory}"
        raise ConfigError(
            f"{directory} is no directory of a run: it has neither {' nor '.join(OF_A_RUN)}; {remedy}"
        )
    files = _Files(directory)
    report = files.mapping("report.json")
    facts = {**(files.mapping("manifest.json") or {}), **(report or {})}
    steps: dict[_Key, StepColumns] = {}
    for step in files.rows("steps.jsonl", _step):
        steps.setdefault((step.epoch, step.split), StepColumns()).add(step)
    stalls: dict[_Key, list[tuple[str, float]]] = {}
    for key, stall in files.rows("stalls.jsonl", _stall):
        stalls.setdefault(key, []).append(stall)
    usage = {0: list(files.rows("utilization.jsonl", _usage))}
    for path in directory.glob("utilization-rank*.jsonl"):  # of this host; other hosts have their own
        usage[int(path.stem.removeprefix("utilization-rank"))] = list(files.rows(path.name, _usage))
    passes = _passes(
        (report or {}).get("epochs", ()), steps, stalls, several=int(facts.get("ranks") or 1) > 1
    )
    return RunFiles(directory, report, facts, steps, usage, tuple(passes), tuple(files.troubles))


def run_of_report(report: dict[str, Any]) -> RunFiles:
    """A run as its report alone tells it."""
    passes = _passes(report["epochs"], {}, {}, several=report["ranks"] > 1)
    return RunFiles(Path(report["directory"]), report, report, {}, {}, tuple(passes), ())


class _Files:
    """The files of a directory, and in sentences what of them could not be read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.troubles: list[str] = []

    def mapping(self, name: str) -> dict[str, Any] | None:
        try:
            content = read_json(self._directory / name, name)
        except FileNotFoundError:
            return None
        except ConfigError as error:
            self.troubles.append(str(error))
            return None
        return content if isinstance(content, dict) else None

    def rows(self, name: str, make: Callable[[dict[str, Any]], Made]) -> Iterator[Made]:
        """What ``make`` makes of each row; of a run that was killed, the last may be half of one."""
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
    if row["loss"] is None:  # what is not finite is null
        row["loss"] = float("nan")
    return StepRecord(**{name: row[name] for name in _STEP_FIELDS if name in row})


def _stall(row: dict[str, Any]) -> tuple[_Key, tuple[str, float]]:
    return (row["epoch"], row["split"]), (row["cause"], row["wait_s"])


def _usage(row: dict[str, Any]) -> UsageRow:
    at_s, subject, *others = UsageRow._fields
    return UsageRow(row[at_s], row[subject], *(row.get(name) for name in others))


def _passes(
    epochs: list[dict[str, Any]],
    steps: dict[_Key, StepColumns],
    stalls: dict[_Key, list[tuple[str, float]]],
    *,
    several: bool,
) -> Iterator[Pass]:
    """All passes in order: those of the report's ``epochs``, and others from their steps.

    Steps are written as they are done, and all of a pass at its end: one that another follows is complete.
    """
    told: dict[_Key, dict[str, Any]] = {
        (one["epoch"], split): one[split] for one in epochs for split in ("train", "val") if one.get(split)
    }
    keys = sorted(told.keys() | steps.keys(), key=lambda one: (one[0], one[1] != "train"))
    for key in keys:
        if key in told:
            yield Pass(*key, told[key])
            continue
        columns, complete = steps[key], key != keys[-1]
        summary = columns.totals.summary(
            columns.ended_at_s - columns.begun_at_s,
            None,
            stall_summary(stalls.get(key, []), len(columns)) if complete else None,
        )
        yield Pass(*key, asdict(summary), complete, of_rank_0=several)
