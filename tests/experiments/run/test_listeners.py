"""What listens to a run: lines of progress, and the mean times of steps."""

from __future__ import annotations

import time

import pytest

from superdl.experiments.records import EpochSummary, PassTotals
from superdl.experiments.run.listeners import Progress, StepTimes
from tests.experiments.step_records import step_record

STEP = step_record(loss=0.125, accuracy=1.0)


@pytest.mark.parametrize("validated", [True, False])
def test_a_pass_gets_a_few_lines_and_an_epoch_one(validated):
    lines: list[str] = []
    progress = Progress(lines.append, epochs=3)
    for split, batches in (("train", 100), ("val", 1)):
        progress.on_pass_start(0, split, batches)
        progress.on_steps([])
        for _ in range(batches):
            progress.on_steps([STEP])
    assert [line.split("  ")[:2] for line in lines] == [
        ["epoch 1/3 train", "step 25/100"],
        ["epoch 1/3 train", "step 50/100"],
        ["epoch 1/3 train", "step 75/100"],
        ["epoch 1/3 train", "step 100/100"],
        ["epoch 1/3 val", "step 1/1"],
    ]
    assert "loss 0.125" in lines[0]
    totals = PassTotals()
    totals.add(STEP)
    figures = totals.summary(2.0, None)
    progress.on_epoch_end(EpochSummary(0, figures, figures if validated else None))
    assert lines[-1].startswith("epoch 1/3 done in 2.0 s: 2 images/s")
    end = "training accuracy 1.0000" + ", validation accuracy 1.0000" * validated
    assert lines[-1].endswith(end)


def test_a_long_pass_gets_a_line_each_half_minute(monkeypatch):
    clock_s = iter(range(0, 1000, 16))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock_s))
    lines: list[str] = []
    progress = Progress(lines.append, epochs=1)
    progress.on_pass_start(0, "train", 10_000)
    for _ in range(6):
        progress.on_steps([STEP])
    assert len(lines) == 3


def test_a_group_of_steps_ends_when_they_are_done_not_when_they_were_queued():
    """Steps on a GPU have finished by the time that they are told; ``finished_at_s`` is of queueing."""
    times = StepTimes(2, lambda _: None)
    times.on_pass_start(0, "train", 4)
    queued_s = time.time() - 100.0
    times.on_steps([step_record(step=step, finished_at_s=queued_s) for step in (0, 1)])
    assert [(one.step, one.steps) for one in times.times] == [(2, 2)]
    assert times.times[0].mean_s >= 0.0


def test_steps_told_together_are_told_apart_by_when_they_were_given_out():
    told: list[str] = []
    times = StepTimes(2, told.append)
    times.on_pass_start(0, "train", 6)
    begun_s = time.time()
    times.on_steps([step_record(step=step, finished_at_s=begun_s + 3.0 * (step + 1)) for step in range(5)])
    assert [one.step for one in times.times] == [2, 4]
    assert times.times[1].mean_s == pytest.approx(3.0)
    assert told[1] == "step 4: avg step time 3.000 s since the start, 3.000 s over the last 2"
    times.on_steps([step_record(finished_at_s=begun_s, split="val")])
    assert len(times.times) == 2


def test_a_group_is_told_beside_the_mean_since_the_start():
    """As the study mnist_split's original has it: a buffer that drains shows in the last group alone."""
    times = StepTimes(2, lambda _: None)
    times.on_pass_start(0, "train", 6)
    begun_s = time.time()
    times.on_steps([step_record(step=step, finished_at_s=begun_s + (step + 1) ** 2) for step in range(5)])
    assert [one.mean_s for one in times.times] == pytest.approx([2.0, 6.0], abs=0.1)
    assert [one.since_start_s for one in times.times] == pytest.approx([2.0, 4.0], abs=0.1)
