"""The simulated world is worth something only if it catches bugs: here one is planted for each promise."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from coordinator.core import Core, Plan, results, room
from coordinator.core.demands import DemandQueue
from coordinator.core.plan import Span
from coordinator.core.samples import SampleSet, SampleState
from experiments.simulator.checks import InvariantError
from experiments.simulator.seeded import draw_scenario
from experiments.simulator.world import World

SEEDS = range(30)


def caught(pattern: str, make_core=None) -> bool:
    """Whether the world finds, with one of the seeds, what the pattern says."""
    for seed in SEEDS:
        try:
            World(replace(draw_scenario(seed, small=True), patience_s=60.0), make_core).run()
        except InvariantError as error:
            if re.search(pattern, str(error)):
                return True
    return False


def test_a_core_that_ignores_the_budget_is_caught(monkeypatch):
    monkeypatch.setattr(room, "_fitting", lambda free_bytes, size_bytes, count: count)
    assert caught("the budget is")


def test_a_core_that_forgets_what_it_reserved_is_caught(monkeypatch):
    landed = results._landed

    def twice(state, request_id):
        found = landed(state, request_id)
        if found is not None:
            state.reserved_bytes -= found.reserved_bytes
        return found

    monkeypatch.setattr(results, "_landed", twice)
    assert caught("bytes are reserved")


def test_a_plan_that_repeats_a_batch_is_caught(monkeypatch):
    span = Plan.span

    def stuttering(self, epoch, start, stop, rank):
        right = span(self, epoch, start, stop, rank)
        if len(right) < 2 or right.lengths[0] != right.lengths[1]:
            return right
        indices, length = right.indices.copy(), int(right.lengths[0])
        indices[length : 2 * length] = indices[:length]
        return Span(indices, right.padding, right.offsets)

    monkeypatch.setattr(Plan, "span", stuttering)
    assert caught("read a sample twice")


def test_a_core_that_forgets_retries_is_caught(monkeypatch):
    monkeypatch.setattr(DemandQueue, "add", lambda self, *what, **how: None)
    assert caught("has waited|for ever|run does not end")


def test_a_core_that_counts_no_attempts_is_caught(monkeypatch):
    try_again = results._try_again

    def never_counts(*what, counts, **how):
        try_again(*what, counts=False, **how)

    monkeypatch.setattr(results, "_try_again", never_counts)
    assert caught("more often than allowed")


def test_a_core_that_requests_what_is_resident_is_caught(monkeypatch):
    store = SampleSet.store

    def forgetful(self, indices, record_bytes):
        store(self, indices, record_bytes)
        self.move(indices[:1], SampleState.ABSENT)

    monkeypatch.setattr(SampleSet, "store", forgetful)
    assert caught("that is resident")


def test_a_core_that_drops_what_is_awaited_does_not_end(monkeypatch):
    def drops_all(state, now):
        for key, samples in list(state.sets.items()):
            resident = samples.having(SampleState.RESIDENT)
            if resident.size:
                samples.move(resident, SampleState.ABSENT)
                state.actions.append(room.Drop(key, resident))

    monkeypatch.setattr("coordinator.core.dispatching.relieve", drops_all)
    assert caught("has waited|run does not end")


def test_a_core_that_wakes_in_the_past_is_caught():
    class Restless(Core):
        @property
        def wake_at_s(self):
            return self._now_s

    assert caught("in the past", lambda scenario: Restless(scenario.settings))


def test_failures_name_their_seed():
    world = World(draw_scenario(3))
    with pytest.raises(InvariantError, match=r"seed 3 at 0\.000 s: nothing"):
        world.checks.demand(np.bool_(0), "nothing")
