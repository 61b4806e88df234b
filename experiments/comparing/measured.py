"""What a comparison needs of a run, read from its report and its samples of the processes.

What follows from it is left to `figures`.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "BillLine",
    "BillMeasured",
    "CpuSample",
    "EpochCost",
    "EpochMeasured",
    "PassMeasured",
    "PhaseMeasured",
    "RoundMeasured",
    "RunMeasured",
    "UtilizationMeasured",
    "read_measured_run",
    "refused_by_name",
]

CpuSample = tuple[float, dict[str, float]]
"""A Unix timestamp, and the CPU seconds by then of each group of processes."""


@dataclass(frozen=True, slots=True)
class PassMeasured:
    """A pass over one split; ``job`` and ``stalls`` are None where nobody told."""

    samples: int
    wall_s: float
    wait_s: float
    first_batch_s: float
    job: dict[str, Any] | None = None
    stalls: dict[str, Any] | None = None

    @property
    def produced(self) -> int | None:
        """Samples fetched and decoded for it; None where nobody told."""
        return None if self.job is None else int(self.job["samples_produced"])

    @property
    def stalls_s(self) -> dict[str, float]:
        """Seconds waited in steps that stalled, by cause."""
        causes = {} if self.stalls is None else self.stalls["causes"]
        return {cause: float(total["wait_s"]) for cause, total in causes.items()}


@dataclass(frozen=True, slots=True)
class EpochMeasured:
    """An epoch; ``val`` is None where it was not validated."""

    epoch: int
    train: PassMeasured
    val: PassMeasured | None = None

    @property
    def passes(self) -> tuple[PassMeasured, ...]:
        """Those that there were."""
        return (self.train,) if self.val is None else (self.train, self.val)


@dataclass(frozen=True, slots=True)
class PhaseMeasured:
    """What the processes of a run used in its start (no epoch) or in a pass, by group."""

    epoch: int | None
    wall_s: float
    groups: dict[str, dict[str, Any]]

    @property
    def cpu_s(self) -> dict[str, float]:
        """CPU seconds by group."""
        return {name: float(group["cpu_s"]) for name, group in self.groups.items()}


@dataclass(frozen=True, slots=True)
class UtilizationMeasured:
    """The phases of a run: of rank 0 and what it started."""

    phases: tuple[PhaseMeasured, ...] = ()


@dataclass(frozen=True, slots=True)
class BillLine:
    """What was paid for one thing, in US dollars; None where it has no price."""

    name: str
    usd: float | None


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What an epoch cost, in US dollars."""

    epoch: int
    usd: float


@dataclass(frozen=True, slots=True)
class BillMeasured:
    """What a run cost in US dollars: in all, by epoch, and by what is paid for."""

    usd: float
    lines: tuple[BillLine, ...]
    epochs: tuple[EpochCost, ...] = ()


@dataclass(frozen=True, slots=True)
class RunMeasured:
    """One run, by the names of its report. ``ends_s`` are timestamps by epoch, that of the start by -1."""

    name: str
    status: str
    train_samples: int
    epochs: tuple[EpochMeasured, ...]
    val_samples: int | None = None
    utilization: UtilizationMeasured | None = None
    ranks: int = 1
    wall_s: float | None = None
    bill: BillMeasured | None = None
    executor: str | None = None
    spec: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    loader_settings: dict[str, Any] | None = None
    ends_s: dict[int, float] | None = None

    @property
    def first_epoch(self) -> int:
        """The first that it did: a run that went on from another's checkpoint has its warm-up from there."""
        return self.epochs[0].epoch if self.epochs else 0

    def after(self, warmup_epochs: int) -> tuple[EpochMeasured, ...]:
        """Its epochs without the first ones that it did."""
        return tuple(one for one in self.epochs if one.epoch >= self.first_epoch + warmup_epochs)

    def end_s(self, epochs: int) -> float | None:
        """When so many epochs had ended: a timestamp; of none, when its start had."""
        return (self.ends_s or {}).get(self.first_epoch + epochs - 1 if epochs else -1)

    @property
    def phases(self) -> tuple[PhaseMeasured, ...]:
        """What its processes used; empty where nobody looked."""
        return () if self.utilization is None else self.utilization.phases

    @property
    def priced_bill(self) -> BillMeasured | None:
        """Its bill; None where its machine has no price, since the most would be missing."""
        lines = {} if self.bill is None else {line.name: line.usd for line in self.bill.lines}
        return None if lines.get("training machine") is None else self.bill

    @property
    def used_another_coordinator(self) -> bool:
        """Whether its functions and cache were not its own: then its samples tell nothing of them."""
        return (self.executor or "").startswith("as the coordinator")


@dataclass(frozen=True, slots=True)
class RoundMeasured:
    """One go of an arm: its runs, which went on at once.

    ``wall_s`` is from the start of the first process until the last run has reported, ``cpu_s`` the CPU time
    of all processes that came of it, as the system accounts for them; ``services`` are samples of what the
    runs shared, which took ``services_start_s`` to start. All are absent for runs that were found, not made.
    """

    runs: tuple[RunMeasured, ...]
    wall_s: float | None = None
    cpu_s: float | None = None
    services: tuple[CpuSample, ...] = ()
    services_start_s: float = 0.0


def read_measured_run(directory: Path) -> RunMeasured:
    """Read the run that has left ``directory``.

    Raises:
        ConfigError: there is no report of ``superdl run`` in it, or not one of this version's.

    """
    path = directory / "report.json"
    if not path.exists():
        raise ConfigError(f"{directory} holds no report.json, so no run has ended there")
    with refused_by_name(path, "a report"):
        report = json.loads(path.read_text(encoding="utf-8"))
        ends_s = _epoch_ends(directory / "utilization.jsonl")
        return TypeAdapter(RunMeasured).validate_python(report | {"ends_s": ends_s})


@contextlib.contextmanager
def refused_by_name(path: Path, what: str) -> Iterator[None]:
    """Name the file in errors that its content raises."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not {what} as this version writes it: {error!r}") from error


def _epoch_ends(path: Path) -> dict[int, float]:
    """When the start and each epoch ended: the last sample of each, which is taken on the border."""
    ends: dict[int, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        row = json.loads(line)
        if row["epoch"] is not None or row["split"] == "start":
            epoch = -1 if row["epoch"] is None else int(row["epoch"])
            ends[epoch] = max(ends.get(epoch, 0.0), float(row["at_s"]))
    return ends
