"""Of members of one object, a request takes along what is absent beside what is wanted, where it may."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import ExecutorFacts, PacksLost, SampleState, footprint, runs_of
from superdl.coordinator.core.lookahead import with_their_neighbours
from tests.coordinator.core.driver import RECORD_BYTES, Driver

TAKEN = int(footprint(np.array([RECORD_BYTES]))[0])


@given(
    st.lists(st.lists(st.integers(1, 900), min_size=1, max_size=20), min_size=1, max_size=8),
    st.integers(1, 2000),
)
def test_runs_cut_objects_into_windows_of_bytes(shards, run_bytes):
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
    # No more of them than half as large ones would be.
    assert runs.size <= sum(2 * sum(shard) // run_bytes + 1 for shard in shards)


def test_row_groups_are_runs_beside_shards():
    groups = np.array([0, 0, 1, 1, 1, 7, 0, 100, 200], dtype=np.uint8)
    lengths = np.array([0, 1, 0, 1, 200, 0, 100, 100, 100], dtype=np.uint8)
    objects, whole = np.array([0] * 6 + [1] * 3, dtype=np.uint8), np.array([True] * 6 + [False] * 3)
    assert runs_of(objects, groups, lengths, 1000, whole=whole).tolist() == [0, 2, 5, 6]


def ready(runs, **settings):
    """A job that has read a batch, so that it is known how long functions take; nothing is under way."""
    driver = Driver(runs=np.array(runs), **{"lookahead_batches": 1, "capacity": 1, **settings})
    driver.open(seed=3)
    driver.ask(0, 1)
    driver.answer_all()
    driver.read(0)
    driver.answer_all()
    return driver


def take(driver, wanted, *, slack_s=1e6, epoch=-1, executor=0):
    cursor = driver.core.job("job").cursors[0]
    found = with_their_neighbours(
        driver.state,
        driver.state.fleet.executors[executor],
        cursor,
        driver.key(epoch),
        np.array(wanted),
        slack_s=slack_s,
        later_than_s=0.0,
        now=driver.now_s,
    )
    return found.tolist()


class Drawn(NamedTuple):
    """Which samples begin a run, what state each is in, and whether it is stored or has failed before."""

    begins: list[bool]
    states: list[SampleState]
    stored: list[bool]
    failed: list[bool]


ELSEWHERE = (SampleState.UNKNOWN, SampleState.IN_FLIGHT, SampleState.WAITING, SampleState.FAILED)


@st.composite
def draws(draw):
    size = draw(st.integers(8, 80))

    def each(of):
        return draw(st.lists(of, min_size=size, max_size=size))

    states = each(st.sampled_from((SampleState.ABSENT,) * 6 + ELSEWHERE))
    often = st.integers(0, 6)
    return Drawn(
        [draw_ == 0 for draw_ in each(often)],
        states,
        [draw_ == 0 for draw_ in each(often)],
        [draw_ == 0 for draw_ in each(often)],
    )


@given(draws(), st.integers(1, 40), st.data())
def test_what_comes_along_is_absent_beside_what_is_wanted_and_within_the_limits(drawn, most, data):
    size = len(drawn.states)
    runs = [0, *(at for at in range(1, size) if drawn.begins[at])]
    driver = ready(runs, size=size, request_samples=most, store=True)
    samples = driver.state.sets[driver.key()]
    fresh = samples.state != SampleState.RESIDENT
    samples.state[fresh] = np.array(drawn.states)[fresh]
    samples.attempts[:] = drawn.failed
    stored = np.flatnonzero(drawn.stored)
    samples.place(stored, 1)
    absent = samples.having(SampleState.ABSENT)
    may_come = absent[~samples.stored(absent) & (samples.attempts[absent] == 0)]
    if not absent.size:
        return
    wanted = data.draw(st.lists(st.sampled_from(absent.tolist()), min_size=1, max_size=most, unique=True))
    taken = take(driver, wanted)
    assert len(set(taken)) == len(taken) <= max(most, len(wanted))
    assert wanted[0] in taken
    assert set(taken) <= set(may_come.tolist()) | set(wanted)
    # A run comes whole, or equal parts of it, each in order: one GET brings it.
    parts = []
    for start, stop in pairwise([*runs, size]):
        parts += range(start, stop, math.ceil((stop - start) / math.ceil((stop - start) / most)))
    part_of = np.searchsorted(parts, taken, side="right")
    assert set(part_of) <= set(np.searchsorted(parts, wanted, side="right"))
    for part in np.unique(part_of):
        mine = np.array(taken)[part_of == part]
        start, stop = parts[part - 1], parts[part] if part < len(parts) else size
        assert (np.diff(mine) > 0).all()
        assert set(may_come[(may_come >= start) & (may_come < stop)]) <= set(mine.tolist())


HALVES = [0, 32]
EIGHTHS = [*range(0, 64, 8)]


def test_nothing_comes_along_that_could_not_keep_or_would_come_late():
    driver = ready(HALVES)
    first = driver.in_state(SampleState.ABSENT)[0]
    run = [index for index in driver.in_state(SampleState.ABSENT) if index < 32]
    assert take(driver, [first]) == run
    slow_s = driver.state.fleet.executors[0].latency.expected_s(len(run))
    assert take(driver, [first], slack_s=2.1 * slow_s) == run
    assert take(driver, [first], slack_s=1.9 * slow_s) == [first]
    # Where all is late, only what is soon done comes along.
    assert take(driver, [first], slack_s=math.inf) == run
    driver.state.fleet.executors[0].latency.sample_s = 1.0
    assert take(driver, [first], slack_s=math.inf) == [first]


def test_before_anything_was_read_nothing_comes_along():
    driver = Driver(runs=np.array(HALVES), lookahead_batches=2, capacity=1, request_samples=4)
    plan = driver.open(seed=3)
    while driver.requests:
        driver.answer(driver.requests[0])
    expected = set(plan.span(0, 0, 2, 0).indices.tolist())
    assert set(driver.in_state(SampleState.RESIDENT)) == expected


@pytest.mark.parametrize("random", [False, True])
def test_a_cache_that_does_not_hold_all_keeps_nothing_that_is_wanted_late(random):
    for records, may in ((50, False), (200, True)):
        driver = ready(EIGHTHS, budget_bytes=records * TAKEN, random=random, request_samples=64)
        epoch = 0 if random else -1
        first = driver.in_state(SampleState.ABSENT, epoch)[0]
        assert (len(take(driver, [first], epoch=epoch)) > 1) == may


def test_a_store_keeps_it_while_it_takes_packs_and_loses_none():
    driver = Driver(
        runs=np.array(EIGHTHS), store=True, budget_bytes=50 * TAKEN, lookahead_batches=1, capacity=1
    )
    driver.open(seed=3)
    driver.ask(0, 1)
    packs = iter(range(1, 100))
    while driver.requests:
        driver.answer(driver.requests[0], pack=next(packs))
    driver.read(0)
    while driver.requests:
        driver.answer(driver.requests[0], pack=next(packs))
    first = driver.in_state(SampleState.ABSENT)[0]
    access = driver.state.fleet.executors[0].store
    access.keeps, kept = False, access.keeps  # as where the room of the store is used up
    assert take(driver, [first]) == [first]
    access.keeps = kept
    assert len(take(driver, [first])) > 1
    driver.step(PacksLost(np.array([1], dtype=np.uint32)))
    first = driver.in_state(SampleState.ABSENT)[0]
    assert take(driver, [first]) == [first]


def test_the_dearer_executor_takes_nothing_along():
    driver = ready(HALVES, executors=(ExecutorFacts("cheap"), ExecutorFacts("dear")))
    first = driver.in_state(SampleState.ABSENT)[0]
    driver.state.fleet.executors[1].latency.observe(1, 0.01, 0.01)
    assert len(take(driver, [first])) > 1
    assert take(driver, [first], executor=1) == [first]
