"""The simulated world is worth something only if it catches bugs: here one is planted for each promise."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from superdl.coordinator.core import (
    BatchRead,
    Core,
    CoreSettings,
    ExecutorFacts,
    Ledger,
    Plan,
    Prefetch,
    SampleSet,
    SampleState,
    Spending,
    Tick,
    dispatching,
    results,
    room,
)
from superdl.coordinator.core.fleet import EligibleExecutors
from superdl.coordinator.core.plan import Span
from superdl.coordinator.core.queues import RetryQueue, Stragglers
from superdl.coordinator.core.state import State
from superdl.coordinator.core.throttling import CircuitBreaker
from superdl.experiments.simulator.checks import InvariantError
from superdl.experiments.simulator.trainer_model import TrainerModel
from superdl.experiments.simulator.world import World
from superdl.experiments.simulator.world_model import DatasetModel, FunctionsModel, JobScript, WorldModel
from tests.simulation.drawn_worlds import draw_world

SEEDS = range(30)


def caught(pattern: str, make_core=None, seeds=SEEDS) -> bool:
    """Whether the world finds, with one of the seeds, what the pattern says."""
    for seed in seeds:
        try:
            World(replace(draw_world(seed, small=True), read_timeout_s=60.0), make_core).run()
        except InvariantError as error:
            if re.search(pattern, str(error)):
                return True
    return False


def test_a_core_that_ignores_the_budget_is_caught(monkeypatch):
    monkeypatch.setattr(room, "_fitting", lambda free_bytes, size_bytes, count: count)
    assert caught("the budget is")


def test_a_core_that_forgets_what_it_reserved_is_caught(monkeypatch):
    landed = results.landed

    def twice(state, request_id):
        found = landed(state, request_id)
        if found is not None:
            state.reserved_bytes -= found.reserved_bytes
        return found

    monkeypatch.setattr(results, "landed", twice)
    assert caught("bytes are reserved")


def test_a_plan_that_repeats_a_batch_is_caught(monkeypatch):
    span = Plan.span

    def stuttering(self, epoch, start, stop, rank):
        right = span(self, epoch, start, stop, rank)
        if len(right) < 2 or 2 * right.offsets[1] != right.offsets[2]:
            return right
        indices, length = right.indices.copy(), int(right.offsets[1])
        indices[length : 2 * length] = indices[:length]
        return Span(indices, right.padding, right.offsets)

    monkeypatch.setattr(Plan, "span", stuttering)
    assert caught("read a sample twice")


def test_a_core_that_forgets_retries_is_caught(monkeypatch):
    monkeypatch.setattr(RetryQueue, "add", lambda self, *what, **how: None)
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


def test_a_core_that_requests_what_is_in_flight_is_caught(monkeypatch):
    request = dispatching.request

    def twice(state, *what):
        request(state, *what)
        state.actions.append(replace(state.actions[-1], request_id=next(state.numbers)))

    monkeypatch.setattr(dispatching, "request", twice)
    assert caught("that is in flight")


def test_a_core_that_never_forgives_an_executor_is_caught(monkeypatch):
    monkeypatch.setattr(
        CircuitBreaker, "open_until_s", lambda self, open_max_s=0.0: 1e9 if self.tripped else -1.0
    )
    assert caught("has waited|for ever|run does not end|nothing happens", seeds=range(300))


def test_a_core_that_asks_the_unfit_is_caught(monkeypatch):
    monkeypatch.setattr(State, "eligible_for", lambda self, dataset: self.fleet.eligible(frozenset()))
    assert caught("what it cannot produce")


def cheap_and_dear() -> WorldModel:
    """A job that reads half as fast again as the cheaper executor can produce."""
    plan = Plan(size=1600, batch_size=16)
    job = JobScript("job", b"a", plan, 0.0, 0.1, 2, 8, [(0, 0, plan.batches_per_epoch)])
    data = {b"a": DatasetModel(b"a", random=False, record_bytes=np.full(1600, 1000))}
    cheap, dear = (FunctionsModel(count, overhead_s=0.15, spread=0.1) for count in (1, 50))
    settings = CoreSettings(10**9, executors=(ExecutorFacts("cheap"), ExecutorFacts("dear")))
    return WorldModel(1, settings, cheap, data, (job,), others=(dear,), read_timeout_s=60.0)


@pytest.mark.parametrize("forgets", ["what", "who"])
def test_a_core_that_forgets_who_waits_for_a_cheaper_executor_is_caught(monkeypatch, forgets):
    world = World(cheap_and_dear()).run()
    assert all(member.samples > 100 for member in world.core.state.fleet.executors)
    if forgets == "who":
        monkeypatch.setattr(dispatching, "_wake_deferred", lambda state, now: None)
    else:
        monkeypatch.setattr(EligibleExecutors, "has_changed", lambda self, now: False)
        monkeypatch.setattr(EligibleExecutors, "deferral_ends_in_s", lambda *what, **how: np.inf)
    with pytest.raises(InvariantError, match="ranks wait|has waited|for ever|starves"):
        World(cheap_and_dear()).run()


def test_a_core_that_loses_ranks_is_caught(monkeypatch):
    wake = State.wake

    def sleepy(self, cursor):
        wake(self, cursor)
        if cursor.pending:
            self.rest(cursor)

    monkeypatch.setattr(State, "wake", sleepy)
    assert caught("nobody will look at it again")


def test_a_core_that_blames_executors_without_end_is_caught(monkeypatch):
    monkeypatch.setattr(results, "_BLAMED_ON_EXECUTOR_MAX", 100)
    monkeypatch.setattr(EligibleExecutors, "can_turn_elsewhere", lambda self, member: True)
    assert caught("more often than allowed")


def test_a_plan_that_swaps_two_batches_is_caught(monkeypatch):
    span = Plan.span

    def swapping(self, epoch, start, stop, rank):
        right = span(self, epoch, start, stop, rank)
        if len(right) < 2 or 2 * right.offsets[1] != right.offsets[2]:
            return right
        length = int(right.offsets[1])
        indices = np.concatenate(
            (right.indices[length : 2 * length], right.indices[:length], right.indices[2 * length :])
        )
        return Span(indices, right.padding, right.offsets)

    monkeypatch.setattr(Plan, "span", swapping)
    assert caught("not in plan order")


def test_a_trainer_that_skips_a_batch_is_caught(monkeypatch):
    consumed_one = TrainerModel._consumed_one

    def skipping(self):
        batch = self._ready[self._consumed]
        consumed_one(self)
        if batch.position == 1:
            self.deliveries.pop()

    monkeypatch.setattr(TrainerModel, "_consumed_one", skipping)
    assert caught("not in plan order")


def test_a_core_that_forgets_who_ordered_is_caught(monkeypatch):
    handle = Core.handle

    def generous(self, event, now):
        actions = handle(self, event, now)
        for job in self.jobs:
            job.counters.invocations -= any(isinstance(action, Prefetch) for action in actions)
        return actions

    monkeypatch.setattr(Core, "handle", generous)
    assert caught("was charged")


def test_a_core_that_forgets_what_a_crash_costs_is_caught(monkeypatch):
    invoked = Ledger.invoked

    def forgetful(self, dataset, *, source_requests, **units):
        if not source_requests:
            return 0.0
        return invoked(self, dataset, source_requests=source_requests, **units)

    monkeypatch.setattr(Ledger, "invoked", forgetful)
    assert caught("were billed, the core knows of")


def test_a_core_that_spends_beyond_the_cap_is_caught(monkeypatch):
    watch = dispatching.watch_spending
    monkeypatch.setattr(
        dispatching, "watch_spending", lambda state, now: watch(state, now) and Spending.FREELY
    )
    assert caught("beyond the cap", seeds=range(200))


def test_a_core_that_races_all_is_caught(monkeypatch):
    monkeypatch.setattr(Stragglers, "affordable", lambda self, share: 1000)
    assert caught("requests are hedges", seeds=range(200))


def test_a_core_that_starves_a_job_is_caught(monkeypatch):
    """A quick job reads on from the cache, while nothing is produced for a second one."""
    quick, slow = (
        JobScript(name, dataset, Plan(size=40, batch_size=4), starts_s, 0.5, 1, 4, tuple(passes))
        for name, dataset, starts_s, passes in (
            ("quick", b"a", 0.0, [(epoch, 0, 10) for epoch in range(40)]),
            ("slow", b"b", 1.0, [(0, 0, 10)]),
        )
    )
    data = {name: DatasetModel(name, random=False, record_bytes=np.full(40, 1000)) for name in (b"a", b"b")}
    model = WorldModel(
        1, CoreSettings(10**9), FunctionsModel(2, overhead_s=0.01), data, (quick, slow), read_timeout_s=300.0
    )
    World(model).run()
    handle = Core.handle

    def unfair(self, event, now):
        missed = isinstance(event, BatchRead) and event.job == "slow"
        return handle(self, Tick() if missed else event, now)

    monkeypatch.setattr(Core, "handle", unfair)
    wake = State.wake
    monkeypatch.setattr(State, "wake", lambda self, cursor: cursor.job.name == "slow" or wake(self, cursor))
    with pytest.raises(InvariantError, match="slow/0 starves"):
        World(model).run()


def test_a_core_that_drops_what_is_awaited_does_not_end(monkeypatch):
    def drops_all(state, now):
        for key, samples in list(state.sets.items()):
            resident = samples.having(SampleState.RESIDENT)
            if resident.size:
                samples.move(resident, SampleState.ABSENT)
                state.actions.append(room.Drop(key, resident))

    monkeypatch.setattr("superdl.coordinator.core.dispatching.relieve", drops_all)
    assert caught("has waited|run does not end")


def test_a_core_that_wakes_in_the_past_is_caught():
    class Restless(Core):
        @property
        def wake_at_s(self):
            return self._now_s

    assert caught("in the past", lambda model: Restless(model.settings))


def test_failures_name_their_seed():
    world = World(draw_world(3))
    with pytest.raises(InvariantError, match=r"seed 3 at 0\.000 s: nothing"):
        world.checks.require(np.bool_(0), "nothing")


def test_a_failing_seed_replays_exactly(monkeypatch):
    monkeypatch.setattr(room, "_fitting", lambda free_bytes, size_bytes, count: count)

    def failure() -> tuple[str, list[str]]:
        for seed in SEEDS:
            world = World(draw_world(seed, small=True))
            try:
                world.run()
            except InvariantError as error:
                return str(error), world.log
        raise AssertionError("no seed fails")

    first, second = failure(), failure()
    assert first == second
    assert first[0].startswith("seed ")
