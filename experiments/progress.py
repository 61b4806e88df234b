"""Live progress of a run: a bar on a terminal, plain lines in a log.

Listens to `experiments.training`; the final figures are left to `experiments.report`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from superdl.experiments.records import EpochSummary, StepRecord

__all__ = ["BarProgress", "LineProgress", "make_progress"]

_LINES_PER_PASS = 4


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


class BarProgress:
    """A bar for the present pass and one line for each epoch that is done.

    It is drawn from the training loop, not from rich's own thread: DataLoader forks its workers while a bar
    is up, and a lock that another thread holds during a fork stays locked in the child.
    """

    def __init__(self, console: Console, epochs: int) -> None:
        """Draw on ``console``."""
        self._console = console
        self._epochs = epochs
        self._rate = _Rate(0)
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
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._rate = _Rate(batches)
        self._task = self._bar.add_task(f"epoch {epoch + 1}/{self._epochs} {split}", total=batches, phrase="")
        self._bar.refresh()

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Move the bar."""
        if steps and self._task is not None:
            phrase = self._rate.add(steps)
            self._bar.update(self._task, completed=self._rate.done, phrase=phrase, refresh=True)

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Leave a line above the bar."""
        self._console.print(_epoch_line(summary, self._epochs), highlight=False)

    def close(self) -> None:
        """Give the terminal back."""
        self._bar.stop()


class LineProgress:
    """A few lines per pass, for logs and pipes."""

    def __init__(self, console: Console, epochs: int) -> None:
        """Print to ``console``."""
        self._console = console
        self._epochs = epochs
        self._rate = _Rate(0)
        self._next_line = 0
        self._pass = ""

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Begin to count anew."""
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
            self._print(f"{self._pass}  step {self._rate.done}/{self._rate.batches}  {phrase}")

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Print the epoch."""
        self._print(_epoch_line(summary, self._epochs))

    def close(self) -> None:
        """Nothing is held."""

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def _epoch_line(summary: EpochSummary, epochs: int) -> str:
    train = summary.train
    validated = "" if summary.val is None else f", validation accuracy {summary.val.accuracy:.4f}"
    return (
        f"epoch {summary.epoch + 1}/{epochs} done in {train.wall_s:.1f} s: "
        f"{train.images_per_s:,.0f} images/s, waiting {train.wait_s:.1f} s, "
        f"training accuracy {train.accuracy:.4f}{validated}"
    )
