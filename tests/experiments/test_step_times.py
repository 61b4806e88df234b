"""Mean step times: of whole groups, each from the end of the one before."""

from __future__ import annotations

import time

import pytest

from superdl.experiments.records import StepRecord
from superdl.experiments.run.listeners import StepTimes


def record(step: int, finished_at_s: float, split: str = "train") -> StepRecord:
    zeros = ("wait_s", "read_s", "fetch_s", "decode_s", "compute_s", "total_s", "loss", "accuracy")
    rest = dict.fromkeys(zeros, 0.0) | dict.fromkeys(("hits", "misses", "size_bytes"), 0)
    return StepRecord(
        epoch=0, split=split, step=step, batch_id="", samples=4, finished_at_s=finished_at_s, **rest
    )


def test_a_group_ends_when_its_steps_are_done_not_when_they_were_queued() -> None:
    """Steps on a GPU have finished by the time that they are told; ``finished_at_s`` is of queueing."""
    times = StepTimes(2, lambda _: None)
    times.on_pass_start(0, "train", 4)
    queued_s = time.time() - 100.0
    times.on_steps([record(0, queued_s), record(1, queued_s)])
    assert [(one.step, one.steps) for one in times.times] == [(2, 2)]
    assert times.times[0].mean_s >= 0.0


def test_steps_told_together_are_told_apart_by_when_they_were_given_out() -> None:
    told: list[str] = []
    times = StepTimes(2, told.append)
    times.on_pass_start(0, "train", 6)
    begun_s = time.time()
    times.on_steps([record(step, begun_s + 3.0 * (step + 1)) for step in range(5)])
    assert [one.step for one in times.times] == [2, 4]
    assert times.times[1].mean_s == pytest.approx(3.0)
    assert told[1] == "step 4: 3.000 s/step"
    times.on_steps([record(0, begun_s, "val")])
    assert len(times.times) == 2
