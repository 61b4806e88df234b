"""Read the parts of a run that a comparison uses, for `figures`."""

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
"""A Unix timestamp, and the CPU seconds up to it for each group of processes."""

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class RunMeasured:
    """One run, represented by its ``report``."""

    report: Mapping[str, Any]

    @property
    def first_epoch(self) -> int:
        """The first epoch that this run trained, where its warm-up begins."""
        return int(self.report["epochs"][0]["epoch"]) if self.report["epochs"] else 0

    def after(self, warmup_epochs: int) -> list[dict[str, Any]]:
        """Return the epochs after this run's first ``warmup_epochs``."""
        first = self.first_epoch + warmup_epochs
        return [epoch for epoch in self.report["epochs"] if epoch["epoch"] >= first]

    def end_s(self, epochs: int) -> float | None:
        """Return the time when ``epochs`` epochs had ended; for 0, the start phase."""
        epoch = self.first_epoch + epochs - 1 if epochs else None
        ends = [phase.get("ended_at_s") for phase in self.phases if phase["epoch"] == epoch]
        return ends[-1] if ends else None

    @property
    def phases(self) -> list[dict[str, Any]]:
        """Process usage in the start phase and in each pass; empty without monitoring."""
        return list((self.report["utilization"] or {}).get("phases", ()))

    @property
    def priced_bill(self) -> dict[str, Any] | None:
        """The bill; None if the machine, usually the largest part, has no price."""
        bill = self.report["bill"]
        lines = {line["name"]: line["usd"] for line in (bill or {}).get("lines", ())}
        return None if lines.get("training machine") is None else bill


@dataclass(frozen=True, slots=True)
class RoundMeasured:
    """One repeat of an arm: its runs, which ran at the same time.

    ``wall_s`` is from the start of the first process until the last run has reported, ``cpu_s`` the CPU time
    of all processes that descend from it, as the system accounts for them; ``services`` samples the services
    shared by the runs, which took ``services_start_s`` to start. All are absent for runs made elsewhere.
    """

    runs: tuple[RunMeasured, ...]
    wall_s: float | None = None
    cpu_s: float | None = None
    services: tuple[CpuSample, ...] = ()
    services_start_s: float = 0.0


def read_measured_run(directory: Path) -> RunMeasured:
    """Read the run in ``directory``.

    Raises:
        ConfigError: it holds no report of ``superdl run``, or one of another version.
    """
    path = directory / REPORT_NAME
    if not path.exists():
        raise ConfigError(f"{directory} holds no {REPORT_NAME}, so no run was begun there")
    return RunMeasured(read_json(path, _FORMAT))


def read_json(path: Path, expected: int) -> dict[str, Any]:
    """Read a file that names its format.

    Raises:
        ConfigError: the file cannot be read, or has another format.
    """
    try:
        content = user_text.read_json(path)
    except FileNotFoundError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict) or content.get("format") != expected:
        raise ConfigError(f"{path} is not of format {expected}, which this version reads: make it again")
    return content
