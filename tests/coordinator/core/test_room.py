"""Make room by dropping the samples needed last, so that no reader waits for room in vain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import EVERY_EPOCH, Plan, SampleState, SetKey
from superdl.coordinator.core.cache import CANDIDATES_LEAST, choose_victims
from superdl.coordinator.core.capacity import Pace
from superdl.coordinator.core.events import CacheGrew, CacheResized
from superdl.coordinator.core.jobs import Cursor, Job, next_use_s
from superdl.coordinator.core.samples import SampleSet, footprint
from superdl.super_wire.draws import Draws
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import Driver

S = SampleState
TAKEN = int(footprint(1000))


def crowded(samples, **settings):
    """A cache for ``samples`` samples, and a job that reads 64 in order, 8 at a time."""
    driver = Driver(budget_bytes=samples * TAKEN, capacity=2, request_samples=8, **settings)
    driver.open(shuffle=False)
    driver.ask(0, 8)
    return driver


def test_a_dead_reader_blocks_others_only_for_seconds():
    driver = crowded(2)
    driver.read(5, missed=(0, 1))
    driver.answer_all()
    driver.read(6, missed=(0, 1))
    assert driver.requests == []
    driver.wait(5.0)
    assert driver.requested() == [48, 49]


def test_a_write_refused_for_memory_makes_room_and_costs_no_attempt():
    driver = crowded(64, lookahead_batches=4)
    for position in range(4):
        driver.answer_all()
        driver.read(position, after_s=0.05)
    held = len(driver.in_state(S.RESIDENT))
    (request, *_) = driver.requests
    driver.answer(request, Outcome.CACHE_FULL)
    assert len(driver.in_state(S.RESIDENT)) <= held - request.indices.size
    assert not driver.state.fleet.executors[0].breaker.tripped
    assert not driver.state.set_of(driver.key()).attempts.any()
    driver.step(CacheResized(64 * TAKEN))  # as after checking the server
    driver.wait(1.0)
    driver.answer_all()
    assert set(driver.in_state(S.RESIDENT)) >= set(request.indices.tolist())


def test_an_epoch_too_far_ahead_to_count_its_batches_can_be_evicted():
    driver = Driver(size=8, random=True, budget_bytes=4 * TAKEN, capacity=2)
    driver.open("long", batch_size=1, draws=Draws(weights=np.ones(8).tobytes(), count=2**40))
    driver.answer_all()
    epoch = 2**40 - 1
    driver.open("late", batch_size=1, shuffle=False, at=(epoch, 0))
    for position in range(7):
        driver.read(position, job="late", epoch=epoch, samples=1, hits=0, missed=(0,))
        driver.answer_all()
        driver.read(position, job="late", epoch=epoch, samples=1, hits=1)
    driver.read(7, job="late", epoch=epoch, samples=1, hits=0, missed=(0,))
    assert driver.requested() == [7]


@given(others=st.integers(0, 100), more=st.integers(40, 100), pushed=st.lists(st.floats(0, 1), min_size=1))
def test_records_pushed_by_pending_requests_do_not_count_as_foreign_memory(others, more, pushed):
    driver = Driver(budget_bytes=64 * TAKEN, capacity=2, request_samples=8)
    driver.step(CacheGrew(others * TAKEN))
    driver.open(shuffle=False)
    driver.ask(0, 8)
    reserved_bytes = driver.state.reserved_bytes
    assert bool(reserved_bytes) == (others < 64)
    for share in pushed:
        driver.step(CacheGrew(others * TAKEN + int(share * reserved_bytes)))
        assert driver.state.foreign_bytes == others * TAKEN
    excess_bytes = (others + more) * TAKEN  # foreign data grows by more than requests can have pushed
    driver.step(CacheGrew(excess_bytes))
    assert excess_bytes - reserved_bytes <= driver.state.foreign_bytes <= excess_bytes
    driver.answer_all()
    driver.step(CacheGrew(-1))
    assert driver.state.foreign_bytes == 0


def test_a_sample_larger_than_the_budget_is_produced_only_for_a_waiting_reader():
    driver = Driver(size=4, budget_bytes=100, capacity=4)
    driver.open(batch_size=2, shuffle=False)
    driver.ask(0, 2)
    assert driver.requests == []
    driver.read(0, missed=(0, 1))
    assert driver.requested() == [0]


NAME = b"data"
RECORD = int(footprint(np.array([1000]))[0])


@st.composite
def plans(draw):
    size, batch_size, replicas = (draw(st.integers(1, most)) for most in (40, 7, 3))
    drop_last = draw(st.booleans()) and batch_size * replicas <= size
    seed, shuffle = draw(st.integers(0, 3)), draw(st.booleans())
    return Plan(size, batch_size, replicas, seed, shuffle=shuffle, drop_last=drop_last)


def job_at(plan, *lows, name="job", random=False, interval_s=1.0):
    job = Job(name, NAME, random, plan)
    for rank, low in enumerate(lows):
        job.cursors[rank] = Cursor(job, rank, low, low, low, low, 0.0, 0.0, Pace(0.0))
        job.cursors[rank].pace.interval_s = interval_s
    return job


def brute_force_s(key, index, job):
    """Walk through this epoch and the next, over the batches of all ranks."""
    epoch, _ = job.epoch_and_position(job.watermark)
    for absolute in range(job.watermark, (epoch + 2) * job.plan.batches_per_epoch):
        at_epoch, position = job.epoch_and_position(absolute)
        if key.epoch not in (EVERY_EPOCH, at_epoch):
            continue
        batches = [job.plan.batch(at_epoch, position, rank).indices for rank in range(job.plan.replicas)]
        if index in np.concatenate(batches):
            distance = absolute - job.watermark
            now = any(cursor.watermark <= absolute <= cursor.watermark for cursor in job.cursors.values())
            return 0.0 if now else distance * job.interval_s
    return np.inf


def residents(key, size, indices):
    samples = SampleSet(key, size, record_bytes=1000, known_absent=True)
    chosen = np.array(indices, dtype=np.int64)
    samples.move(chosen, SampleState.IN_FLIGHT)
    samples.store(chosen, np.full(chosen.size, 1000))
    return samples


@given(plans(), plans(), st.booleans(), st.data())
def test_victims_are_those_with_the_farthest_next_use(plan, other, random, data):
    """With a random recipe, a sample's next use is in its own epoch."""
    other = Plan(plan.size, other.batch_size, other.replicas, other.seed, other.shuffle)
    low, low2 = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    jobs = [job_at(plan, low, low + 1, name="a", random=random)]
    jobs += [job_at(other, low2, name="b", interval_s=0.3, random=random)]
    epochs = st.integers(0, low // plan.batches_per_epoch + 1) if random else st.just(EVERY_EPOCH)
    key = SetKey(NAME, data.draw(epochs))
    there = sorted(data.draw(st.sets(st.integers(0, plan.size - 1), min_size=1)))
    count, later_than_s = data.draw(st.integers(1, len(there))), data.draw(st.sampled_from((-1.0, 0.0, 2.0)))
    victims = choose_victims(
        {key: residents(key, plan.size, there)},
        jobs,
        size_bytes=count * RECORD,
        later_than_s=later_than_s,
        turn=1,
        spared={},
    )
    chosen = [index for indices in victims.values() for index in indices.tolist()]
    uses_s = {index: min(brute_force_s(key, index, job) for job in jobs) for index in there}
    candidates = sorted((use_s for use_s in uses_s.values() if use_s > later_than_s), reverse=True)
    assert sorted((uses_s[index] for index in chosen), reverse=True) == candidates[:count]
    assert len(set(chosen)) == len(chosen)


@pytest.mark.parametrize("count", [50, 2000])
def test_of_very_many_samples_each_search_considers_another_part(count):
    size = 10 * CANDIDATES_LEAST
    key = SetKey(NAME, EVERY_EPOCH)
    sets = {key: residents(key, size, list(range(size)))}
    job = job_at(Plan(size, 16, seed=1), 0)
    uses_s = next_use_s(key, np.arange(size), [job])
    seen = set()
    for turn in range(5):
        victims = choose_victims(
            sets, [job], size_bytes=count * RECORD, later_than_s=0.0, turn=turn, spared={}
        )[key]
        assert victims.size == count
        # Nearly as good as looking at every sample: victims are in the last quarter to be used.
        assert uses_s[victims].min() > np.quantile(uses_s, 0.75)
        seen |= set(victims.tolist())
    assert len(seen) >= 2 * count
