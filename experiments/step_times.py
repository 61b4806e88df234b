"""The mean time of every so many training steps, printed as they come and kept for the report.

Whole runs are timed in `experiments.records`; here it is how a run settles, or slows down, step by step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from superdl.experiments.records import EpochSummary, StepRecord

__all__ = ["StepTime", "StepTimes"]


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean seconds of the ``steps`` training steps up to ``step``, counted from 1 in each epoch."""

    epoch: int
    step: int
    steps: int
    mean_s: float


class StepTimes:
    """A listener that takes the time from step to step, waiting and everything else with it."""

    def __init__(self, every: int, tell: Callable[[str], None]) -> None:
        """Tell a line after each ``every`` steps."""
        self._every = every
        self._tell = tell
        self._since_s = 0.0
        self._steps = 0
        self.times: list[StepTime] = []

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:  # noqa: ARG002  # as listeners are called
        """Begin to count anew."""
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

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Nothing to do: the next pass begins anew."""
