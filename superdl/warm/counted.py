"""What the coordinator has counted for the job that warms, also over a coordinator that was restarted."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from superdl.super_wire.errors import CacheError, CoordinatorError

if TYPE_CHECKING:
    from superdl.sampler import SuperSampler
    from superdl.warm.report import WarmReport

__all__ = ["Counted"]

_LOG = logging.getLogger(__name__)

_COUNTERS = ("produced", "usd", "gb_s", "invocations", "source_requests", "dropped")
_GROWING = ("produced", "invocations", "source_requests", "dropped")
_FIELDS = {"produced": "samples_produced", "dropped": "dropped_samples"}


class Counted:
    """Looks, and adds up: counters begin at 0 again where a coordinator lost its memory.

    Attributes:
        known: whether the last look was answered.
        free_bytes: of the cache's budget, at the last look.
        budget_bytes: the budget.
        in_flight: samples that functions work on, for all jobs.
        working: requests that functions work on, for this one.
    """

    def __init__(self, sampler: SuperSampler) -> None:
        self._sampler = sampler
        self._latest = dict.fromkeys(_COUNTERS, 0.0)
        self._before = dict.fromkeys(_COUNTERS, 0.0)
        self._dropped_at_first: float | None = None
        self._looked_s = -1e9
        self.known = False
        self.free_bytes = 0
        self.budget_bytes = 0
        self.in_flight = 0
        self.working = 0

    def age_s(self) -> float:
        """Seconds since the last look."""
        return time.monotonic() - self._looked_s

    def look(self, report: WarmReport) -> bool:
        """Ask, and write the sums into the report; a coordinator that does not answer is no news.

        Whether the coordinator has lost its memory since the look before.
        """
        try:
            stats = self._sampler.job_stats()
        except (
            CacheError,
            CoordinatorError,
        ) as error:  # it or its cache may be restarting; waiting is bounded
            _LOG.debug("no statistics: %s", error)
            self.known, self.free_bytes = False, 0
            return False
        finally:
            self._looked_s = time.monotonic()
        self.known, self.free_bytes, self.budget_bytes = True, stats.free_bytes, stats.budget_bytes
        self.in_flight, self.working = stats.in_flight_samples, stats.requests_in_flight
        now = {name: float(getattr(stats, _FIELDS.get(name, name))) for name in _COUNTERS}
        if self._dropped_at_first is None:
            self._dropped_at_first = now["dropped"]
        # A share of the costs may get less while others read; what only grows tells of a new process.
        forgot = any(now[name] < self._latest[name] for name in _GROWING)
        for name, value in now.items():
            if forgot:
                self._before[name] += self._latest[name]
            self._latest[name] = value
        sums = {name: self._before[name] + self._latest[name] for name in _COUNTERS}
        report.usd, report.gb_s = sums["usd"], sums["gb_s"]
        report.produced, report.invocations = int(sums["produced"]), int(sums["invocations"])
        report.source_requests = int(sums["source_requests"])
        report.dropped = max(0, int(sums["dropped"] - self._dropped_at_first))
        return forgot
