"""Listeners of a run: progress on the screen, step times, step log, TensorBoard."""

from __future__ import annotations

import time
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from superdl.experiments.output import RowLog
from superdl.experiments.records import Listener, StepRecord, StepTime
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from superdl.experiments.records import EpochSummary

__all__ = ["Progress", "StepLog", "StepTimes", "TensorBoardLog"]

_LINES_PER_PASS = 4
_LINE_EVERY_S = 30.0
_STEP_FIGURES = (
    *("loss", "accuracy", "lr", "skipped", "wait_s", "read_s", "fetch_s", "decode_s", "compute_s", "total_s"),
    *("hits", "misses", "gpu_percent", "gpu_memory_bytes"),
)


class Progress(Listener):
    """Reports a line each quarter of a pass, and each half minute of a long one."""

    def __init__(self, tell: Callable[[str], None], epochs: int) -> None:
        """Send the lines to ``tell``."""
        self._tell = tell
        self._epochs = epochs
        self._begin("", 0)

    def _begin(self, name: str, batches: int) -> None:
        self._pass = name
        self._batches = batches
        self._done = self._samples = self._told = 0
        self._wait_s = 0.0
        self._start_s = self._told_s = time.perf_counter()

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Reset the counts."""
        self._begin(f"epoch {epoch + 1}/{self._epochs} {split}", batches)

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Count the steps, and report a line if one is due."""
        self._done += len(steps)
        self._samples += sum(step.samples for step in steps)
        self._wait_s += sum(step.wait_s for step in steps)
        now_s = time.perf_counter()
        due = self._done - self._told >= max(self._batches // _LINES_PER_PASS, 1)
        if not steps or not (due or now_s - self._told_s > _LINE_EVERY_S):
            return
        self._told, self._told_s = self._done, now_s
        elapsed_s = max(now_s - self._start_s, 1e-9)
        last = steps[-1]
        self._tell(
            f"{self._pass}  step {self._done}/{self._batches}  loss {last.loss:.3f}"
            + ("" if last.lr is None else f"  lr {last.lr:.3g}")
            + f"  {self._samples / elapsed_s:,.0f} images/s  {100 * self._wait_s / elapsed_s:.0f}% waiting"
            + _gpu_of(last)
        )

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Report the epoch."""
        train = summary.train
        validated = "" if summary.val is None else f", validation accuracy {summary.val.accuracy:.4f}"
        if train.skipped:
            validated += f", {train.skipped} steps skipped: float16 gradients were not finite"
        self._tell(
            f"epoch {summary.epoch + 1}/{self._epochs} done in {train.wall_s:.1f} s: "
            f"{train.images_per_s:,.0f} images/s, waiting {train.wait_s:.1f} s, "
            f"training accuracy {train.accuracy:.4f}{validated}"
        )


def _gpu_of(step: StepRecord) -> str:
    """Describe the GPU's use, if known, for a line."""
    busy = "" if step.gpu_percent is None else f"  GPU {step.gpu_percent:.0f}%"
    return busy + ("" if step.gpu_memory_bytes is None else f"  {step.gpu_memory_bytes / 2**30:.1f} GiB")


class StepTimes(Listener):
    """Measures the time from training step to training step, all included.

    It reports the mean of each group, and since the pass began: the difference shows the initial effect of a
    buffer.
    """

    def __init__(self, every: int, tell: Callable[[str], None]) -> None:
        """Report a line after each ``every`` steps."""
        self._every = every
        self._tell = tell
        self._begun_s = self._since_s = 0.0
        self._steps = 0
        self.times: list[StepTime] = []

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:  # noqa: ARG002  # as listeners are called
        """Reset the counts."""
        self._begun_s = self._since_s = time.time()
        self._steps = 0

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Record the time of each complete group."""
        now_s = time.time()
        for step in steps:
            if step.split != "train":
                continue
            # A GPU's steps are issued before they are done; this one is done.
            done_s = now_s if step is steps[-1] else step.finished_at_s
            self._steps += 1
            if self._steps == self._every:
                mean_s = (done_s - self._since_s) / self._every
                since_start_s = (done_s - self._begun_s) / (step.step + 1)
                self.times.append(StepTime(step.epoch, step.step + 1, self._every, mean_s, since_start_s))
                self._tell(
                    f"step {step.step + 1}: avg step time {since_start_s:.3f} s since the start, "
                    f"{mean_s:.3f} s over the last {self._every}"
                )
                self._since_s, self._steps = done_s, 0


class StepLog(Listener):
    """Writes every step, with all its fields, to ``steps.jsonl`` as it happens."""

    def __init__(self, directory: Path, name: str = "steps") -> None:
        """Create the file in ``directory``."""
        self._rows = RowLog(directory, name)

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Write the steps."""
        self._rows.write([asdict(step) for step in steps])

    def close(self) -> None:
        """Close the file."""
        self._rows.close()


class TensorBoardLog(Listener):
    """Writes training steps under ``step/``, passes under ``train/`` and ``val/``."""

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

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Write the figures of training steps, numbered through all epochs."""
        for step in steps:
            if step.split != "train":
                continue
            for name in _STEP_FIGURES:
                value = getattr(step, name)
                if value is None:
                    continue
                self._writer.add_scalar(f"step/{name}", value, self._step, walltime=step.finished_at_s)
            self._step += 1

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Write the figures of the epoch."""
        for split, figures in summary.splits():
            for item in fields(figures):
                value = getattr(figures, item.name)
                if isinstance(value, int | float):
                    self._writer.add_scalar(f"{split}/{item.name}", value, summary.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
