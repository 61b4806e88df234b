"""The arithmetic of summaries: sums, means over samples, and counters between epochs."""

from __future__ import annotations

import logging

from superdl.experiments.records import CounterLaps, LoaderCounters, PassTotals
from superdl.super_wire.errors import CoordinatorUnreachableError
from tests.experiments.step_records import step_record


class ScriptedSource:
    """Gives one reading after another; an error in the script is raised."""

    def __init__(self, *readings: LoaderCounters | Exception) -> None:
        self._readings = list(readings)

    def job_stats(self) -> LoaderCounters:
        reading = self._readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading


def test_a_pass_adds_steps_up_and_weighs_means_by_samples():
    totals = PassTotals()
    totals.add(step_record(samples=6, loss=1.0, accuracy=1.0, wait_s=2.0))
    totals.add(step_record(samples=2, loss=5.0, accuracy=0.0, wait_s=0.5))
    job = LoaderCounters(
        invocations=7, decode_s=1.5
    )  # of this lap; the records' is of whenever they were made
    summary = totals.summary(4.0, job)
    assert (summary.samples, summary.batches) == (8, 2)
    assert (summary.wait_s, summary.first_batch_s) == (2.5, 2.0)
    assert (summary.read_s, summary.compute_s) == (0.5, 0.25)
    assert (summary.hits, summary.misses, summary.size_bytes) == (6, 2, 200)
    assert (summary.loss, summary.accuracy, summary.top5_accuracy) == (2.0, 0.75, None)
    assert summary.images_per_s == 2.0
    assert (summary.invocations, summary.decode_s, summary.job) == (7, 1.5, job)


def test_a_pass_without_steps_or_statistics_is_no_division_by_zero():
    summary = PassTotals().summary(0.0, None)
    assert (summary.images_per_s, summary.loss, summary.accuracy) == (0.0, 0.0, 0.0)
    assert summary.invocations is None
    assert summary.decode_s is None


def test_laps_are_differences_and_the_first_begins_with_the_job():
    meter = CounterLaps(
        ScriptedSource(
            LoaderCounters(invocations=3, decode_s=1.5, cache_misses=8),
            LoaderCounters(invocations=3, decode_s=1.5, cache_misses=8, cache_hits=8),
            LoaderCounters(invocations=5, decode_s=2.0, cache_misses=9, cache_hits=15),
        ),
    )
    assert meter.lap() == LoaderCounters(invocations=3, decode_s=1.5, cache_misses=8)
    assert meter.lap() == LoaderCounters(cache_hits=8)
    assert meter.lap() == LoaderCounters(invocations=2, decode_s=0.5, cache_misses=1, cache_hits=7)


def test_a_counter_that_was_reset_counts_from_zero():
    meter = CounterLaps(
        ScriptedSource(
            LoaderCounters(invocations=10, cache_hits=5), LoaderCounters(invocations=4, cache_hits=6)
        )
    )
    meter.lap()
    assert meter.lap() == LoaderCounters(invocations=4, cache_hits=1)


def test_a_share_of_costs_may_fall_without_a_reset():
    """Other jobs that read the samples take over a part of what they cost."""
    alone = LoaderCounters(invocations=7, usd=1.0)
    shared = LoaderCounters(invocations=7, usd=0.5)
    restarted = LoaderCounters(invocations=2, usd=0.25)
    meter = CounterLaps(ScriptedSource(alone, shared, restarted))
    laps = [meter.lap() for _ in range(3)]
    assert [lap.usd for lap in laps if lap] == [1.0, -0.5, 0.25]
    assert [lap.invocations for lap in laps if lap] == [7, 0, 2]


def test_an_unreachable_coordinator_costs_a_lap_not_the_run(caplog):
    meter = CounterLaps(
        ScriptedSource(
            LoaderCounters(invocations=1),
            CoordinatorUnreachableError("nobody at 127.0.0.1:1"),
            LoaderCounters(invocations=5),
        ),
    )
    meter.lap()
    with caplog.at_level(logging.WARNING):
        assert meter.lap() is None
    assert "nobody at 127.0.0.1:1" in caplog.text
    assert meter.lap() == LoaderCounters(invocations=4)
