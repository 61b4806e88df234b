"""Writes a run's figures as TensorBoard events.

The package `tensorboard` is optional, and imported only when a log is made.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from superdl.experiments.records import EpochSummary, PassSummary, StepRecord

__all__ = ["TensorBoardLog"]

_STEP_FIGURES = ("loss", "accuracy", "wait_s", "read_s", "compute_s", "total_s", "hits", "misses")


class TensorBoardLog:
    """A listener: training steps go under ``step/``, the passes of an epoch under ``train/`` and ``val/``."""

    def __init__(self, directory: Path) -> None:
        """Open a log in ``directory``.

        Raises:
            ConfigError: the package `tensorboard` is not installed.

        """
        try:
            from torch.utils.tensorboard import SummaryWriter  # needs the optional package
        except ImportError as error:
            raise ConfigError(
                f"no TensorBoard events: the package tensorboard cannot be imported ({error}); "
                "pip install 'superdl[train]'",
            ) from error
        self._writer: Any = SummaryWriter(log_dir=str(directory))
        self._step = 0

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Nothing to write."""

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Write the figures of training steps, numbered through all epochs."""
        for step in steps:
            if step.split != "train":
                continue
            for name in _STEP_FIGURES:
                value = getattr(step, name)
                self._writer.add_scalar(f"step/{name}", value, self._step, walltime=step.finished_at_s)
            self._step += 1

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Write the figures of the epoch."""
        self._write_pass("train", summary.train, summary.epoch)
        if summary.val is not None:
            self._write_pass("val", summary.val, summary.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()

    def _write_pass(self, split: str, figures: PassSummary, epoch: int) -> None:
        for item in fields(figures):
            value = getattr(figures, item.name)
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{split}/{item.name}", value, epoch)
