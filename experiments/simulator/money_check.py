"""Whether all money is accounted for: what the world has billed, beside what the core says was spent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.core.events import RequestDone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.core.actions import Prefetch
    from coordinator.core.events import RequestFailed
    from coordinator.core.jobs import Job
    from experiments.simulator.world import World

__all__ = ["MoneyCheck"]


@dataclass
class _Bill:
    """What answered requests have cost, in units."""

    answered: int = 0
    gb_s: float = 0.0
    source_requests: int = 0
    source_bytes: int = 0


class MoneyCheck:
    """The bills of one life of the coordinator."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bill = _Bill()
        self._known: dict[str, Job] = {}
        self._asked: Counter[str] = Counter()

    def requested(self, request: Prefetch) -> None:
        """A request was made, for a job that may have been opened anew."""
        job = self._world.core.job(request.job)
        if job is None:
            return
        if self._known.get(request.job) is not job:
            self._known[request.job] = job
            self._asked[request.job] = 0
        self._asked[request.job] += 1

    def answered(self, event: RequestDone | RequestFailed) -> None:
        """A request was answered for the first time."""
        self._bill.answered += 1
        self._bill.gb_s += event.gb_s
        if isinstance(event, RequestDone):
            self._bill.source_requests += event.source_requests
            self._bill.source_bytes += event.source_bytes

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
        """Dollars: to be compared with what the core says as soon as it has an account of its own."""
        yield from ()
