"""Plant a bug for each promise, and check that the simulated world catches it."""

import re
from dataclasses import replace

import numpy as np
import pytest

from superdl.coordinator.core import (
    BatchRead,
    Core,
    CoreSettings,
    ExecutorFacts,
    Plan,
    Prefetch,
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
from superdl.coordinator.core.ledger import Ledger
from superdl.coordinator.core.plan import Span
from superdl.coordinator.core.queues import Stragglers
from superdl.coordinator.core.samples import SampleSet
from superdl.coordinator.core.state import State
from superdl.experiments.simulator.simulation import InvariantError
from superdl.experiments.simulator.world_model import DatasetModel, FunctionsModel, JobScript, WorldModel
from tests.simulation.checked_world import CheckedWorld
from tests.simulation.drawn_worlds import draw_world
from tests.simulation.test_world import blind_functions


def small_worlds(count=30):
    """Yield drawn worlds whose readers give up quickly."""
    for seed in range(count):
        yield replace(draw_world(seed, small=True), read_timeout_s=60.0)


def is_found(pattern, models, make_core=None):
    """Return whether an invariant fails in one of the worlds with a message that matches the pattern."""
    for model in models:
        try:
            CheckedWorld(model, make_core).run()
        except InvariantError as error:
            if re.search(pattern, str(error)):
                return True
    return False


def all_blind():
    return blind_functions(0.0, 0.0)


def cheap_and_dear():
    """Return a world whose job reads 1.5 times as fast as the cheaper executor can produce."""
    plan = Plan(size=1600, batch_size=16)
    job = JobScript("job", b"a", plan, 0.0, 0.1, 2, 8, [(0, 0, plan.batches_per_epoch)])
    data = {b"a": DatasetModel(b"a", random=False, record_bytes=np.full(1600, 1000))}
    cheap, dear = (FunctionsModel(count, overhead_s=0.15, spread=0.1) for count in (1, 50))
    settings = CoreSettings(10**9, executors=(ExecutorFacts("cheap"), ExecutorFacts("dear")))
    return WorldModel(1, settings, cheap, data, (job,), others=(dear,), read_timeout_s=60.0)


# Each of these replaces the function that is its first argument.


def forget_what_is_reserved(finish, state, event, now):
    request = state.requests.get(event.request_id)
    if request is not None:
        state.reserved_bytes -= request.claim.reserved_bytes
    return finish(state, event, now)


def two_batches(span):
    """Return the length of a span's first two batches if they are equally long, else 0."""
    offsets = span.offsets
    return int(offsets[1]) if len(span) > 1 and 2 * offsets[1] == offsets[2] else 0


def repeat_a_batch(span, *what):
    right = span(*what)
    indices, length = right.indices.copy(), two_batches(right)
    indices[length : 2 * length] = indices[:length]
    return Span(indices, right.padding, right.offsets)


def swap_two_batches(span, *what):
    right = span(*what)
    length, indices = two_batches(right), right.indices
    swapped = (indices[length : 2 * length], indices[:length], indices[2 * length :])
    return Span(np.concatenate(swapped), right.padding, right.offsets)


def request_what_is_resident(store, samples, indices, record_bytes, **how):
    store(samples, indices, record_bytes, **how)
    samples.move(indices[:1], SampleState.ABSENT)


def request_what_is_in_flight(make, state, *what, **how):
    make(state, *what, **how)
    state.actions.append(replace(state.actions[-1], request_id=next(state.numbers)))


def lose_ranks(wake, state, cursor):
    wake(state, cursor)
    if cursor.pending:
        state.dequeue(cursor)


def forget_who_ordered(handle_all, core, several, now):
    actions = handle_all(core, several, now)
    for job in core.jobs:
        job.counters.invocations -= any(isinstance(action, Prefetch) for action in actions)
    return actions


def forget_what_a_crash_costs(invoked, ledger, dataset, *, source_requests=0, **units):
    return invoked(ledger, dataset, source_requests=source_requests, **units) if source_requests else 0.0


def decode_what_is_stored(_, state, key, indices, now):
    yield restoring.Way(indices, state.eligible_for(key.dataset))


def believe_that_all_is_stored(stored, samples, indices):
    samples.place(indices, 1)
    return stored(samples, indices)


def save_what_has_gone(make_save, state, executor, key, indices, now):
    gone = state.sets[key].having(SampleState.ABSENT)
    make_save(state, executor, key, gone[:1] if gone.size else indices, now)


def save_with_all_functions(_, state, now):
    idle = [each for each in state.fleet.executors if each.store is not None and each.idle > 0]
    return idle[0] if idle else None


def forget_what_is_saved(answered, state, request, access, event, now):
    answered(state, request, access, replace(event, pack=0), now)
    state.add_resident(request.order.samples, request.order.indices, now)


def planted(owner, name, broken, pattern, *, seeds=30, world=None):
    """Replace ``owner.name`` by a bug that must be found in the drawn worlds, or in ``world``."""
    marks = pytest.mark.slow if seeds > 30 else ()
    return pytest.param(owner, name, broken, pattern, seeds, world, id=f"{name}: {pattern}", marks=marks)


NEVER_ENDS = "has waited|never end|forever|run does not end"
BUGS = [
    planted(cache, "fitting", lambda _, free_bytes, size_bytes, count: count, "the budget is"),
    planted(requests, "finish", forget_what_is_reserved, "bytes are reserved"),
    planted(Plan, "span", repeat_a_batch, "read a sample twice"),
    planted(Plan, "span", swap_two_batches, "not in plan order"),
    planted(dispatching, "release_due", lambda _, state, now: state.retries.pop_due(now), NEVER_ENDS),
    planted(
        retrying,
        "try_again",
        lambda again, *what, counts, **how: again(*what, counts=False, **how),
        "more often than allowed",
    ),
    planted(SampleSet, "store", request_what_is_resident, "a resident sample was requested"),
    planted(dispatching, "make", request_what_is_in_flight, "in flight was requested again"),
    planted(
        CircuitBreaker,
        "open_until_s",
        lambda _, breaker, open_max_s=0.0: 1e9 if breaker.tripped else -1.0,
        f"{NEVER_ENDS}|deadlock",
        seeds=300,
    ),
    planted(
        State,
        "eligible_for",
        lambda _, state, dataset: state.fleet.eligible(frozenset()),
        "that it cannot produce",
    ),
    planted(State, "wake", lose_ranks, "but is in no queue"),
    planted(Core, "handle_all", forget_who_ordered, "was charged"),
    planted(Ledger, "bill_invocation", forget_what_a_crash_costs, "were billed, but the core counts"),
    planted(
        dispatching,
        "update_spending",
        lambda watch, state, now: watch(state, now) and Spending.FREELY,
        "beyond the spending cap",
        seeds=200,
    ),
    planted(Stragglers, "affordable", lambda *_: 1000, "requests are hedges", seeds=200),
    planted(dispatching, "ways", decode_what_is_stored, "decoded although the store works"),
    planted(SampleSet, "stored", believe_that_all_is_stored, "without a location is restored"),
    planted(lookahead, "needed_in_cache", lambda *what: what[-1], "although none missed it", seeds=100),
    planted(restoring, "all_straight", lambda *_: True, "cannot follow a pointer", seeds=100),
    planted(dispatching, "wake_deferred", lambda *_: None, f"ranks wait|{NEVER_ENDS}", world=cheap_and_dear),
    planted(dispatching, "make_save", save_what_has_gone, "not cached is saved", world=all_blind),
    planted(background, "saver", save_with_all_functions, "functions that readers need", world=all_blind),
    planted(restoring, "answered", forget_what_is_saved, "stored sample is saved again", world=all_blind),
    planted(dispatching, "due_saves", lambda *_: (), "wait to be saved although", world=all_blind),
]


@pytest.mark.parametrize(("owner", "name", "broken", "pattern", "seeds", "world"), BUGS)
def test_a_planted_bug_is_found(monkeypatch, owner, name, broken, pattern, seeds, world):
    if world:
        CheckedWorld(world()).run()
    whole = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *what, **how: broken(whole, *what, **how))
    assert is_found(pattern, [world()] if world else small_worlds(seeds))


def test_a_core_that_starves_a_job_is_found(monkeypatch):
    """Let a fast job read from the cache while nothing is produced for a second job."""
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
    handle_all, wake = Core.handle_all, State.wake

    def unfair(self, several, now):
        rest = [it for it in several if not isinstance(it, BatchRead) or it.job != "slow"]
        return handle_all(self, rest, now)

    monkeypatch.setattr(Core, "handle_all", unfair)
    monkeypatch.setattr(State, "wake", lambda self, cursor: cursor.job.name == "slow" or wake(self, cursor))
    assert is_found("slow/0 starves", [model])


def test_a_core_that_wakes_in_the_past_is_found():
    class Restless(Core):
        @property
        def wake_at_s(self):
            return self.now_s

    assert is_found("in the past", small_worlds(), lambda model: Restless(model.settings))
