"""The ledger: how much was spent, how it is split among jobs, and how much may still be spent."""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.coordinator.core.settings import Prices

NOBODY = ""  # account for costs while no job was present, or of jobs beyond the maximum number
_GB = 2**30
_HOUR_S = 3600.0
_WINDOW_S = 60.0  # over which the rate of spending is measured
_SLICE_S = 1.0  # costs within it share an entry
_SAVED_S = 300.0  # of the hourly cap's money that may be saved up
_SOFT_SHARE = 0.9  # of max_usd, from which on only readers are served
_JOBS_MAX = 10_000
_SMOOTHING = 0.1
_MOMENT_S = 1e-3
_WARN_EVERY_S = 300.0
UNPRICED_REQUESTS = 4  # most requests in flight at an executor before its first bill, under a spending cap


class Spending(enum.StrEnum):
    """The degree to which money may be spent."""

    FREELY = ""
    SLOWED = "slowed"  # only for samples that readers wait for
    STOPPED = "stopped"  # not at all


@dataclass(slots=True)
class Costs:
    """US dollars by kind of cost."""

    # Invocations, and their memory times duration.
    functions_usd: float = 0.0
    # GETs.
    source_requests_usd: float = 0.0
    # GETs and PUTs of the store.
    store_requests_usd: float = 0.0
    # Bytes out of the source, into the cache and out of it.
    transfer_usd: float = 0.0
    # By the hour, used or not, as the next.
    cache_usd: float = 0.0
    coordinator_usd: float = 0.0
    # Training machines, which the coordinator does not know and a bill adds.
    trainers_usd: float = 0.0
    # The total spent by previous coordinators.
    earlier_usd: float = 0.0

    def add(self, other: Costs, share: float = 1.0) -> None:
        """Add a share of other costs; a negative share subtracts."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + share * getattr(other, name))

    @property
    def usd(self) -> float:
        """Return the sum of all kinds."""
        return math.fsum(getattr(self, name) for name in self.__slots__)


@dataclass(slots=True)
class _Pool:
    costs: Costs = field(default_factory=Costs)
    used: dict[str, int] = field(default_factory=dict)
    produced: dict[str, int] = field(default_factory=dict)
    used_total: int = 0
    produced_total: int = 0

    def share(self, job: str) -> float:
        # Any job may use what was produced for another: split by samples read, before that by
        # samples produced. Shares move while jobs read, and their sum is always the amount spent.
        if self.used_total:
            return self.used.get(job, 0) / self.used_total
        if self.produced_total:
            return self.produced.get(job, 0) / self.produced_total
        return float(job == NOBODY)


class Ledger:
    """Spending: the amount, its split among jobs, and its rate.

    Args:
        prices: unit prices, by the executor's number, each with its own hourly costs.
        max_usd: the hard cap.
        max_usd_per_hour: beyond this rate, money goes only to samples that readers wait for.
        spent_usd: the amount spent before; it counts for the hard cap, and no job bears it.
    """

    def __init__(
        self, prices: Sequence[Prices], *, max_usd: float, max_usd_per_hour: float, spent_usd: float = 0.0
    ) -> None:
        self._prices = tuple(prices)
        self._billed = any(price.billed for price in prices)
        self._hour_usd = sum(price.hour for price in prices)
        self._coordinator_share = sum(price.coordinator_hour for price in prices) / (self._hour_usd or 1.0)
        # Reading belongs to no executor, so the highest price counts.
        self._record_gb_usd = max(price.record_gb for price in prices)
        self._max_usd, self._max_usd_per_hour = max_usd, max_usd_per_hour
        self._per_s = max_usd_per_hour / _HOUR_S
        self.capped = min(max_usd, max_usd_per_hour) < math.inf
        self.spending = Spending.FREELY  # the result of the last `watch`
        self._warn_again_s = 0.0
        self._saved_usd = self._per_s * _SAVED_S
        self._pools: dict[bytes, _Pool] = {}
        # Costs that each job bears alone: its hours, once it has ended, and its reading
        self._own: dict[str, Costs] = {NOBODY: Costs(earlier_usd=spent_usd)} if spent_usd else {}
        self._present: dict[str, float] = {}
        self._hours_usd = 0.0  # the hourly costs of a hypothetical job that was always present
        self._settled_s: float | None = None
        self._sample_usd, self._request_usd = [0.0] * len(prices), [0.0] * len(prices)
        self._bills = [0] * len(prices)
        self._lately: deque[tuple[float, float]] = deque()
        self._lately_usd = 0.0
        self.total_usd = spent_usd

    def settle(self, now: float) -> None:
        """Account for the time since the last call."""
        if self._settled_s is None:
            self._settled_s = now
        passed_s, self._settled_s = now - self._settled_s, now
        if passed_s <= 0:
            return
        if self._per_s < math.inf:
            self._saved_usd = min(self._per_s * _SAVED_S, self._saved_usd + self._per_s * passed_s)
        usd = self._hour_usd * passed_s / _HOUR_S
        if not usd:
            return
        self._count(usd, now)
        if self._present:
            # Hourly costs are split evenly over the jobs present.
            self._hours_usd += usd / len(self._present)
        else:
            self._own.setdefault(NOBODY, Costs()).add(self._hours(usd))

    def _hours(self, usd: float) -> Costs:
        coordinator_usd = usd * self._coordinator_share
        return Costs(cache_usd=usd - coordinator_usd, coordinator_usd=coordinator_usd)

    def joined(self, job: str) -> None:
        """Add a job to those that share hourly costs."""
        self._present.setdefault(job, self._hours_usd)

    def left(self, job: str) -> None:
        """Remove a job, and settle its hourly costs."""
        since = self._present.pop(job, None)
        if since is not None:
            name = job if len(self._own) < _JOBS_MAX else NOBODY
            self._own.setdefault(name, Costs()).add(self._hours(self._hours_usd - since))

    def invoked(
        self,
        dataset: bytes,
        *,
        executor: int = 0,
        gb_s: float,
        now: float,
        source_requests: int = 0,
        source_bytes: int = 0,
        record_bytes: int = 0,
        store_gets: int = 0,
        store_puts: int = 0,
    ) -> float:
        """Bill an invocation of a function; return its cost in US dollars."""
        prices = self._prices[executor]
        functions_usd = prices.invocation + prices.gb_s * gb_s
        gets_usd = prices.source_request * source_requests
        store_usd = prices.source_request * store_gets + prices.store_put * store_puts
        fetched_usd, pushed_usd = prices.source_gb * source_bytes / _GB, prices.record_gb * record_bytes / _GB
        usd = functions_usd + gets_usd + store_usd + fetched_usd + pushed_usd
        if usd:
            costs = self._pools.setdefault(dataset, _Pool()).costs
            costs.functions_usd += functions_usd
            costs.source_requests_usd += gets_usd
            costs.store_requests_usd += store_usd
            costs.transfer_usd += fetched_usd + pushed_usd
            self._count(usd, now)
        known_usd = self._request_usd[executor]
        self._request_usd[executor] += (usd - known_usd) * (_SMOOTHING if self._bills[executor] else 1.0)
        self._bills[executor] += 1
        return usd

    def produced(self, dataset: bytes, job: str, samples: int, usd: float, executor: int = 0) -> None:
        """Record samples produced for a job by an executor at a cost of ``usd``."""
        if not samples or not self._billed:
            return
        pool = self._pools.setdefault(dataset, _Pool())
        name = job if job in pool.produced or len(pool.produced) < _JOBS_MAX else NOBODY
        pool.produced[name] = pool.produced.get(name, 0) + samples
        pool.produced_total += samples
        sample_usd = usd / samples
        known_usd = self._sample_usd[executor]
        self._sample_usd[executor] += (sample_usd - known_usd) * (_SMOOTHING if known_usd else 1.0)

    def used(self, dataset: bytes, job: str, samples: int, size_bytes: int, now: float) -> None:
        """Record samples that a job has read, and bill their transfer."""
        if not samples or not self._billed:
            return
        pool = self._pools.setdefault(dataset, _Pool())
        # Samplers choose the names of jobs, so bound their number.
        name = job if job in pool.used or len(pool.used) < _JOBS_MAX else NOBODY
        pool.used[name] = pool.used.get(name, 0) + samples
        pool.used_total += samples
        usd = self._record_gb_usd * size_bytes / _GB
        if usd:
            self._own.setdefault(name, Costs()).transfer_usd += usd
            self._count(usd, now)

    def job_costs(self, job: str) -> Costs:
        """Return the costs until now of a job, open or ended."""
        costs = replace(self._own.get(job, Costs()))
        if job in self._present:
            costs.add(self._hours(self._hours_usd - self._present[job]))
        for pool in self._pools.values():
            if share := pool.share(job):
                costs.add(pool.costs, share)
        return costs

    def spent(self) -> Costs:
        """Return all costs until now, without splitting them among jobs."""
        total = self._hours(sum(self._hours_usd - since for since in self._present.values()))
        for costs in (*self._own.values(), *(pool.costs for pool in self._pools.values())):
            total.add(costs)
        return total

    def jobs(self) -> set[str]:
        """Return all jobs that bear costs."""
        names = {NOBODY, *self._own, *self._present}
        for pool in self._pools.values():
            names.update(pool.used, pool.produced)
        return names

    def usd_per_hour(self, now: float) -> float:
        """Return the rate of spending over the last minute, in US dollars per hour."""
        self._expire(now)
        return self._lately_usd * _HOUR_S / _WINDOW_S

    def watch(self, in_flight: Sequence[tuple[int, int]], now: float) -> str | None:
        """Update ``spending``, counting requests and samples in flight; return a warning now and then."""
        if not self.capped:
            return None
        self.spending = self._freedom(in_flight)
        if self.spending is Spending.FREELY or now < self._warn_again_s:
            return None
        if self.spending is Spending.STOPPED and any(requests for requests, _ in in_flight):
            return None  # it may turn out cheaper
        self._warn_again_s = now + _WARN_EVERY_S
        spent = f"{self.total_usd:.4f} USD of max_usd {self._max_usd:g} are spent"
        if self.spending is Spending.STOPPED:
            return f"{spent}, and a request more might pass the cap: nothing more is produced"
        return (
            f"{spent}, and a cap (the other is max_usd_per_hour {self._max_usd_per_hour:g}) is near: only "
            "what readers wait for is produced"
        )

    def refusal(self) -> str:
        """Explain to a reader why the hard cap stops production, and how to go on."""
        return (
            f"{self.total_usd:.4f} USD are spent on this cache, by coordinators before a restart too, and "
            f"max_usd is {self._max_usd:g}, which a request more might pass: to go on, start the coordinator "
            "with a higher one (--max-usd, SUPER_MAX_USD)"
        )

    def _freedom(self, in_flight: Sequence[tuple[int, int]]) -> Spending:
        committed_usd = self.committed_usd(in_flight)
        expected_usd = self.total_usd + committed_usd
        if expected_usd + self.request_usd > self._max_usd or expected_usd >= self._max_usd:
            return Spending.STOPPED
        if expected_usd >= _SOFT_SHARE * self._max_usd or self._saved_usd <= committed_usd:
            return Spending.SLOWED
        return Spending.FREELY

    def freely_at_s(self, now: float, in_flight: Sequence[tuple[int, int]]) -> float | None:
        """Return when the hourly cap will allow free spending again; ``None`` if it does now."""
        if self._per_s == math.inf:
            return None
        missing_usd = self.committed_usd(in_flight) - self._saved_usd
        return now + missing_usd / self._per_s + _MOMENT_S if missing_usd >= 0 else None

    def committed_usd(self, in_flight: Sequence[tuple[int, int]]) -> float:
        """Return the known or estimated cost of requests in flight."""
        return sum(
            max(requests * self._each_usd(executor), samples * self._sample_usd[executor])
            for executor, (requests, samples) in enumerate(in_flight)
        )

    @property
    def request_usd(self) -> float:
        """Return the known or estimated cost of one more request."""
        return max(map(self._each_usd, range(len(self._prices))))

    def _each_usd(self, executor: int) -> float:
        return max(self._prices[executor].invocation, self._request_usd[executor])

    def _count(self, usd: float, now: float) -> None:
        self.total_usd += usd
        self._saved_usd -= usd
        self._lately_usd += usd
        if self._lately and now - self._lately[-1][0] < _SLICE_S:
            self._lately[-1] = (self._lately[-1][0], self._lately[-1][1] + usd)
        else:
            self._lately.append((now, usd))
            self._expire(now)

    def _expire(self, now: float) -> None:
        while self._lately and self._lately[0][0] <= now - _WINDOW_S:
            self._lately_usd -= self._lately.popleft()[1]
        if not self._lately:
            self._lately_usd = 0.0
