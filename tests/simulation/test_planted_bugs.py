"""The simulated world is worth something only if it catches bugs: here one is planted for each promise."""

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
    background,
    cache,
    dispatching,
    lookahead,
    requests,
    restoring,
    retrying,
)
from superdl.coordinator.core.capacity import CircuitBreaker
from superdl.coordinator.core.plan import Span
from superdl.coordinator.core.queues import Stragglers
from superdl.coordinator.core.state import State
from superdl.experiments.simulator.simulation import InvariantError
from superdl.experiments.simulator.world_model import DatasetModel, FunctionsModel, JobScript, WorldModel
from tests.simulation.checked_world import CheckedWorld
from tests.simulation.drawn_worlds import draw_world
from tests.simulation.test_world import blind_functions

SEEDS = range(30)
BUGS = []


def bug(owner, name, pattern, seeds=SEEDS):
    """Plant a function in place of ``owner.name``, which gets what stood there, and the arguments."""

    def register(broken):
        BUGS.append(pytest.param(owner, name, broken, pattern, seeds, id=broken.__name__))

    return register


def caught(pattern, make_core=None, seeds=SEEDS):
    """Whether the world finds, with one of the seeds, what the pattern says."""
    for seed in seeds:
        try:
            CheckedWorld(replace(draw_world(seed, small=True), read_timeout_s=60.0), make_core).run()
        except InvariantError as error:
            if re.search(pattern, str(error)):
                return True
    return False


@bug(cache, "fitting", "the budget is")
def a_core_that_ignores_the_budget(fitting, free_bytes, size_bytes, count):
    return count


@bug(requests, "finish", "bytes are reserved")
def a_core_that_forgets_what_it_reserved(finish, state, event, now):
    request = state.requests.get(event.request_id)
    if request is not None:
        state.reserved_bytes -= request.claim.reserved_bytes
    return finish(state, event, now)


def two_batches(span):
    """The length of the first batches of a span, if they are two of one length; else 0."""
    offsets = span.offsets
    return int(offsets[1]) if len(span) > 1 and 2 * offsets[1] == offsets[2] else 0


@bug(Plan, "span", "read a sample twice")
def a_plan_that_repeats_a_batch(span, *what):
    right = span(*what)
    indices, length = right.indices.copy(), two_batches(right)
    indices[length : 2 * length] = indices[:length]
    return Span(indices, right.padding, right.offsets)


@bug(Plan, "span", "not in plan order")
def a_plan_that_swaps_two_batches(span, *what):
    right = span(*what)
    length, indices = two_batches(right), right.indices
    swapped = (indices[length : 2 * length], indices[:length], indices[2 * length :])
    return Span(np.concatenate(swapped), right.padding, right.offsets)


@bug(dispatching, "release_due", "has waited|for ever|run does not end")
def a_core_that_forgets_retries(release_due, state, now):
    state.retries.take_until(now)


@bug(retrying, "try_again", "more often than allowed")
def a_core_that_counts_no_attempts(try_again, *what, counts, **how):
    try_again(*what, counts=False, **how)


@bug(SampleSet, "store", "that is resident")
def a_core_that_requests_what_is_resident(store, samples, indices, record_bytes):
    store(samples, indices, record_bytes)
    samples.move(indices[:1], SampleState.ABSENT)


@bug(dispatching, "make", "that is in flight")
def a_core_that_requests_what_is_in_flight(make, state, *what, **how):
    make(state, *what, **how)
    state.actions.append(replace(state.actions[-1], request_id=next(state.numbers)))


@bug(CircuitBreaker, "open_until_s", "has waited|for ever|run does not end|nothing happens", seeds=range(300))
def a_core_that_never_forgives_an_executor(open_until_s, breaker, open_max_s=0.0):
    return 1e9 if breaker.tripped else -1.0


@bug(State, "eligible_for", "what it cannot produce")
def a_core_that_asks_the_unfit(eligible_for, state, dataset):
    return state.fleet.eligible(frozenset())


@bug(State, "wake", "nobody will look at it again")
def a_core_that_loses_ranks(wake, state, cursor):
    wake(state, cursor)
    if cursor.pending:
        state.rest(cursor)


@bug(Core, "handle_all", "was charged")
def a_core_that_forgets_who_ordered(handle_all, core, several, now):
    actions = handle_all(core, several, now)
    for job in core.jobs:
        job.counters.invocations -= any(isinstance(action, Prefetch) for action in actions)
    return actions


@bug(Ledger, "invoked", "were billed, the core knows of")
def a_core_that_forgets_what_a_crash_costs(invoked, ledger, dataset, *, source_requests=0, **units):
    return invoked(ledger, dataset, source_requests=source_requests, **units) if source_requests else 0.0


@bug(dispatching, "watch_spending", "beyond the cap", seeds=range(200))
def a_core_that_spends_beyond_the_cap(watch_spending, state, now):
    return watch_spending(state, now) and Spending.FREELY


@bug(Stragglers, "affordable", "requests are hedges", seeds=range(200))
def a_core_that_races_all(affordable, stragglers, share):
    return 1000


@bug(dispatching, "ways", "that lies in the store, which is well")
def a_core_that_decodes_what_is_stored(ways, state, key, indices, now):
    yield restoring.Way(indices, state.eligible_for(key.dataset))


@bug(SampleSet, "stored", "whose place nobody knows")
def a_core_that_believes_all_is_stored(stored, samples, indices):
    samples.place(indices, 1)
    return stored(samples, indices)


@bug(lookahead, "needed_in_cache", "none has missed", seeds=range(100))
def a_core_that_restores_for_readers_that_see_the_store(needed_in_cache, job, samples, indices):
    return indices


@bug(restoring, "all_straight", "is left with a pointer", seeds=range(100))
def a_core_that_points_where_a_job_does_not_see_the_store(all_straight, state, dataset):
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "broken", "pattern", "seeds"), BUGS)
def test_a_planted_bug_is_caught(monkeypatch, owner, name, broken, pattern, seeds):
    whole = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *what, **how: broken(whole, *what, **how))
    assert caught(pattern, seeds=seeds)


def cheap_and_dear():
    """A job that reads half as fast again as the cheaper executor can produce."""
    plan = Plan(size=1600, batch_size=16)
    job = JobScript("job", b"a", plan, 0.0, 0.1, 2, 8, [(0, 0, plan.batches_per_epoch)])
    data = {b"a": DatasetModel(b"a", random=False, record_bytes=np.full(1600, 1000))}
    cheap, dear = (FunctionsModel(count, overhead_s=0.15, spread=0.1) for count in (1, 50))
    settings = CoreSettings(10**9, executors=(ExecutorFacts("cheap"), ExecutorFacts("dear")))
    return WorldModel(1, settings, cheap, data, (job,), others=(dear,), read_timeout_s=60.0)


def test_a_core_that_forgets_who_waits_for_a_cheaper_executor_is_caught(monkeypatch):
    world = CheckedWorld(cheap_and_dear()).run()
    assert all(member.samples > 100 for member in world.core.state.fleet.executors)
    monkeypatch.setattr(dispatching, "wake_deferred", lambda state, now: None)
    with pytest.raises(InvariantError, match="ranks wait|has waited|for ever|starves"):
        CheckedWorld(cheap_and_dear()).run()


def saves_what_has_gone(make_save, state, save, now):
    gone = state.sets[save.samples].having(SampleState.ABSENT)
    make_save(state, save._replace(indices=gone[:1]) if gone.size else save, now)


def saves_with_all_functions(_, state, now):
    idle = [each for each in state.fleet.executors if each.store is not None and each.idle(now) > 0]
    return idle[0] if idle else None


def forgets_that_it_has_saved(answered, state, request, access, event, now):
    answered(state, request, access, replace(event, pack=0), now)
    state.add_resident(request.order.samples, request.order.indices, now)


def never_saves(take_due, state, now):
    return ()


@pytest.mark.parametrize(
    ("owner", "name", "broken", "pattern"),
    [
        (dispatching, "make_save", saves_what_has_gone, "saved that is not cached"),
        (background, "saver", saves_with_all_functions, "functions that readers wait for"),
        (restoring, "answered", forgets_that_it_has_saved, "saved that lies in the store"),
        (dispatching, "take_due", never_saves, "wait to be saved, and somebody has time"),
    ],
)
def test_a_core_that_saves_badly_is_caught(monkeypatch, owner, name, broken, pattern):
    CheckedWorld(blind_functions(0.0, 0.0)).run()
    whole = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *what: broken(whole, *what))
    with pytest.raises(InvariantError, match=pattern):
        CheckedWorld(blind_functions(0.0, 0.0)).run()


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
    CheckedWorld(model).run()
    handle_all = Core.handle_all

    def unfair(self, several, now):
        rest = [it for it in several if not isinstance(it, BatchRead) or it.job != "slow"]
        return handle_all(self, rest, now)

    monkeypatch.setattr(Core, "handle_all", unfair)
    wake = State.wake
    monkeypatch.setattr(State, "wake", lambda self, cursor: cursor.job.name == "slow" or wake(self, cursor))
    with pytest.raises(InvariantError, match="slow/0 starves"):
        CheckedWorld(model).run()


def test_a_core_that_wakes_in_the_past_is_caught():
    class Restless(Core):
        @property
        def wake_at_s(self):
            return self._now_s

    assert caught("in the past", lambda model: Restless(model.settings))
