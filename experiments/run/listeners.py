"""What listens while a run trains: progress on the screen, step times, a log of steps, TensorBoard events.

Each is a `Listener` of `experiments.records`. What it hears comes from `experiments.training`; the final
figures are left to the report.
"""

from __future__ import annotations

import time
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from superdl.experiments.output import RowLog
from superdl.experiments.records import Listener, StepRecord, StepTime
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import Console

    from superdl.experiments.records import EpochSummary, PassSummary

__all__ = ["BarProgress", "LineProgress", "StepLog", "StepTimes", "TensorBoardLog", "make_progress", "say"]

_LINES_PER_PASS = 4
_STEP_FIGURES = ("loss", "accuracy", "wait_s", "read_s", "compute_s", "total_s", "hits", "misses")


def say(console: Console, line: str) -> None:
    """Print a line for people as it is."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def make_progress(console: Console, epochs: int) -> BarProgress | LineProgress:
    """Return a bar if ``console`` is a terminal, else lines."""
    return BarProgress(console, epochs) if console.is_terminal else LineProgress(console, epochs)


class _Rate:
    """What has been seen of the present pass."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.done = 0
        self.samples = 0
        self._wait_s = 0.0
        self._start_s = time.perf_counter()

    def add(self, steps: Sequence[StepRecord]) -> str:
        """Count the steps and return a phrase for people."""
        self.done += len(steps)
        self.samples += sum(step.samples for step in steps)
        self._wait_s += sum(step.wait_s for step in steps)
        elapsed_s = max(time.perf_counter() - self._start_s, 1e-9)
        waiting_percent = 100 * self._wait_s / elapsed_s
        images_per_s = self.samples / elapsed_s
        return f"loss {steps[-1].loss:.3f}  {images_per_s:,.0f} images/s  {waiting_percent:.0f}% waiting"


class LineProgress(Listener):
    """A few lines per pass, for logs and pipes."""

    def __init__(self, console: Console, epochs: int) -> None:
        """Print to ``console``."""
        self._console = console
        self._epochs = epochs
        self._rate = _Rate(0)
        self._next_line = 0
        self._pass = ""

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Count from zero."""
        self._rate = _Rate(batches)
        self._pass = f"epoch {epoch + 1}/{self._epochs} {split}"
        self._next_line = max(batches // _LINES_PER_PASS, 1)

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Print a line each quarter of the pass."""
        if not steps:
            return
        phrase = self._rate.add(steps)
        if self._rate.done >= self._next_line:
            self._next_line = self._rate.done + max(self._rate.batches // _LINES_PER_PASS, 1)
            say(self._console, f"{self._pass}  step {self._rate.done}/{self._rate.batches}  {phrase}")

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Print the epoch."""
        train = summary.train
        validated = "" if summary.val is None else f", validation accuracy {summary.val.accuracy:.4f}"
        say(
            self._console,
            f"epoch {summary.epoch + 1}/{self._epochs} done in {train.wall_s:.1f} s: "
            f"{train.images_per_s:,.0f} images/s, waiting {train.wait_s:.1f} s, "
            f"training accuracy {train.accuracy:.4f}{validated}",
        )

    def close(self) -> None:
        """Nothing is held."""


class BarProgress(LineProgress):
    """A bar for the present pass and one line for each epoch that is done.

    It is drawn from the training loop, not from rich's own thread: DataLoader forks its workers while a bar
    is up, and a lock that another thread holds during a fork stays locked in the child.
    """

    def __init__(self, console: Console, epochs: int) -> None:
        """Draw on ``console``."""
        super().__init__(console, epochs)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[phrase]}"),
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._task: TaskID | None = None
        self._bar.start()

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Begin a new bar."""
        super().on_pass_start(epoch, split, batches)
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(self._pass, total=batches, phrase="")
        self._bar.refresh()

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Move the bar."""
        if steps and self._task is not None:
            phrase = self._rate.add(steps)
            self._bar.update(self._task, completed=self._rate.done, phrase=phrase, refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._bar.stop()


class StepTimes(Listener):
    """Takes the time from training step to training step, waiting and everything else with it."""

    def __init__(self, every: int, tell: Callable[[str], None]) -> None:
        """Tell a line after each ``every`` steps."""
        self._every = every
        self._tell = tell
        self._since_s = 0.0
        self._steps = 0
        self.times: list[StepTime] = []

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:  # noqa: ARG002  # as listeners are called
        """Count from zero."""
        self._since_s = time.time()
        self._steps = 0

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Take the time of what is whole.

        On a GPU a step is given out before it is done: of the last of those told, which are, it is now.
        """
        now_s = time.time()
        for step in steps:
            if step.split != "train":
                continue
            done_s = now_s if step is steps[-1] else step.finished_at_s
            self._steps += 1
            if self._steps == self._every:
                mean_s = (done_s - self._since_s) / self._every
                self.times.append(StepTime(step.epoch, step.step + 1, self._every, mean_s))
                self._tell(f"step {step.step + 1}: {mean_s:.3f} s/step")
                self._since_s, self._steps = done_s, 0


class StepLog(Listener):
    """Writes every step as it happens to ``steps.jsonl`` and ``steps.csv``, all fields of it."""

    def __init__(self, directory: Path, name: str = "steps") -> None:
        """Make the files in ``directory``."""
        self._rows = RowLog(directory, name, [item.name for item in fields(StepRecord)])

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Write the steps."""
        self._rows.write([asdict(step) for step in steps])

    def close(self) -> None:
        """Close the files."""
        self._rows.close()


class TensorBoardLog(Listener):
    """Writes training steps under ``step/`` and the passes of an epoch under ``train/`` and ``val/``."""

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
                self._writer.add_scalar(f"step/{name}", value, self._step, walltime=step.finished_at_s)
            self._step += 1

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Write the figures of the epoch."""
        for split, figures in summary.splits():
            self._write_pass(split, figures, summary.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()

    def _write_pass(self, split: str, figures: PassSummary, epoch: int) -> None:
        for item in fields(figures):
            value = getattr(figures, item.name)
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{split}/{item.name}", value, epoch)
