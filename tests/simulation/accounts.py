"""Check the core's accounting of money and its use of the store, independently of the core.

Each check keeps its own record of one coordinator run: bills, stored locations, and suspect executors.
"""

import math
from collections import Counter

import numpy as np

from superdl.coordinator.core import (
    EVERY_EPOCH,
    OUTCOME_ORDER,
    BatchRead,
    CacheReset,
    FailureKind,
    PacksLost,
    RecordReadBack,
    RecordsStored,
    RequestDone,
    RequestFailed,
)
from superdl.coordinator.core.ledger import NOBODY
from superdl.super_wire.request import Outcome, RequestKind

_CACHED, _TOMBSTONE, _NOT_STORED = map(
    OUTCOME_ORDER.index, (Outcome.CACHED, Outcome.TOMBSTONE, Outcome.NOT_STORED)
)
_NEVER_RUN = (FailureKind.THROTTLED, FailureKind.UNAVAILABLE)


class StoreCheck:
    """The stored locations known to one coordinator run, which starts now."""

    def __init__(self, world, trainers):
        self._world = world
        self._trainers = trainers
        self._places = {
            name: np.zeros(data.size, dtype=np.uint32) for name, data in world.model.datasets.items()
        }
        self._missed = {
            name: np.zeros(data.size, dtype=np.bool_) for name, data in world.model.datasets.items()
        }
        """Masks of samples that a reader has reported missing."""
        self._pointed = {
            name: np.zeros(data.size, dtype=np.bool_) for name, data in world.model.datasets.items()
        }
        """Masks of samples that are cached as pointers, according to all events."""
        facts = world.model.settings.executors if world.model.settings.store else ()
        see = {number for number, each in enumerate(facts) if each.sees_store}
        self._see = frozenset(see)
        self._store_only = {number for number, each in enumerate(facts) if not each.decodes}
        self._can_read, self._can_write = set(see), set(see)
        """The executors that see the store, minus those that have failed since they last worked."""
        self._spoilers = set()

    def record_event(self, event):
        """Record an event that is no result, before the core handles it."""
        if isinstance(event, RecordsStored):
            self._places[event.dataset][event.indices] = event.packs
        elif isinstance(event, PacksLost):
            for packs in self._places.values():
                packs[np.isin(packs, event.packs)] = 0
        elif isinstance(event, RecordReadBack) and event.fault:
            self._spoilers.add(event.executor)
            self._missed[event.samples.dataset][event.index] = True
        elif isinstance(event, CacheReset):
            for pointed in self._pointed.values():
                pointed[:] = False
        elif isinstance(event, BatchRead) and (report := event.report).missed:
            script = self._trainers[event.job][0].script
            batch = script.plan_of(report.epoch).batch(report.epoch, report.position, report.rank).indices
            self._missed[script.dataset][batch[[*report.missed]]] = True

    def answered(self, request, event, unsettled):
        """Handle a request's first answer. ``unsettled`` is the mask of samples pending until then."""
        packs, executor = self._places[request.samples.dataset], request.executor
        if request.kind is RequestKind.SAVE and not (isinstance(event, RequestDone) and event.pack):
            self._can_write.discard(executor)
            return
        if not isinstance(event, RequestDone):
            self._failed(request, event, unsettled)
            return
        if event.pack and event.stored is not None:
            packs[request.indices[event.stored]] = event.pack
            # A sample that was stored but whose pointer is missing from the cache has to be restored.
            not_pointed = request.indices[event.stored & (event.outcomes != _CACHED)]
            self._missed[request.samples.dataset][not_pointed] = True
        self._note_pointers(request, event, unsettled)
        worked = np.isin(event.outcomes, (_CACHED, _TOMBSTONE)).any()
        if request.kind is RequestKind.RESTORE:
            packs[request.indices[event.outcomes == _NOT_STORED]] = 0
        if (event.store_trouble and request.kind is RequestKind.RESTORE) or not worked:
            self._can_read.discard(executor)
        elif request.kind is RequestKind.RESTORE and executor in self._see:
            self._can_read.add(executor)
        if request.kind.writes_pack and event.store_trouble:
            self._can_write.discard(executor)
        elif event.pack:
            self._can_write.add(executor)

    def _failed(self, request, event, unsettled):
        """Handle a request that got no answer. The executor may be at fault instead of its store."""
        self._can_read.discard(request.executor)
        if request.kind.writes_pack:
            self._can_write.discard(request.executor)
        if request.kind is RequestKind.RESTORE and event.kind not in _NEVER_RUN:
            self._places[request.samples.dataset][request.indices[unsettled]] = 0

    def _note_pointers(self, request, event, unsettled):
        if request.samples.epoch != EVERY_EPOCH:
            return
        cached = event.outcomes == _CACHED
        pointers = np.zeros_like(cached) if event.pointers is None else event.pointers
        pointed = self._pointed[request.samples.dataset]
        pointed[request.indices[cached & ~pointers]] = False
        pointed[request.indices[cached & pointers & unsettled]] = True

    def audited(self, audit, event):
        """Record the result of an audit."""
        if audit.samples.epoch == EVERY_EPOCH and event.pointers is not None:
            self._pointed[audit.samples.dataset][audit.indices] = event.pointers

    def dropped(self, action):
        """Record samples that are about to be deleted from the cache."""
        if action.samples.epoch == EVERY_EPOCH:
            self._pointed[action.samples.dataset][action.indices] = False

    def left_with_pointers(self):
        """Yield datasets with pointers that a job cannot follow."""
        for name, pointed in self._pointed.items():
            if pointed.any() and not self._only_straight(name):
                yield f"a job of {name!r} cannot follow a pointer in the cache"

    def overtaken(self, request):
        """Record that a rival was answered first."""
        self._can_read.discard(request.executor)

    def problems(self, action):
        """Return the errors of a new request."""
        errors, dataset = [], action.samples.dataset
        known = self._places[dataset][action.indices] != 0
        fit = self._see - self._world.model.unfit.get(dataset, frozenset())
        deterministic = action.samples.epoch == EVERY_EPOCH
        is_seen = action.executor in self._see and deterministic
        if action.kind is not RequestKind.DECODE and not is_seen:
            errors.append("a request uses a store that its executor cannot access")
        if action.executor in self._store_only and action.kind.decodes:
            errors.append("a store-only executor gets a request to decode")
        if action.kind is RequestKind.SAVE:
            return [*errors, *(["a stored sample is saved again"] if known.any() else [])]
        if action.kind is RequestKind.RESTORE and not known.all():
            errors.append("a sample without a location is restored")
        awaited = self._missed[dataset][action.indices].all() or not self._only_straight(dataset)
        if action.kind is RequestKind.RESTORE and not awaited:
            errors.append("a sample that readers read from the store is restored although none missed it")
        if action.hedge_of is not None or action.kind is RequestKind.RESTORE or not deterministic:
            return errors
        if known.any() and fit & self._can_read - self._spoilers:
            errors.append("a stored sample is decoded although the store works")
        if not known.all() and not action.kind.writes_pack and action.executor in self._can_write:
            errors.append("a decoded sample is not kept although the store works")
        return errors

    def _only_straight(self, dataset):
        jobs = [job for job in self._world.core.jobs if job.dataset == dataset]
        return all(job.straight for job in jobs)


_GB = 2**30
_HOUR_S = 3600.0


class MoneyCheck:
    """The bills of one coordinator run, which starts now."""

    def __init__(self, world):
        self._world = world
        self._prices = [facts.prices for facts in world.model.settings.executors]
        self._answered_usd = 0.0
        """The cost of all results, by the prices of their executors."""
        self._read_bytes = 0
        self._began_s = world.now_s
        self._known = {}
        self._asked = Counter()
        self._ordered = {}
        self._beyond = False

    def requested(self, request):
        """Count a new request against its job, which may have been reopened."""
        self._beyond = self._beyond or self._billed_usd() >= self._world.model.settings.max_usd
        job = self._world.core.job(request.job)
        if job is None:
            return
        if self._known.get(request.job) is not job:
            self._known[request.job] = job
            self._asked[request.job] = 0
        self._asked[request.job] += 1
        self._ordered[request.request_id] = job

    def answered(self, request, event):
        """Bill a request's first answer."""
        if isinstance(event, RequestFailed) and event.kind in _NEVER_RUN:
            if self._ordered.get(request.request_id) is self._known.get(request.job):
                self._asked[request.job] -= 1
            return
        prices = self._prices[request.executor]
        self._answered_usd += prices.invocation + event.gb_s * prices.gb_s
        if isinstance(event, RequestDone):
            written_bytes = int(event.record_bytes[event.outcomes == _CACHED].sum())
            self._answered_usd += event.source_requests * prices.source_request
            of_the_store = prices.source_request if request.kind is RequestKind.RESTORE else prices.store_put
            self._answered_usd += event.store_requests * of_the_store
            self._answered_usd += (
                event.source_bytes * prices.source_gb + written_bytes * prices.record_gb
            ) / _GB

    def read(self, report):
        """Count a batch-read report from a rank that the core knows."""
        self._read_bytes += report.size_bytes

    def problems(self):
        """Yield each disagreement with the core's ledger: requests charged to each job, total dollars,
        dollars borne by jobs, and requests made beyond the spending cap.
        """
        for name, known in self._known.items():
            if self._world.core.job(name) is known and known.counters.invocations != self._asked[name]:
                yield f"{name} was charged {known.counters.invocations} of {self._asked[name]} invocations"
        ledger, billed_usd = self._world.core.state.ledger, self._billed_usd()
        if not math.isclose(billed_usd, ledger.total_usd, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{billed_usd} USD were billed, but the core counts {ledger.total_usd}"
        borne_usd = math.fsum(ledger.job_costs(name).usd for name in (NOBODY, *self._world.trainers))
        if not math.isclose(borne_usd, ledger.total_usd, rel_tol=1e-6, abs_tol=1e-9):
            yield f"jobs pay {borne_usd} of {ledger.total_usd} USD"
        if self._beyond:
            yield "a request was made beyond the spending cap"

    def _billed_usd(self):
        """Return the billed dollars. Hours and reads belong to no executor and cost the highest price."""
        hours = (self._world.now_s - self._began_s) / _HOUR_S
        read_usd = self._read_bytes / _GB * max(each.record_gb for each in self._prices)
        return self._answered_usd + read_usd + hours * sum(each.hour for each in self._prices)
