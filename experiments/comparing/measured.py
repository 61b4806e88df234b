"""What a comparison needs of a run: its report. The rest is left to `figures`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superdl.experiments.reporting.run_files import REPORT_NAME
from superdl.super_wire import user_text
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["CpuSample", "RoundMeasured", "RunMeasured", "read_json", "read_measured_run"]

CpuSample = tuple[float, dict[str, float]]
"""A Unix timestamp, and the CPU seconds by then of each group of processes."""

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class RunMeasured:
    """One run, by its ``report``."""

    report: Mapping[str, Any]

    @property
    def first_epoch(self) -> int:
        """The first that it did: a run that went on from another's checkpoint has its warm-up from there."""
        return int(self.report["epochs"][0]["epoch"]) if self.report["epochs"] else 0

    def after(self, warmup_epochs: int) -> list[dict[str, Any]]:
        """Its epochs without the first ones that it did."""
        least = self.first_epoch + warmup_epochs
        return [one for one in self.report["epochs"] if one["epoch"] >= least]

    def end_s(self, epochs: int) -> float | None:
        """When so many epochs had ended: a timestamp; of none, when its start had."""
        epoch = self.first_epoch + epochs - 1 if epochs else None
        ends = [phase.get("ended_at_s") for phase in self.phases if phase["epoch"] == epoch]
        return ends[-1] if ends else None

    @property
    def phases(self) -> list[dict[str, Any]]:
        """What its processes used in its start and in each pass; empty where nobody looked."""
        return list((self.report["utilization"] or {}).get("phases", ()))

    @property
    def priced_bill(self) -> dict[str, Any] | None:
        """Its bill; None where its machine has no price, since the most would be missing."""
        bill = self.report["bill"]
        lines = {line["name"]: line["usd"] for line in (bill or {}).get("lines", ())}
        return None if lines.get("training machine") is None else bill


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
    path = directory / REPORT_NAME
    if not path.exists():
        raise ConfigError(f"{directory} holds no {REPORT_NAME}, so no run was begun there")
    return RunMeasured(read_json(path, _FORMAT))


def read_json(path: Path, expected: int) -> dict[str, Any]:
    """Read a file that names its format.

    Raises:
        ConfigError: it cannot be read, or is of another format.

    """
    try:
        content = user_text.read_json(path)
    except FileNotFoundError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict) or content.get("format") != expected:
        raise ConfigError(f"{path} is not of format {expected}, which this version reads: make it again")
    return content
