"""What is dropped is what is needed last: next uses and victims against brute force over the plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import EVERY_EPOCH, Plan, SetKey
from superdl.coordinator.core.jobs import Cursor, Job
from superdl.coordinator.core.room import CANDIDATES_LEAST, choose_victims, next_use_s
from superdl.coordinator.core.samples import SampleSet, SampleState, footprint
from superdl.coordinator.core.timing import Pace

NAME = b"data"
RECORD = int(footprint(np.array([1000]))[0])

plans = st.builds(
    Plan,
    size=st.integers(1, 40),
    batch_size=st.integers(1, 7),
    replicas=st.integers(1, 3),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
)


def job_at(plan: Plan, *lows: int, name: str = "job", random: bool = False, interval_s: float = 1.0) -> Job:
    job = Job(name, NAME, random, plan)
    for rank, low in enumerate(lows):
        job.cursors[rank] = Cursor(rank, low, low, low, low, 0.0, 0.0, Pace(0.0))
        job.cursors[rank].pace.interval_s = interval_s
    return job


def brute_force_s(key: SetKey, index: int, job: Job) -> float:
    """Walk over this epoch and the next, batch by batch of all ranks."""
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


def residents(key: SetKey, size: int, indices: list[int]) -> SampleSet:
    samples = SampleSet(key, size, record_bytes=1000, known_absent=True)
    chosen = np.array(indices, dtype=np.int64)
    samples.move(chosen, SampleState.IN_FLIGHT)
    samples.store(chosen, np.full(chosen.size, 1000))
    return samples


@given(plans, st.data())
def test_next_use_is_what_a_walk_over_the_plan_finds(plan, data):
    low = data.draw(st.integers(0, 3 * plan.batches_per_epoch))
    job = job_at(plan, low, interval_s=0.5)
    key = SetKey(NAME, EVERY_EPOCH)
    found = next_use_s(key, np.arange(plan.size), [job])
    assert found.tolist() == [brute_force_s(key, index, job) for index in range(plan.size)]


@given(plans, st.data())
def test_next_use_of_a_random_recipe_is_in_its_own_epoch(plan, data):
    low = data.draw(st.integers(0, 3 * plan.batches_per_epoch))
    job = job_at(plan, low, random=True)
    key = SetKey(NAME, data.draw(st.integers(0, low // plan.batches_per_epoch + 1)))
    found = next_use_s(key, np.arange(plan.size), [job])
    assert found.tolist() == [brute_force_s(key, index, job) for index in range(plan.size)]


def test_the_soonest_of_all_jobs_counts():
    fast = job_at(Plan(40, 4, seed=1), 2, name="fast", interval_s=0.1)
    slow = job_at(Plan(40, 8, seed=2), 0, name="slow", interval_s=3.0)
    key = SetKey(NAME, EVERY_EPOCH)
    both = next_use_s(key, np.arange(40), [fast, slow])
    each = [next_use_s(key, np.arange(40), [job]) for job in (fast, slow)]
    assert both.tolist() == np.minimum(*each).tolist()


def test_a_job_of_another_dataset_has_no_say():
    key = SetKey(b"other", EVERY_EPOCH)
    assert np.isinf(next_use_s(key, np.arange(40), [job_at(Plan(40, 4), 0)])).all()


def test_what_was_given_out_is_needed_now():
    job = job_at(Plan(40, 4, shuffle=False), 2)
    job.cursors[0].yielded = 5
    uses_s = next_use_s(SetKey(NAME, EVERY_EPOCH), np.arange(40), [job])
    assert uses_s[8:24].tolist() == [0.0] * 12 + [3.0] * 4


@given(plans, plans, st.data())
def test_victims_are_those_with_the_farthest_next_use(plan, other, data):
    other = Plan(plan.size, other.batch_size, other.replicas, other.seed, other.shuffle)
    low, low2 = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    jobs = [job_at(plan, low, low + 1, name="a"), job_at(other, low2, name="b", interval_s=0.3)]
    key = SetKey(NAME, EVERY_EPOCH)
    there = sorted(data.draw(st.sets(st.integers(0, plan.size - 1), min_size=1)))
    wanted, later_than_s = data.draw(st.integers(1, len(there))), data.draw(st.sampled_from((-1.0, 0.0, 2.0)))
    victims = choose_victims(
        {key: residents(key, plan.size, there)},
        jobs,
        wanted_bytes=wanted * RECORD,
        later_than_s=later_than_s,
        turn=1,
        spared={},
    )
    chosen = [index for victim in victims for index in victim.indices.tolist()]
    uses_s = {index: min(brute_force_s(key, index, job) for job in jobs) for index in there}
    candidates = sorted((use_s for use_s in uses_s.values() if use_s > later_than_s), reverse=True)
    assert sorted((uses_s[index] for index in chosen), reverse=True) == candidates[:wanted]
    assert len(set(chosen)) == len(chosen)
    assert sum(victim.freed_bytes for victim in victims) == len(chosen) * RECORD


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), st.integers(0, 3), st.integers(1, 60)
)
def test_epochs_of_a_random_recipe_go_in_the_order_of_their_use(epochs, epoch, wanted):
    plan = Plan(20, 4, seed=5)
    job = job_at(plan, epoch * plan.batches_per_epoch + 2, random=True)
    sets = {SetKey(NAME, number): residents(SetKey(NAME, number), 20, list(range(20))) for number in epochs}
    victims = choose_victims(sets, [job], wanted_bytes=wanted * RECORD, later_than_s=-1.0, turn=1, spared={})
    uses_s = {(key, index): brute_force_s(key, index, job) for key in sets for index in range(20)}
    chosen = [(victim.samples, index) for victim in victims for index in victim.indices.tolist()]
    farthest = sorted(uses_s.values(), reverse=True)[: len(chosen)]
    assert len(chosen) == min(wanted, 20 * len(epochs))
    assert sorted((uses_s[one] for one in chosen), reverse=True) == farthest


def test_without_jobs_everything_may_go():
    key = SetKey(NAME, EVERY_EPOCH)
    sets = {key: residents(key, 30, list(range(30)))}
    (victims,) = choose_victims(sets, [], wanted_bytes=10**9, later_than_s=10**9, turn=1, spared={})
    assert victims.indices.tolist() == list(range(30))


def test_what_readers_wait_for_stays():
    key = SetKey(NAME, EVERY_EPOCH)
    sets = {key: residents(key, 30, list(range(30)))}
    (victims,) = choose_victims(
        sets, [], wanted_bytes=10**9, later_than_s=-1.0, turn=1, spared={key: np.array([3, 7, 3])}
    )
    assert sorted({*range(30)} - set(victims.indices.tolist())) == [3, 7]


def test_of_nothing_nothing_is_dropped():
    assert choose_victims({}, [], wanted_bytes=1, later_than_s=-1.0, turn=1, spared={}) == []


@pytest.mark.parametrize("wanted", [50, 2000])
def test_of_very_many_a_part_is_looked_at_and_another_each_time(wanted):
    size = 10 * CANDIDATES_LEAST
    key = SetKey(NAME, EVERY_EPOCH)
    sets = {key: residents(key, size, list(range(size)))}
    job = job_at(Plan(size, 16, seed=1), 0)
    uses_s = next_use_s(key, np.arange(size), [job])
    seen: set[int] = set()
    for turn in range(5):
        (victims,) = choose_victims(
            sets, [job], wanted_bytes=wanted * RECORD, later_than_s=0.0, turn=turn, spared={}
        )
        assert victims.indices.size == wanted
        # Nearly as good as looking at all: what goes is among the last quarter to be used.
        assert uses_s[victims.indices].min() > np.quantile(uses_s, 0.75)
        seen |= set(victims.indices.tolist())
    assert len(seen) >= 2 * wanted
