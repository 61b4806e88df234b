"""Writes every step of a run as it happens, to ``steps.jsonl`` and ``steps.csv``."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from superdl.experiments.output import RowLog
from superdl.experiments.records import StepRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from superdl.experiments.records import EpochSummary

__all__ = ["StepLog"]


class StepLog:
    """A listener that appends each group of steps; the columns are the fields of `StepRecord`."""

    def __init__(self, directory: Path, name: str = "steps") -> None:
        """Make the files in ``directory``."""
        self._rows = RowLog(directory, name, [item.name for item in fields(StepRecord)])

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Nothing to write: each step names its epoch and split."""

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Write the steps."""
        self._rows.write([asdict(step) for step in steps])

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Nothing to write: epochs are in the report."""

    def close(self) -> None:
        """Close the files."""
        self._rows.close()
