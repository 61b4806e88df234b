"""Check what must hold in the simulated world after every event and at the end of a run.

:mod:`tests.simulation.accounts` checks the accounting of money and the use of the store.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from superdl.coordinator.core import (
    EVERY_EPOCH,
    OUTCOME_ORDER,
    Audit,
    Audited,
    BatchRead,
    CacheReset,
    Drop,
    FailureKind,
    Prefetch,
    RequestDone,
    RequestFailed,
    SampleState,
    SetKey,
    Spending,
    Tick,
    Warn,
    WriteTombstones,
    footprint,
)
from superdl.super_wire.record import SPENDING_CAP
from superdl.super_wire.request import Outcome, RequestKind
from tests.fixtures.plans import global_span
from tests.simulation.accounts import MoneyCheck, StoreCheck
from tests.simulation.invariants import problems

_UNCOUNTED = {Outcome.CACHED, Outcome.TOMBSTONE, Outcome.CACHE_ERROR, Outcome.CACHE_FULL, Outcome.EXPIRED}
_UNCOUNTED |= {Outcome.NOT_STORED, Outcome.STORE_ERROR, Outcome.UNAVAILABLE}
_COUNTED_OUTCOMES = [OUTCOME_ORDER.index(outcome) for outcome in Outcome if outcome not in _UNCOUNTED]
_CACHED = OUTCOME_ORDER.index(Outcome.CACHED)
_EXPIRED = OUTCOME_ORDER.index(Outcome.EXPIRED)
_TOMBSTONE = OUTCOME_ORDER.index(Outcome.TOMBSTONE)
_UNCOUNTED_KINDS = (FailureKind.THROTTLED, FailureKind.UNAVAILABLE)
_STARVED_S = 60.0
_STARVED_BATCHES = 50


class Checks:
    """Keeps its own account of all events of a coordinator run, and compares the core with it."""

    def __init__(self, world):
        self._world = world
        self._trainers = world.trainers
        self.audited_bytes = 0
        self.deliveries = defaultdict(list)
        self._ttl_s = world.model.settings.request_ttl_s
        self._surprise_bytes = self._most_surprise_bytes()
        self.restarted()

    def restarted(self):
        """Start over for a restarted coordinator."""
        self.in_flight = {}
        self._sent_s = {}
        self._unsettled = {}
        """Mask of each request's samples whose outcome is still open. Racing requests share one mask."""
        self._requests = self._hedges = 0
        self._audits = {}
        self._cached = {}
        """Masks of samples that are cached according to all events."""
        self._attempts = {}
        self._sets = {}
        self._corrupt = set()
        """Samples whose record failed its check or was written by the loser of a race."""
        self._money = MoneyCheck(self._world)
        self._store = StoreCheck(self._world, self._trainers)

    def require(self, holds, what):
        """Fail with the seed unless ``holds`` is true."""
        if not holds:
            raise self._world.broken(what)

    def _rows(self, key):
        size = self._world.model.datasets[key.dataset].size
        cached_rows = self._cached.setdefault(key, np.zeros(size, dtype=np.bool_))
        return cached_rows, self._attempts.setdefault(key, np.zeros(size, dtype=np.int64))

    def record_event(self, event):
        """Record an event before the core handles it."""
        self._store.record_event(event)
        if isinstance(event, RequestDone | RequestFailed):
            if event.request_id in self.in_flight:
                self._answered(self.in_flight.pop(event.request_id), event)
        elif isinstance(event, Audited) and event.audit_id in self._audits:
            audit = self._audits.pop(event.audit_id)
            self._store.audited(audit, event)
            cached_rows, attempts = self._rows(audit.samples)
            present = event.record_bytes > 0
            added_bytes = footprint(event.record_bytes[present & ~cached_rows[audit.indices]])
            self.audited_bytes += int(added_bytes.sum())
            cached_rows[audit.indices] = present
            attempts[audit.indices] = 0
        elif isinstance(event, BatchRead) and event.report.done and self._is_known(event):
            self._money.read(event.report)
        elif isinstance(event, BatchRead) and (report := event.report).corrupt and self._is_known(event):
            script = self._trainers[event.job][0].script
            random = self._world.model.datasets[script.dataset].random
            indices = script.plan_of(report.epoch).batch(report.epoch, report.position, report.rank).indices
            key, corrupt = SetKey(script.dataset, report.epoch if random else EVERY_EPOCH), [*report.corrupt]
            self._rows(key)[0][indices[corrupt]] = False
            self._corrupt.update((key, index) for index in indices[corrupt].tolist())
        elif isinstance(event, CacheReset):
            self._cached.clear()

    def _is_known(self, event):
        """Return whether the reporting rank has opened its job since the coordinator restarted."""
        job = self._world.core.job(event.job)
        return job is not None and event.report.rank in job.cursors

    def _answered(self, request, event):
        self._money.answered(request, event)
        cached_rows, attempts = self._rows(request.samples)
        unsettled = self._unsettled.pop(request.request_id)
        self._store.answered(request, event, unsettled)
        if request.kind is RequestKind.SAVE:
            del self._sent_s[request.request_id]
            return
        for number, other in self.in_flight.items():
            if self._unsettled[number] is unsettled and isinstance(event, RequestDone):
                self._store.overtaken(other)
        last = not any(other is unsettled for other in self._unsettled.values())
        lasted_s = self._world.now_s - self._sent_s.pop(request.request_id)
        if isinstance(event, RequestDone):
            cached = unsettled & (event.outcomes == _CACHED)
            refused = unsettled & (event.outcomes == _TOMBSTONE)
            late = ~unsettled & (event.outcomes == _CACHED)  # written by the loser of a race
            self._corrupt.update((request.samples, index) for index in request.indices[late].tolist())
            cached_rows[request.indices[cached]] = True
            attempts[request.indices[cached]] = 0
            # An EXPIRED that comes too early means the function's clock is off, so a retry would expire too.
            too_early = (event.outcomes == _EXPIRED).all() and lasted_s < self._ttl_s / 2
            if last:
                attempts[
                    request.indices[unsettled & (np.isin(event.outcomes, _COUNTED_OUTCOMES) | too_early)]
                ] += 1
            unsettled &= ~(cached | refused)
        elif last and request.kind is not RequestKind.RESTORE:
            attempts[request.indices[unsettled]] += event.kind not in _UNCOUNTED_KINDS

    def acted(self, action):
        """Check an action before the world carries it out."""
        match action:
            case Prefetch():
                self._requested(action)
            case Audit():
                self._audits[action.audit_id] = action
            case Drop():
                self._dropped(action)
            case WriteTombstones():
                self._gave_up(action)

    def _requested(self, action):
        world, key = self._world, action.samples
        self._requests += 1
        self.require(
            action.kind is RequestKind.SAVE or any(job.dataset == key.dataset for job in world.core.jobs),
            "a request that no open job needs",
        )
        self.require(
            np.unique(action.indices).size == action.indices.size > 0, "a request names a sample twice"
        )
        self.require(action.indices.size <= world.model.settings.request_samples, "a request is too large")
        functions = world.model.fleet[action.executor]
        there_now = sum(other.executor == action.executor for other in self.in_flight.values())
        self.require(there_now < 2 * functions.capacity, "too many requests in flight")
        unfit = world.model.unfit.get(key.dataset, frozenset())
        able = action.kind is RequestKind.SAVE or action.executor not in unfit
        self.require(able, "an executor got a request for samples that it cannot produce")
        self._money.requested(action)
        self.require(not (wrong := "; ".join(self._store.problems(action))), wrong)
        if action.kind is RequestKind.SAVE:
            self._saved(action)
            self._unsettled[action.request_id] = np.zeros(action.indices.size, dtype=np.bool_)
        elif action.hedge_of is not None:
            self._hedged(action, self.in_flight.get(action.hedge_of))
            self._unsettled[action.request_id] = self._unsettled[action.hedge_of]
        else:
            self._asked_anew(action)
            self._unsettled[action.request_id] = np.ones(action.indices.size, dtype=np.bool_)
        self.in_flight[action.request_id] = action
        self._sent_s[action.request_id] = world.now_s

    def _saved(self, action):
        """Check that saved samples are cached, that none is saved twice at once, and that saves leave enough
        functions for readers.
        """
        cached_rows, _ = self._rows(action.samples)
        self.require(cached_rows[action.indices].all(), "a sample that is not cached is saved")
        saves = [other for other in self.in_flight.values() if other.kind is RequestKind.SAVE]
        for other in saves:
            twice = other.samples == action.samples and np.intersect1d(other.indices, action.indices).size
            self.require(not twice, "a sample is saved twice at the same time")
        there_now = sum(other.executor == action.executor for other in saves)
        half = max(1, self._world.model.fleet[action.executor].capacity // 2)
        self.require(there_now < half, "saves use functions that readers need")

    def _asked_anew(self, action):
        """Check that requested samples are not cached, in flight or given up."""
        world, key = self._world, action.samples
        cached_rows, attempts = self._rows(key)
        for number, other in self.in_flight.items():
            open_ = other.indices[self._unsettled[number]]
            twice = other.samples == key and np.intersect1d(open_, action.indices).size
            self.require(not twice, "a sample in flight was requested again")
        there = world.cache.look(key, action.indices, world.now_s) > 0
        self.require(not (cached_rows[action.indices] & there).any(), "a resident sample was requested")
        # A sample that fails at an executor that is set aside is excused twice and retried at the next one.
        most = world.model.settings.attempts + (2 if len(world.model.fleet) > 1 else 0)
        spent = attempts[action.indices] >= most
        self.require(not spent.any(), "a sample was tried more often than allowed")

    def _hedged(self, action, raced):
        """Check that a hedge races one request in flight for the same samples, and that hedges are rare."""
        self.require(action.kind is not RequestKind.RESTORE, "a hedge restores")
        same = raced and raced.samples == action.samples and np.array_equal(raced.indices, action.indices)
        self.require(same, "a hedge races no request for the same samples")
        unsettled = self._unsettled[action.hedge_of or 0]
        racing = sum(other is unsettled for other in self._unsettled.values())
        self.require(racing == 1, "a request is raced by two")
        racing_it = self._world.core.state.fleet.executors[raced.executor] if raced else None
        unproven = racing_it and not (
            racing_it.latency.results or (racing_it.store and racing_it.store.latency.results)
        )
        self._hedges += not (unproven and len(self._world.model.fleet) > 1)
        few = self._world.model.settings.hedge_share * self._requests
        self.require(self._hedges <= few, f"{self._hedges} of {self._requests} requests are hedges")

    def _dropped(self, action):
        self._store.dropped(action)
        cached_rows = self._rows(action.samples)[0]
        for index in action.indices[~cached_rows[action.indices]].tolist():
            spoilt = (action.samples, index) in self._corrupt
            self.require(spoilt, "a sample was dropped that was neither resident nor corrupt")
        cached_rows[action.indices] = False

    def _gave_up(self, action):
        """Check that a tombstone is written only once the attempts or the money are spent."""
        if action.reason == SPENDING_CAP:
            self.require(
                self._world.core.state.ledger.spending is Spending.STOPPED,
                "a tombstone names a cap that was not reached",
            )
            return
        attempts = self._rows(action.samples)[1]
        most = self._world.model.settings.attempts
        alone = len(self._world.model.fleet) == 1
        spent = attempts[action.indices] == most if alone else attempts[action.indices] >= most
        self.require(spent.all(), "a tombstone was written before the attempts were spent")
        attempts[action.indices] = 0

    def waits(self, job, rank, position, waited_s):
        """Check that no reader starves. Waiting is fine unless another job keeps reading meanwhile."""
        if waited_s < _STARVED_S:
            return
        began_s = self._world.now_s - waited_s
        for name, others in self._trainers.items():
            passes = [one for other in others for one in other.passes if one.began_s > began_s]
            read = 0 if name == job else sum(one.batches for one in passes)
            self.require(
                read < _STARVED_BATCHES,
                f"{job}/{rank} starves: it has waited {waited_s:.0f} s for batch {position}, in which {name} "
                f"has read {read}",
            )

    def ticked(self):
        """Check that a tick leaves nothing due."""
        again = [it for it in self._world.core.handle(Tick(), self._world.now_s) if not isinstance(it, Warn)]
        self.require(not again, f"a second tick at the same time causes actions: {again}")

    def ended(self):
        """Run on until all work has ended, then check what was read."""
        end_s = self._world.now_s + 3 * self._world.model.settings.forget_s
        while self._world.step(end_s):
            pass
        self._quiet()
        for trainers in self._trainers.values():
            self._delivered_exactly_once(trainers)

    def settled(self):
        """Check what must hold after every event."""
        world, core = self._world, self._world.core
        self.require(not (wrong := "; ".join(self._store.left_with_pointers())), wrong)
        self.require(not (wrong := "; ".join(problems(core))), wrong)
        self.require(
            core.wake_at_s > world.now_s, f"the core asks for a tick at {core.wake_at_s}, in the past"
        )
        sets = _sample_sets(core)
        for key, attempts in self._attempts.items():
            if sets.get(key) is not self._sets.get(key):  # forgotten, and possibly known again since
                attempts[:] = 0
        self._sets = dict(sets)
        shares = (1.0, *(share for _, share in world.model.faults.resizes))  # pending samples outlive a cut
        budget_bytes = int(world.model.settings.budget_bytes * max(shares))
        budget = budget_bytes + self._surprise_bytes + self.audited_bytes
        taken = 0
        for key, rows in world.cache.sets.items():
            held = self._rows(key)[0].copy()
            for number, request in self.in_flight.items():
                if request.samples == key:
                    held[request.indices[self._unsettled[number]]] = True
            taken += int(rows.taken_bytes[held].sum(dtype=np.int64))
        self.require(taken <= budget, f"the cache holds {taken} bytes for us, the budget is {budget}")
        self.require(not (wrong := "; ".join(self._money.problems())), wrong)

    def _most_surprise_bytes(self):
        """Return by how many bytes larger-than-expected records may exceed the budget for a moment."""
        model = self._world.model
        # A function that crashed or hung may still overwrite a pointer with a record.
        dies = model.settings.store and (model.faults.crash or model.faults.hang)
        if all(np.ptp(data.record_bytes) == 0 for data in model.datasets.values()) and not dies:
            return 0
        largest = max(int(footprint(data.record_bytes).max()) for data in model.datasets.values())
        capacity = sum(functions.capacity for functions in model.fleet)
        return largest * (2 * capacity * model.settings.request_samples + 1)

    def _delivered_exactly_once(self, trainers):
        """Check that each rank read its batches in order and that a full pass delivered every sample once."""
        script = trainers[0].script
        for number, (epoch, first, stop) in enumerate(script.passes):
            mine = [
                [each for each in self.deliveries[script.name, one.rank] if each.number == number]
                for one in trainers
            ]
            for deliveries in mine:
                positions = [delivery.position for delivery in deliveries]
                self.require(
                    positions == list(range(first, stop)),
                    f"{script.name} is not in plan order: it read {positions} of epoch {epoch}",
                )
            parts = [each.indices[~each.padding] for together in zip(*mine, strict=True) for each in together]
            indices = np.concatenate([np.empty(0, dtype=np.int64), *parts])
            plan = script.plan_of(epoch)
            if not script.orders:  # a user's sampler may draw a sample several times
                self.require(np.unique(indices).size == indices.size, f"{script.name} read a sample twice")
            if (first, stop) == (0, plan.batches_per_epoch):
                self.require(indices.size == plan.samples_per_epoch, f"{script.name} missed samples")
            planned = global_span(plan, epoch, first, stop)
            self.require(
                np.array_equal(indices, planned), f"{script.name} is not in plan order: epoch {epoch} differs"
            )

    def _quiet(self):
        """Check that long after the last job only saves are in flight and no empty sample set is kept."""
        core = self._world.core
        self.require(not core.jobs, "a job that vanished is still open")
        others = [request for request in self.in_flight.values() if request.kind.fills_cache]
        self.require(not others, "requests never end")
        for state in (SampleState.IN_FLIGHT, SampleState.CHECKING, SampleState.WAITING):
            self.require(not core.samples_in(state), f"samples are {state.name} forever")
        idle = [key for key, samples in _sample_sets(core).items() if samples.idle]
        self.require(not idle, f"empty sample sets are kept: {idle}")


def _sample_sets(core):
    return core.state.sets
