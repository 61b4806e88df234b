"""Whether all money is accounted for: what the world has billed, beside what the core says was spent."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.coordinator.core import OUTCOME_ORDER, FailureKind, RequestDone, RequestFailed
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.core import BatchRead, Job, Prefetch, Prices
    from superdl.experiments.simulator.world import World

__all__ = ["MoneyCheck"]


_CACHED = OUTCOME_ORDER.index(Outcome.CACHED)
_NEVER_RUN = (FailureKind.THROTTLED, FailureKind.UNAVAILABLE)
_GB = 2**30
_HOUR_S = 3600.0


@dataclass
class _Bill:
    """What the core was told, in the units that prices are for. It charges an invocation for each answer."""

    answered: int = 0
    gb_s: float = 0.0
    source_requests: int = 0
    source_bytes: int = 0
    record_bytes: int = 0

    def usd(self, prices: Prices) -> float:
        """What that costs."""
        return (
            self.answered * prices.invocation
            + self.gb_s * prices.gb_s
            + self.source_requests * prices.source_request
            + self.source_bytes / _GB * prices.source_gb
            + self.record_bytes / _GB * prices.record_gb
        )


class MoneyCheck:
    """The bills of one life of the coordinator, which begins now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._executors = world.model.settings.executors
        self._bills = [_Bill() for _ in self._executors]
        self._read_bytes = 0
        self._began_s = world.now_s
        self._known: dict[str, Job] = {}
        self._asked: Counter[str] = Counter()
        self._ordered: dict[int, Job] = {}
        self._beyond = False

    def requested(self, request: Prefetch) -> None:
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

    def answered(self, request: Prefetch, event: RequestDone | RequestFailed) -> None:
        """A request was answered for the first time."""
        if isinstance(event, RequestFailed) and event.kind in _NEVER_RUN:
            if self._ordered.get(request.request_id) is self._known.get(request.job):
                self._asked[request.job] -= 1
            return
        bill = self._bills[request.executor]
        bill.answered += 1
        bill.gb_s += event.gb_s
        if isinstance(event, RequestDone):
            bill.source_requests += event.source_requests
            bill.source_bytes += event.source_bytes
            bill.record_bytes += int(event.record_bytes[event.outcomes == _CACHED].sum())

    def read(self, event: BatchRead) -> None:
        """A report came of a batch that was read, by a rank that the core knows."""
        self._read_bytes += event.size_bytes

    def problems(self) -> Iterator[str]:
        """Where the two accounts differ."""
        yield from self._invocations()
        yield from self._money()

    def _invocations(self) -> Iterator[str]:
        """Each job bears the requests that were made for it."""
        for name, known in self._known.items():
            if self._world.core.job(name) is known and known.counters.invocations != self._asked[name]:
                yield f"{name} was charged {known.counters.invocations} invocations of {self._asked[name]}"

    def _money(self) -> Iterator[str]:
        """The dollars of the two accounts agree, all of them are borne by somebody, and the cap holds."""
        ledger = self._world.core.state.ledger
        billed_usd = self._billed_usd()
        if not math.isclose(billed_usd, ledger.total_usd, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{billed_usd} USD were billed, the core knows of {ledger.total_usd}"
        borne_usd = ledger.total_costs().usd
        if not math.isclose(borne_usd, billed_usd, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{billed_usd} USD were billed, jobs bear {borne_usd}"
        if self._beyond:
            yield "a request was made beyond the cap on money"

    def _billed_usd(self) -> float:
        """Hours and reading are no single executor's: they cost what they cost at the dearest."""
        prices = [facts.prices for facts in self._executors]
        hours = (self._world.now_s - self._began_s) / _HOUR_S
        return (
            sum(bill.usd(each) for bill, each in zip(self._bills, prices, strict=True))
            + self._read_bytes / _GB * max(each.record_gb for each in prices)
            + hours * sum(each.hour for each in prices)
        )
