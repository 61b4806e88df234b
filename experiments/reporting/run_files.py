"""Read a run's report, even if the run is not complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import EXECUTORS
from superdl.super_wire.stall_causes import BUCKET, RESTARTING, wait_for
from superdl.super_wire.user_text import read_json

if TYPE_CHECKING:
    from pathlib import Path

REPORT_NAME = "report.json"
REPORT_FORMAT = 4


class Pass(NamedTuple):
    """Metrics of one pass over a split, keyed by the fields of `experiments.records.PassSummary`."""

    epoch: int
    split: str
    metrics: dict[str, Any]

    @property
    def name(self) -> str:
        """The pass's name in tables, where epochs are counted from 1."""
        return f"{self.epoch + 1} {self.split}"

    @property
    def job(self) -> dict[str, Any]:
        """The job's counters for this pass, or an empty mapping if they were not reported."""
        return self.metrics["job"] or {}

    @property
    def stalls(self) -> dict[str, float]:
        """Seconds waited for each cause in `super_wire.stall_causes`. Empty if none were reported."""
        waits: dict[str, float] = {}
        for cause, total in ((self.metrics["stalls"] or {}).get("causes") or {}).items():
            waits[wait_for(cause)] = waits.get(wait_for(cause), 0.0) + float(total["wait_s"])
        return waits


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run as read from its report. ``facts`` is the content of ``report.json``."""

    directory: Path
    facts: dict[str, Any]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """All passes in the report, in order."""
        return tuple(
            Pass(epoch["epoch"], split, epoch[split])
            for epoch in self.facts["epochs"]
            for split in ("train", "val")
            if epoch[split]
        )

    def passes_after(self, epochs: int) -> list[Pass]:
        """Return the passes after the report's first ``epochs`` epochs."""
        first = {epoch_pass.epoch for epoch_pass in self.trained[:epochs]}
        return [epoch_pass for epoch_pass in self.passes if epoch_pass.epoch not in first]

    @property
    def trained(self) -> tuple[Pass, ...]:
        """The training passes."""
        return tuple(epoch_pass for epoch_pass in self.passes if epoch_pass.split == "train")

    @property
    def validated(self) -> tuple[Pass, ...]:
        """The validation passes."""
        return tuple(epoch_pass for epoch_pass in self.passes if epoch_pass.split == "val")

    @property
    def phases(self) -> list[dict[str, Any]]:
        """Resource use in the start phase and in each pass, or an empty list if it was not monitored."""
        return list((self.facts["utilization"] or {}).get("phases") or ())

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.facts["name"])

    @property
    def status(self) -> str:
        """``finished``, ``interrupted``, ``failed`` or ``running``. A killed run remains ``running``."""
        return str(self.facts["status"])

    @property
    def setup(self) -> set[str] | None:
        """The run's setup, to pass to `Wait.remedy`, or None if a coordinator determined it."""
        executors = {name.strip() for name in (self.facts["executor"] or "").split(",")} - {""}
        if not executors <= EXECUTORS.keys():
            return None
        source, loader = self.facts["spec"]["data"]["train"] or "", self.facts["loader_settings"]
        is_local = "://" not in source or source.lower().startswith("file://")
        restarts = loader.get("num_workers") and not loader.get("persistent_workers")
        return executors | ({RESTARTING} if restarts else set()) | (set() if is_local else {BUCKET})

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.facts["ranks"])


def read_run(directory: Path) -> RunFiles:
    """Read a run's report from the run's directory.

    Raises:
        ConfigError: the directory contains no run, or a report that this version cannot read.
    """
    if not (directory / REPORT_NAME).is_file():
        if not directory.is_dir():
            raise ConfigError(f"there is no directory {directory}. Pass one that superdl run created.")
        reports = [path for depth in ("*", "*/*") for path in directory.glob(f"{depth}/{REPORT_NAME}")]
        remedy = "Pass one that superdl run created."
        if newest := max(reports, key=lambda path: path.stat().st_mtime, default=None):
            remedy = f"It contains runs, such as {newest.parent}."
        raise ConfigError(f"{directory} is not a run directory: it has no {REPORT_NAME}. {remedy}")
    return RunFiles(directory, read_format(directory / REPORT_NAME, REPORT_FORMAT))


def read_format(path: Path, expected: int) -> dict[str, Any]:
    """Read a JSON file, and check that its format is ``expected``."""
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict) or content.get("format") != expected:
        raise ConfigError(
            f"{path} is not in format {expected}, which this version of SUPER reads. Use the version that "
            "wrote it."
        )
    return content
