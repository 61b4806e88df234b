"""Sums and means of passes, counters between passes, and causes of stalls."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from superdl.experiments.records import (
    CauseTotal,
    CounterLaps,
    LoaderCounters,
    PassTotals,
    StallMeter,
    cause_of,
)
from superdl.super_wire.errors import CoordinatorUnreachableError
from tests.experiments.small_runs import step_record


class Source:
    """A loader that returns or raises its readings in order, repeating the last."""

    def __init__(self, *readings):
        self.readings = list(readings)
        self.calls = 0

    def job_stats(self):
        self.calls += 1
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(reading, Exception):
            raise reading
        return reading


def test_a_pass_sums_its_steps_and_weights_means_by_samples():
    totals = PassTotals()
    totals.add(step_record(samples=6, loss=1.0, accuracy=1.0, wait_s=2.0))
    totals.add(step_record(samples=2, loss=5.0, accuracy=0.0, wait_s=0.5))
    job = LoaderCounters(invocations=7, decode_s=1.5)
    summary = totals.summary(4.0, job)
    assert (summary.samples, summary.batches) == (8, 2)
    assert (summary.wait_s, summary.first_batch_s) == (2.5, 2.0)
    assert (summary.read_s, summary.compute_s) == (0.5, 0.25)
    assert (summary.hits, summary.misses, summary.size_bytes) == (6, 2, 200)
    assert (summary.loss, summary.accuracy, summary.top5_accuracy) == (2.0, 0.75, None)
    assert summary.images_per_s == 2.0
    assert summary.job == job


def test_counters_of_an_unreachable_coordinator_are_in_the_next_lap(caplog):
    meter = CounterLaps(
        Source(
            LoaderCounters(invocations=1),
            CoordinatorUnreachableError("no coordinator at x"),
            LoaderCounters(invocations=5),
        ),
    )
    meter.lap()
    with caplog.at_level(logging.WARNING):
        assert meter.lap() is None
    assert "no coordinator at x" in caplog.text
    assert meter.lap() == LoaderCounters(invocations=4)


STEP = step_record(fetch_s=0.0, decode_s=0.0, epoch=1, step=3, total_s=1.0, hits=0, misses=0)
STEP = replace(STEP, plan_epoch=7, position=9)


class Stall(NamedTuple):
    rank: int
    epoch: int
    position: int
    cause: str


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"misses": 2, "hits": 6}, "limits"),
        ({"misses": 2, "position": 8}, "unknown"),
        ({"misses": 2, "plan_epoch": None}, "unknown"),
        ({"hits": 8}, "cache"),
        ({"straight": 8, "decode_s": 9.0}, "storage"),
        ({"straight": 6, "misses": 2}, "limits"),
        ({"hits": 8, "step": 0}, "starting"),
        ({"step": 0}, "starting"),
        ({"step": 0, "fetch_s": 0.1, "decode_s": 0.3}, "decoding"),
        ({"decode_s": 0.3}, "unknown"),  # fetching was not measured
        ({"fetch_s": 0.2, "decode_s": 0.1}, "storage"),
        ({"fetch_s": 0.1, "decode_s": 0.2}, "decoding"),
        ({}, "unknown"),
    ],
)
def test_each_stall_has_one_cause(changes, cause):
    assert cause_of(replace(STEP, **changes), {(7, 9): "throttle"}) == cause


def test_stalls_of_a_pass_are_summed_by_cause():
    stalls = [Stall(0, 7, 9, "decode"), Stall(1, 7, 10, "retry"), Stall(0, 7, 10, "cold_start")]
    job = Source(SimpleNamespace(recent_stalls=stalls))
    meter = StallMeter(job)
    slow, missed = replace(STEP, hits=8, wait_s=2.0), replace(STEP, misses=8, wait_s=0.25)
    meter.add([slow, missed, replace(STEP, wait_s=0.0)])
    meter.add([replace(missed, position=10)])
    summary = meter.lap()
    assert (summary.steps, summary.stalled, summary.wait_s) == (4, 3, 2.5)
    assert list(summary.causes.items()) == [
        ("cache", CauseTotal(1, 2.0)),
        ("decoding", CauseTotal(1, 0.25)),
        ("starting", CauseTotal(1, 0.25)),
    ]
    assert job.calls == 1
    assert meter.lap() == replace(summary, steps=0, stalled=0, wait_s=0.0, causes={})
    assert job.calls == 1, "not called without misses"
