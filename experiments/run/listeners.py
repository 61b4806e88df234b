"""Listeners for a run: progress on the console, and step times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from superdl.experiments.records import Listener, StepRecord, StepTime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from superdl.experiments.records import EpochSummary

_LINES_PER_PASS = 4
_LINE_EVERY_S = 30.0


class Progress(Listener):
    """Print a line after each quarter of a pass, and every half minute during a long pass."""

    def __init__(self, print_line: Callable[[str], None], epochs: int) -> None:
        self._print_line = print_line
        self._epochs = epochs

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Reset the counts."""
        self._pass = f"epoch {epoch + 1}/{self._epochs} {split}"
        self._batches = batches
        self._done = self._samples = self._printed = 0
        self._wait_s = 0.0
        self._start_s = self._printed_s = time.perf_counter()

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Count the steps, and print a line if due."""
        self._done += len(steps)
        self._samples += sum(step.samples for step in steps)
        self._wait_s += sum(step.wait_s for step in steps)
        now_s = time.perf_counter()
        due = self._done - self._printed >= max(self._batches // _LINES_PER_PASS, 1)
        if not steps or not (due or now_s - self._printed_s > _LINE_EVERY_S):
            return
        self._printed, self._printed_s = self._done, now_s
        elapsed_s = max(now_s - self._start_s, 1e-9)
        last = steps[-1]
        parts = [f"{self._pass}  step {self._done}/{self._batches}  loss {last.loss:.3f}"]
        if last.lr is not None:
            parts.append(f"lr {last.lr:.3g}")
        parts.append(f"{self._samples / elapsed_s:,.0f} images/s")
        parts.append(f"{100 * self._wait_s / elapsed_s:.0f}% waiting")
        self._print_line("  ".join(parts))

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Print a summary of the epoch."""
        train = summary.train
        validated = "" if summary.val is None else f", validation accuracy {summary.val.accuracy:.4f}"
        if train.skipped:
            validated += f", {train.skipped} steps skipped because float16 gradients were not finite"
        self._print_line(
            f"epoch {summary.epoch + 1}/{self._epochs} done in {train.wall_s:.1f} s: "
            f"{train.images_per_s:,.0f} images/s, waiting {train.wait_s:.1f} s, "
            f"training accuracy {train.accuracy:.4f}{validated}"
        )


class StepTimes(Listener):
    """Measure the mean time between training steps, over groups of ``every`` steps."""

    def __init__(self, every: int, print_line: Callable[[str], None]) -> None:
        self._every = every
        self._print_line = print_line
        self._begun_s = self._since_s = 0.0
        self._steps = 0
        self.times: list[StepTime] = []

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:  # noqa: ARG002  # a listener's signature
        """Reset the counts."""
        self._begun_s = self._since_s = time.time()
        self._steps = 0

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Record and print the mean time of each complete group."""
        now_s = time.time()
        for step in steps:
            if step.split != "train":
                continue
            # On a GPU, finished_at_s is the time when a step was issued. The newest step is done by now.
            done_s = now_s if step is steps[-1] else step.finished_at_s
            self._steps += 1
            if self._steps == self._every:
                mean_s = (done_s - self._since_s) / self._every
                # The mean of the epoch so far, beside the group's, shows the effect of an initial buffer.
                since_start_s = (done_s - self._begun_s) / (step.step + 1)
                self.times.append(StepTime(step.epoch, step.step + 1, self._every, mean_s, since_start_s))
                self._print_line(
                    f"step {step.step + 1}: avg step time {since_start_s:.3f} s since the start, "
                    f"{mean_s:.3f} s over the last {self._every}"
                )
                self._since_s, self._steps = done_s, 0
