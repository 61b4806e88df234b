"""Writes every step of a run as one JSON line, as it happens."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from experiments.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from experiments.records import EpochSummary, StepRecord

__all__ = ["StepLog"]


class StepLog:
    """A listener that appends to ``steps.jsonl``; what is written is on disk after each group of steps."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` for writing."""
        self._file = path.open("w", encoding="utf-8")

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Nothing to write: each step names its epoch and split."""

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Write the steps."""
        self._file.writelines(strict_json(asdict(step)) + "\n" for step in steps)
        self._file.flush()

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Nothing to write: epochs are in the report."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
