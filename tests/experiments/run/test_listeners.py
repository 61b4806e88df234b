"""What listens to a run: progress on a terminal and in a log, and the mean times of steps."""

from __future__ import annotations

import io
import threading
import time

import pytest
from rich.console import Console

from superdl.experiments.records import EpochSummary, PassTotals
from superdl.experiments.run.listeners import BarProgress, StepTimes, make_progress
from tests.experiments.step_records import step_record

STEP = step_record(loss=0.125, accuracy=1.0)


def shown(*, terminal: bool, batches: int, validated: bool = True) -> str:
    """All that a pass and its validation print; no thread draws, since DataLoader forks meanwhile."""
    file = io.StringIO()
    before = threading.active_count()
    progress = make_progress(Console(file=file, force_terminal=terminal, width=120), epochs=3)
    assert isinstance(progress, BarProgress) == terminal
    progress.on_pass_start(0, "train", batches)
    for _ in range(batches):
        progress.on_steps([STEP])
    progress.on_steps([])
    progress.on_pass_start(0, "val", 1)
    progress.on_steps([STEP])
    totals = PassTotals()
    totals.add(STEP)
    figures = totals.summary(2.0, None)
    progress.on_epoch_end(EpochSummary(0, figures, figures if validated else None))
    assert threading.active_count() == before
    progress.close()
    return file.getvalue()


def test_a_log_gets_a_few_lines():
    lines = shown(terminal=False, batches=100).splitlines()
    assert [line.split("  ")[:2] for line in lines[:-1]] == [
        ["epoch 1/3 train", "step 25/100"],
        ["epoch 1/3 train", "step 50/100"],
        ["epoch 1/3 train", "step 75/100"],
        ["epoch 1/3 train", "step 100/100"],
        ["epoch 1/3 val", "step 1/1"],
    ]
    assert "loss 0.125" in lines[0]
    assert lines[-1].startswith("epoch 1/3 done in 2.0 s: 2 images/s")
    assert lines[-1].endswith("training accuracy 1.0000, validation accuracy 1.0000")
    assert "validation" not in shown(terminal=False, batches=1, validated=False)


def test_a_terminal_gets_a_bar_and_a_line_per_epoch():
    text = shown(terminal=True, batches=3)
    assert "3/3" in text
    assert "epoch 1/3 val" in text
    assert "epoch 1/3 done in 2.0 s" in text


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
    assert told[1] == "step 4: 3.000 s/step"
    times.on_steps([step_record(finished_at_s=begun_s, split="val")])
    assert len(times.times) == 2
