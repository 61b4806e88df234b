"""Whether all money is accounted for: what the world has billed, beside what the core says was spent."""

from __future__ import annotations

import math
from collections import Counter

from superdl.coordinator.core import OUTCOME_ORDER, FailureKind, RequestDone, RequestFailed
from superdl.super_wire.request import Outcome, RequestKind

_CACHED = OUTCOME_ORDER.index(Outcome.CACHED)
_NEVER_RUN = (FailureKind.THROTTLED, FailureKind.UNAVAILABLE)
_GB = 2**30
_HOUR_S = 3600.0


class MoneyCheck:
    """The bills of one life of the coordinator, which begins now."""

    def __init__(self, world):
        self._world = world
        self._prices = [facts.prices for facts in world.model.settings.executors]
        self._answered_usd = 0.0
        """What the core was told, at the prices of who answered. It charges an invocation for each answer."""
        self._read_bytes = 0
        self._began_s = world.now_s
        self._known = {}
        self._asked = Counter()
        self._ordered = {}
        self._beyond = False

    def requested(self, request):
        """A request was made, for a job that may have been opened again."""
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
        """A request was answered for the first time."""
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

    def read(self, event):
        """A report came of a batch that was read, by a rank that the core knows."""
        self._read_bytes += event.size_bytes

    def problems(self):
        """Where the two accounts differ: each job bears the requests that were made for it, the dollars of
        both agree, all of them are borne by somebody, and the cap holds.
        """
        for name, known in self._known.items():
            if self._world.core.job(name) is known and known.counters.invocations != self._asked[name]:
                yield f"{name} was charged {known.counters.invocations} invocations of {self._asked[name]}"
        ledger, billed_usd = self._world.core.state.ledger, self._billed_usd()
        if not math.isclose(billed_usd, ledger.total_usd, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{billed_usd} USD were billed, the core knows of {ledger.total_usd}"
        if self._beyond:
            yield "a request was made beyond the cap on money"

    def _billed_usd(self):
        """Hours and reading are no single executor's: they cost what they cost at the dearest."""
        hours = (self._world.now_s - self._began_s) / _HOUR_S
        read_usd = self._read_bytes / _GB * max(each.record_gb for each in self._prices)
        return self._answered_usd + read_usd + hours * sum(each.hour for each in self._prices)
