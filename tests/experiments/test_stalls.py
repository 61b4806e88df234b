"""Which steps stalled, and why: told by the coordinator for what was missed, else by the step itself."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from superdl.experiments.records import CauseTotal, LoaderCounters
from superdl.experiments.stalls import StallMeter, cause_of, is_stalled
from superdl.super_wire.errors import CoordinatorError
from tests.experiments.step_records import step_record

STEP = step_record(fetch_s=0.0, decode_s=0.0, epoch=1, step=3, total_s=1.0, hits=0, misses=0)
STEP = replace(STEP, plan_epoch=7, position=9)


class Told(NamedTuple):
    rank: int
    epoch: int
    position: int
    cause: str


class Job:
    """Tells stalls, or fails."""

    def __init__(self, *stalls: Told, error: Exception | None = None) -> None:
        self.stalls = stalls
        self.error = error
        self.asked = 0

    def job_stats(self):
        self.asked += 1
        if self.error is not None:
            raise self.error
        stalls = self.stalls

        class Stats(LoaderCounters):
            @property
            def recent_stalls(self):
                return stalls

        return Stats()


@pytest.mark.parametrize(
    ("wait_s", "total_s", "stalled"),
    [(0.5, 1.0, True), (0.051, 1.0, True), (0.05, 1.0, False), (0.0009, 0.001, False), (0.0011, 0.002, True)],
)
def test_a_step_stalls_by_its_share_and_by_a_least_time(wait_s, total_s, stalled):
    assert is_stalled(replace(STEP, wait_s=wait_s, total_s=total_s)) is stalled


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
        ({"fetch_s": 0.2, "decode_s": 0.1}, "storage"),
        ({"fetch_s": 0.1, "decode_s": 0.2}, "decoding"),
        ({}, "unknown"),
    ],
)
def test_each_stall_has_one_cause(changes, cause):
    assert cause_of(replace(STEP, **changes), {(7, 9): "throttle"}) == cause


def test_a_pass_is_summed_up_and_the_next_begins_with_nothing():
    job = Job(Told(0, 7, 9, "decode"), Told(1, 7, 10, "retry"), Told(0, 7, 10, "cold_start"))
    meter = StallMeter(job)
    slow, missed = replace(STEP, hits=8, wait_s=2.0), replace(STEP, misses=8, wait_s=0.25)
    meter.add([slow, missed, replace(STEP, wait_s=0.0)])
    meter.add([replace(missed, position=10)])
    summary, stalls = meter.lap()
    assert (summary.steps, summary.stalled, summary.wait_s) == (4, 3, 2.5)
    assert list(summary.causes.items()) == [
        ("cache", CauseTotal(1, 2.0)),
        ("decoding", CauseTotal(1, 0.25)),
        ("starting", CauseTotal(1, 0.25)),
    ]
    assert [stall.cause for stall in stalls] == ["cache", "decoding", "starting"]
    assert job.asked == 1
    assert meter.lap() == (replace(summary, steps=0, stalled=0, wait_s=0.0, causes={}), [])
    assert job.asked == 1, "nothing was missed, so there was nothing to ask"


def test_it_is_asked_in_time_also_where_most_misses_stall_no_step_and_ranks_share_the_job():
    job, told = Job(), []
    meter = StallMeter(job, rank=3, replicas=4)
    for position in range(1000):
        told += [Told(rank, 7, position, "decoding" if rank == 3 else "storage") for rank in range(4)]
        job.stalls = tuple(told[-1024:])
        meter.add([replace(STEP, misses=1, position=position, wait_s=0.0 if position % 4 else 0.5)])
    _, stalls = meter.lap()
    assert [stall.cause for stall in stalls] == ["decoding"] * 250
    assert job.asked < 10, "once for many"


def test_a_coordinator_that_does_not_answer_ends_no_training():
    meter = StallMeter(Job(error=CoordinatorError("gone")))
    meter.add([replace(STEP, misses=1)])
    summary, _ = meter.lap()
    assert list(summary.causes) == ["unknown"]
