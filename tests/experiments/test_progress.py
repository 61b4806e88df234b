"""Progress on a terminal and in a log, fed with the records of a short pass."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from superdl.experiments.records import EpochSummary, PassTotals, StepRecord
from superdl.experiments.run.listeners import BarProgress, LineProgress, make_progress

STEP = StepRecord(
    epoch=0,
    split="train",
    step=0,
    batch_id="00",
    samples=4,
    wait_s=0.0,
    read_s=0.0,
    fetch_s=0.0,
    decode_s=0.0,
    compute_s=0.0,
    total_s=0.0,
    hits=4,
    misses=0,
    size_bytes=1,
    loss=0.125,
    accuracy=1.0,
    finished_at_s=0.0,
)


def summary(*, validated: bool) -> EpochSummary:
    totals = PassTotals()
    totals.add(STEP)
    figures = totals.summary(2.0, None)
    return EpochSummary(0, figures, figures if validated else None)


def shown(*, terminal: bool, batches: int) -> str:
    file = io.StringIO()
    progress = make_progress(Console(file=file, force_terminal=terminal, width=120), epochs=3)
    assert isinstance(progress, BarProgress if terminal else LineProgress)
    progress.on_pass_start(0, "train", batches)
    for _ in range(batches):
        progress.on_steps([STEP])
    progress.on_steps([])
    progress.on_pass_start(0, "val", 1)
    progress.on_steps([STEP])
    progress.on_epoch_end(summary(validated=True))
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


def test_a_terminal_gets_a_bar_and_a_line_per_epoch():
    text = shown(terminal=True, batches=3)
    assert "3/3" in text
    assert "epoch 1/3 val" in text
    assert "epoch 1/3 done in 2.0 s" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_no_thread_draws(terminal):
    """DataLoader forks while progress is shown: see `BarProgress`."""
    before = threading.active_count()
    progress = make_progress(Console(file=io.StringIO(), force_terminal=terminal), epochs=1)
    progress.on_pass_start(0, "train", 2)
    progress.on_steps([STEP])
    assert threading.active_count() == before
    progress.close()


def test_without_validation_the_line_says_nothing_of_it():
    file = io.StringIO()
    LineProgress(Console(file=file, width=120), 1).on_epoch_end(summary(validated=False))
    assert "validation" not in file.getvalue()
