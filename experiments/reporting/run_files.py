"""Reads what a run has left in its directory, whole or not: report, manifest, steps, utilisation.

A run that was killed has no report: then its passes are added up from the steps that it wrote. What is made
of it all is left to `run_page`.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.records import PassTotals, StepRecord
from superdl.experiments.stalls import stall_summary
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Pass", "RunFiles", "StepColumns", "UsageRow", "read_run"]

_STEP_FIELDS = tuple(item.name for item in fields(StepRecord))


@dataclass(slots=True)
class StepColumns:
    """The steps of one pass, in order: seconds, and what was learnt; NaN where it is absent."""

    wait_s: array[float] = field(default_factory=lambda: array("d"))
    compute_s: array[float] = field(default_factory=lambda: array("d"))
    total_s: array[float] = field(default_factory=lambda: array("d"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    accuracy: array[float] = field(default_factory=lambda: array("d"))
    totals: PassTotals = field(default_factory=PassTotals)
    begun_at_s: float = float("nan")
    ended_at_s: float = float("nan")

    def add(self, step: StepRecord) -> None:
        """Append one step."""
        if not self.total_s:
            self.begun_at_s = step.finished_at_s - step.total_s
        self.ended_at_s = step.finished_at_s
        self.wait_s.append(step.wait_s)
        self.compute_s.append(step.compute_s)
        self.total_s.append(step.total_s)
        self.loss.append(step.loss)
        self.accuracy.append(step.accuracy)
        self.totals.add(step)


class Pass(NamedTuple):
    """A pass over a split and its figures, as `experiments.records.PassSummary` names them.

    ``complete`` is False for one that has not come to its end. The figures of a pass that no report has are
    of the steps that were written; what is of the whole job is absent. ``of_rank_0`` says that they are of
    one rank of several: its steps, where a report has those of all.
    """

    epoch: int
    split: str
    figures: dict[str, Any]
    complete: bool
    of_rank_0: bool = False

    @property
    def name(self) -> str:
        """As tables name it; epochs are counted from 1 for people."""
        of_what = ("" if self.complete else ", in part") + (", of rank 0" if self.of_rank_0 else "")
        return f"{self.epoch + 1} {self.split}{of_what}"

    @property
    def wait_share(self) -> float | None:
        """The share of its time that the trainer was blocked on the loader."""
        wall_s = self.figures["wall_s"]
        return self.figures["wait_s"] / wall_s if wall_s > 0 else None

    @property
    def job(self) -> dict[str, Any]:
        """What the job counted meanwhile; empty where nobody told."""
        return self.figures.get("job") or {}


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
    """A run by its files; ``report`` and ``manifest`` are None where there is none. Steps are rank 0's."""

    directory: Path
    report: dict[str, Any] | None
    manifest: dict[str, Any] | None
    steps: dict[tuple[int, str], StepColumns]
    usage_by_rank: dict[int, tuple[UsageRow, ...]]
    passes: tuple[Pass, ...]
    troubles: tuple[str, ...]

    @property
    def known(self) -> dict[str, Any]:
        """The report, or what there is in its place."""
        return self.report or {}

    @property
    def spec(self) -> dict[str, Any]:
        """The spec, with all its defaults; paths of the machine are left out without a report."""
        found: dict[str, Any] = self.known.get("spec") or (self.manifest or {}).get("spec") or {}
        return found

    @property
    def name(self) -> str:
        """What the run is called."""
        return str(self.known.get("name") or (self.manifest or {}).get("name") or self.directory.name)

    @property
    def status(self) -> str:
        """How it ended: finished, interrupted, failed; running, of one that goes on or was killed."""
        return str(self.known.get("status") or (self.manifest or {}).get("status") or "running")

    @property
    def usage(self) -> tuple[UsageRow, ...]:
        """What rank 0 and the processes that it started used."""
        return self.usage_by_rank.get(0, ())

    @property
    def ranks(self) -> int:
        """How many ranks trained."""
        return int(self.known.get("ranks") or (self.manifest or {}).get("ranks") or 1)

    @property
    def rank_0_note(self) -> str:
        """A sentence for what is of rank 0 alone, where there are more."""
        return f" Of {self.ranks} ranks this is rank 0, with what it started." if self.ranks > 1 else ""

    @property
    def has_validation_data(self) -> bool:
        """Whether there were images to validate with, however many epochs did."""
        if self.report is not None and "val_samples" in self.report:
            return self.report["val_samples"] is not None
        data = self.spec.get("data") or {}
        return data.get("train") is None or data.get("val") is not None  # a named set has both

    @property
    def trained(self) -> tuple[Pass, ...]:
        """The training passes."""
        return tuple(one for one in self.passes if one.split == "train")


def read_run(directory: Path) -> RunFiles:
    """Read the files of a run.

    Raises:
        ConfigError: the directory is of no run.

    """
    if not (directory / "manifest.json").is_file() and not (directory / "report.json").is_file():
        raise ConfigError(
            f"{directory} is no directory of a run: it has neither manifest.json nor report.json; "
            "name one that superdl run has written"
        )
    troubles: list[str] = []
    report = _mapping(directory / "report.json", troubles)
    steps = _steps(directory / "steps.jsonl", troubles)
    manifest = _mapping(directory / "manifest.json", troubles)
    several = int((report or {}).get("ranks") or (manifest or {}).get("ranks") or 1) > 1
    stalls = _stalls(directory / "stalls.jsonl", troubles)
    return RunFiles(
        directory=directory,
        report=report,
        manifest=manifest,
        steps=steps,
        usage_by_rank=_usage_by_rank(directory, troubles),
        passes=tuple(_passes(report, steps, stalls, several=several)),
        troubles=tuple(troubles),
    )


def _mapping(path: Path, troubles: list[str]) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        troubles.append(f"{path.name} cannot be read: {error}")
        return None
    if not isinstance(content, dict):
        troubles.append(f"{path.name} holds no mapping")
        return None
    return content


def _rows(path: Path, troubles: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON lines; of a run that was killed, the last may be half of one."""
    broken = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    broken += 1
                    continue
                if isinstance(row, dict):
                    yield row
                else:
                    broken += 1
    except FileNotFoundError:
        return
    except OSError as error:
        troubles.append(f"{path.name} cannot be read: {error}")
    if broken:
        troubles.append(f"{path.name} has {broken} line(s) that are no rows, such as one cut off by a kill")


def _steps(path: Path, troubles: list[str]) -> dict[tuple[int, str], StepColumns]:
    found: dict[tuple[int, str], StepColumns] = {}
    strange = 0
    for row in _rows(path, troubles):
        if row.get("loss", 0.0) is None:  # what is not finite is null
            row["loss"] = float("nan")
        try:
            step = StepRecord(**{name: row[name] for name in _STEP_FIELDS if name in row})
        except TypeError:  # a column of ours is not there
            strange += 1
            continue
        found.setdefault((step.epoch, step.split), StepColumns()).add(step)
    if strange:
        troubles.append(f"{path.name} has {strange} row(s) of another version of SUPER, which are left out")
    return found


def _usage_by_rank(directory: Path, troubles: list[str]) -> dict[int, tuple[UsageRow, ...]]:
    """Of this host's ranks; those of other hosts have written there."""
    found = {0: tuple(_usage(directory / "utilization.jsonl", troubles))}
    for path in directory.glob("utilization-rank*.jsonl"):
        rank = path.stem.removeprefix("utilization-rank")
        if rank.isdecimal():
            found[int(rank)] = tuple(_usage(path, troubles))
    return dict(sorted(found.items()))


def _usage(path: Path, troubles: list[str]) -> Iterator[UsageRow]:
    for row in _rows(path, troubles):
        if "at_s" in row and "subject" in row:
            yield UsageRow(**{name: row.get(name) for name in UsageRow._fields})  # type: ignore[arg-type]  # as it was written


def _passes(
    report: dict[str, Any] | None,
    steps: dict[tuple[int, str], StepColumns],
    stalls: dict[tuple[int, str], list[tuple[str, float]]],
    *,
    several: bool,
) -> Iterator[Pass]:
    """All passes in order; those that no report has, from their steps.

    Steps are written as they are done, and all of a pass at its end: one that another follows is complete.
    """
    told: dict[tuple[int, str], dict[str, Any]] = {}
    for epoch in (report or {}).get("epochs", ()):
        for split in ("train", "val"):
            if epoch.get(split) is not None:
                told[epoch["epoch"], split] = epoch[split]
    keys = sorted(told.keys() | steps.keys(), key=lambda one: (one[0], one[1] != "train"))
    for key in keys:
        if key in told:
            yield Pass(*key, told[key], complete=True)
            continue
        columns, complete = steps[key], key != keys[-1]
        summary = columns.totals.summary(
            columns.ended_at_s - columns.begun_at_s,
            None,
            stall_summary(stalls.get(key, []), len(columns.total_s)) if complete else None,
        )
        yield Pass(*key, asdict(summary), complete, of_rank_0=several)


def _stalls(path: Path, troubles: list[str]) -> dict[tuple[int, str], list[tuple[str, float]]]:
    """Cause and seconds of each stalled step, by pass."""
    found: dict[tuple[int, str], list[tuple[str, float]]] = {}
    for row in _rows(path, troubles):
        if {"epoch", "split", "cause", "wait_s"} <= row.keys():
            found.setdefault((row["epoch"], row["split"]), []).append((row["cause"], row["wait_s"]))
    return found
