"""A rank's look-ahead, neighbours, pages, reports, misses, seeks, leases and epochs, and what it drops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import SampleState, footprint, runs_of
from superdl.coordinator.core.events import JobClosed
from superdl.coordinator.core.jobs import next_use_s
from superdl.coordinator.core.state import EPOCH_SETS_MAX
from tests.coordinator.core.driver import RECORD_BYTES, Driver

TAKEN = int(footprint(np.array([RECORD_BYTES]))[0])


def test_the_window_is_bounded_by_the_ranks_share_of_the_budget():
    driver = Driver(
        size=800, budget_bytes=TAKEN * 8 * 12, lookahead_batches=64, request_samples=8, capacity=64
    )
    driver.open()
    assert len(driver.requested()) == 6 * 8
    driver.open("other", seed=7)
    driver.answer_all()
    # Half the budget leaves three batches for each of two ranks. The first rank keeps its earlier requests.
    assert len(driver.in_state(SampleState.RESIDENT)) <= 9 * 8


def test_the_earliest_deadline_goes_first_across_jobs():
    driver = Driver(size=400, lookahead_batches=32, request_samples=8, capacity=1)
    driver.open("fast", seed=1)
    driver.open("slow", seed=2)
    for name in ("fast", "slow"):
        driver.ask(0, 40, job=name)
    for position in range(20):  # fast reads ten batches a second and slow one; no requests are answered
        driver.read(position, job="fast", after_s=0.1)
        if position % 10 == 9:
            driver.read(position // 10, job="slow")
    requests = {"fast": 0, "slow": 0}
    for _ in range(10):
        driver.answer(driver.requests[0], after_s=0.0)
        requests[driver.requests[-1].job] += 1
    # Within a second fast needs ten batches of 8 samples, slow one or two.
    assert requests["fast"] >= 7
    assert requests["slow"] >= 1


def steady(*, step_s, latency_s, batches=120, **settings):
    """Run a job that reads a batch every ``step_s`` while functions keep up."""
    driver = Driver(**{"size": 8000, "capacity": 64, "request_samples": 8, **settings})
    driver.open()
    for position in range(batches):
        driver.ask(position, position + 1, yielded=position)
        driver.now_s += latency_s
        for request in list(driver.requests):
            driver.answer(request, after_s=0.0)
        driver.read(position, after_s=max(step_s - latency_s, 0.0))
    return driver


def ahead(driver):
    return driver.core.lookahead_batches(driver.core.job("job"))


def test_the_window_follows_latency_and_pace():
    slow, fast = steady(step_s=1.0, latency_s=0.2), steady(step_s=0.25, latency_s=0.2)
    assert ahead(slow) < ahead(fast) < 64
    far = steady(step_s=0.25, latency_s=0.24, lookahead_batches=9)
    assert ahead(far) <= 9, "the configured look-ahead is the maximum"


def test_stalls_widen_the_window_and_steady_reading_narrows_it():
    driver = steady(step_s=0.5, latency_s=0.1)
    before = ahead(driver)
    cursor = driver.core.job("job").cursors[0]
    for position in range(120, 124):
        driver.ask(position, position + 1, yielded=position)
        driver.read(position, missed=(0,))
        driver.read(position, hits=7, after_s=0.5)
        driver.answer_all()
    assert cursor.caution > 4
    assert ahead(driver) > before
    for position in range(124, 500):
        driver.ask(position, position + 1, yielded=position)
        driver.read(position, after_s=0.5)
        driver.answer_all()
    assert cursor.caution < 1.2


S = SampleState


def after_a_report_of_a_spoilt_record():
    driver = Driver(lookahead_batches=2)
    plan = driver.open()
    driver.ask(0, 8)
    driver.answer_all()
    before = len(driver.audits)
    driver.read(0, missed=(1, 2), corrupt=(2,))
    spoilt, lost = driver.audits[before:]
    assert (spoilt.whole, lost.whole) == (True, False)
    assert spoilt.indices.tolist() == [int(plan.batch(0, 0, 0).indices[2])]
    assert driver.drops == []
    return driver, spoilt


def test_a_corrupt_record_is_dropped_and_produced_again_after_an_audit():
    driver, spoilt = after_a_report_of_a_spoilt_record()
    driver.finish_audit(spoilt, [0])
    assert [drop.indices.tolist() for drop in driver.drops] == [spoilt.indices.tolist()]
    assert driver.requested() == spoilt.indices.tolist()


def test_forged_reports_of_a_corrupt_record_cost_one_audit():
    driver, spoilt = after_a_report_of_a_spoilt_record()
    looks = len(driver.audits)
    for _ in range(100):  # while the audit is pending
        driver.read(0, missed=(2,), corrupt=(2,))
    assert len(driver.audits) == looks
    driver.finish_audit(spoilt, [1000])
    assert driver.drops == []
    assert driver.requests == []
    assert driver.core.state.states(driver.key(), spoilt.indices).tolist() == [SampleState.RESIDENT]


@pytest.mark.parametrize(
    "what",
    [
        {"position": 8},
        {"position": -1},
        {"epoch": -1},
        {"epoch": 2**62},
        {"job": "unknown"},
        {"rank": 3},
        {"missed": (8, 4000)},
        {"missed": (-1,)},
    ],
    ids=str,
)
def test_a_report_outside_the_plan_changes_nothing(what):
    driver = Driver(lookahead_batches=2)
    driver.open()
    driver.answer_all()
    assert driver.read(**{"position": 5, "missed": (1,), "corrupt": (4000,)} | what) == []
    assert driver.core.state.failures.get((driver.key(), 0), "") == ""


def test_empty_batches_of_a_mix_need_no_reports():
    driver = Driver(size=8, lookahead_batches=2)
    plan = driver.open(batch_size=1, mix=(8, 792))  # each batch of one: one sample per 100 batches
    cursor = driver.core.job("job").cursors[0]
    for start in range(0, 800, 40):
        driver.ask(start, start + 40, yielded=start)
        expected = [at for at in range(start, start + 40) if not plan.is_empty(at, 0)]
        assert cursor.watermark == min([*expected, start + 40])
        driver.answer_all()
        for position in expected:
            [index] = plan.batch(0, position, 0).indices.tolist()
            assert driver.core.state.states(driver.key(), np.array([index])).tolist() == [S.RESIDENT]
            driver.read(position, samples=1, hits=1, after_s=0.01)
        assert cursor.watermark == start + 40


def test_two_iterators_of_a_sampler_both_get_their_batches():
    driver = Driver(size=80, lookahead_batches=2, random=True)
    plan = driver.open()
    for step in range(10):
        for epoch in (0, 1):
            driver.ask(step, step + 1, epoch=epoch, yielded=step)
            driver.answer_all()
            expected = plan.batch(epoch, step, 0).indices
            states = driver.core.state.states(driver.key(epoch), expected)
            if not (states == S.RESIDENT).all():
                driver.read(step, missed=tuple(np.flatnonzero(states != S.RESIDENT).tolist()), epoch=epoch)
                driver.answer_all()
            assert (driver.core.state.states(driver.key(epoch), expected) == S.RESIDENT).all()
            driver.read(step, epoch=epoch, after_s=0.01)


FAR = [(7919 * number) % 100_003 for number in range(1, 301)]


@pytest.mark.parametrize("answered", [True, False])
def test_calls_for_distant_epochs_use_bounded_memory_and_the_latest_is_served(answered):
    driver = Driver(size=64, random=True, lookahead_batches=2)
    plan = driver.open()
    for epoch in FAR:
        driver.ask(0, 8, epoch=epoch)
        if answered:
            driver.answer_all()
        assert len(driver.state.sets) <= EPOCH_SETS_MAX
    driver.read(3, missed=tuple(range(8)), epoch=FAR[-1])
    driver.answer_all()
    driver.read(3, missed=tuple(range(8)), epoch=FAR[-1], after_s=0.1)
    driver.answer_all()
    for audit in list(driver.audits):
        driver.finish_audit(audit, [1000] * audit.indices.size)
    indices = plan.batch(FAR[-1], 3, 0).indices
    assert set(driver.core.state.states(driver.key(epoch=FAR[-1]), indices)) == {SampleState.RESIDENT}
    assert len(driver.state.sets) <= EPOCH_SETS_MAX
    driver.step(JobClosed("job", 0))
    assert all(samples.resident_count for samples in driver.state.sets.values())


def test_samples_of_lapsed_jobs_are_dropped_after_unneeded_ones_and_before_others():
    driver = Driver(size=200, capacity=1, request_samples=8, lease_s=15.0)
    driver.open("gone", seed=1)
    driver.open("here", seed=2)
    everything = np.arange(driver.size)
    alive_s = next_use_s(driver.key(), everything, [driver.core.job("here")])
    driver.wait(14.0)
    driver.ask(0, 1, job="here")
    driver.wait(2.0)
    lapsed_s = next_use_s(driver.key(), everything, [driver.core.job("gone")])
    assert lapsed_s.min() > alive_s.max()
    assert np.isfinite(lapsed_s).all()
    assert (next_use_s(driver.key(), everything, driver.core.jobs) <= alive_s.max()).all()


def test_a_silent_rank_does_not_hold_back_its_job():
    driver = Driver(size=200, capacity=4, lease_s=15.0)
    for rank in (0, 1):
        driver.open("job", rank=rank, replicas=2, batch_size=4)
    driver.answer_all()
    driver.ask(0, 20, rank=0)
    for position in range(15):
        driver.read(position, rank=0)
        driver.wait(1.5)
    job = driver.core.job("job")
    assert not job.lapsed
    assert [cursor.lapsed for cursor in job.cursors.values()] == [False, True]
    assert job.watermark == 15


@given(
    st.lists(st.lists(st.integers(1, 900), min_size=1, max_size=20), min_size=1, max_size=8),
    st.integers(1, 2000),
)
def test_runs_divide_objects_into_windows_of_bytes(shards, run_bytes):
    objects = np.repeat(np.arange(len(shards)), [len(lengths) for lengths in shards])
    offsets = np.concatenate([np.cumsum([0, *lengths[:-1]]) for lengths in shards])
    lengths = np.concatenate(shards)
    runs = runs_of(objects, offsets, lengths, run_bytes)
    if runs is None:
        runs = np.arange(objects.size)
    else:
        assert runs.size < objects.size
    assert runs[0] == 0
    for start, stop in zip(runs, [*runs[1:], objects.size], strict=True):
        assert np.unique(objects[start:stop]).size == 1
        read_bytes = offsets[stop - 1] + lengths[stop - 1] - offsets[start]
        assert read_bytes < run_bytes + max(0, lengths.max() - run_bytes // 2)
    # At most as many runs as there would be of half the size.
    assert runs.size <= sum(2 * sum(shard) // run_bytes + 1 for shard in shards)


def test_each_row_group_is_a_run():
    groups = np.array([0, 0, 1, 1, 1, 7, 0, 100, 200], dtype=np.uint8)
    lengths = np.array([0, 1, 0, 1, 200, 0, 100, 100, 100], dtype=np.uint8)
    objects, whole = np.array([0] * 6 + [1] * 3, dtype=np.uint8), np.array([True] * 6 + [False] * 3)
    assert runs_of(objects, groups, lengths, 1000, whole=whole).tolist() == [0, 2, 5, 6]
