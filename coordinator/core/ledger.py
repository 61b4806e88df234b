"""Costs, how jobs split them, and spending caps. Also teams, with their turns, shares and caps."""

from __future__ import annotations

import enum
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from superdl.coordinator.core.capacity import LastMinute
from superdl.coordinator.core.settings import NO_TEAM, Team

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from superdl.coordinator.core.settings import Prices

Turn: TypeAlias = tuple[int, float]  # the team with the smaller turn goes first
NOBODY = ""  # pays while no job is present, and for jobs beyond the maximum number
_GB = 2**30
_HOUR_S = 3600.0
_SAVED_S = 300.0  # of unused spending under the hourly cap that can accumulate
_SOFT_SHARE = 0.9  # of max_usd; beyond it only readers are served
_JOBS_MAX = 10_000  # samplers choose job names, so limit their number
_SMOOTHING = 0.1  # of costs per sample and request, and of teams' time per sample
_MOMENT_S = 1e-3
_WARN_EVERY_S = 300.0
UNPRICED_REQUESTS = 4  # in flight at an executor before its first bill, if there is a spending cap


class Spending(enum.StrEnum):
    """How freely money may be spent."""

    FREELY = ""
    SLOWED = "slowed"  # spend only on samples that readers are waiting for
    STOPPED = "stopped"  # spend nothing


@dataclass(slots=True)
class Costs:
    """Costs in US dollars, by kind."""

    functions_usd: float = 0.0
    source_requests_usd: float = 0.0
    store_requests_usd: float = 0.0
    # From the source, and to and from the cache.
    transfer_usd: float = 0.0
    # Hourly costs, used or not.
    cache_usd: float = 0.0
    coordinator_usd: float = 0.0
    # Unknown to the coordinator, so a bill adds it.
    trainers_usd: float = 0.0
    # Spent by previous coordinators.
    earlier_usd: float = 0.0

    def add(self, other: Costs, share: float = 1.0) -> None:
        """Add a share of other costs; a negative share subtracts."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + share * getattr(other, name))

    @property
    def usd(self) -> float:
        """Return the total in US dollars."""
        return math.fsum(getattr(self, name) for name in self.__slots__)


@dataclass(slots=True)
class _Pool:
    """A dataset's costs, and the numbers of samples read by and produced for each job."""

    costs: Costs = field(default_factory=Costs)
    read: Counter[str] = field(default_factory=Counter)
    produced: Counter[str] = field(default_factory=Counter)
    # Their sums, because adding up thousands of jobs for each job would take seconds.
    total_read: int = 0
    total_produced: int = 0

    def share(self, job: str) -> float:
        # Split by samples read, or before any are read by samples produced. Shares change while jobs read,
        # but their sum is always 1.
        for samples, total in ((self.read, self.total_read), (self.produced, self.total_produced)):
            if total:
                return samples[job] / total
        return float(job == NOBODY)


class Ledger:
    """The amount spent, its split among jobs, and the spending rate.

    Args:
        prices: prices by executor number.
        max_usd: the hard cap.
        max_usd_per_hour: above this rate, only samples that readers are waiting for are produced.
        spent_usd: earlier spending, which counts towards the hard cap but is not charged to any job.
    """

    def __init__(
        self, prices: Sequence[Prices], *, max_usd: float, max_usd_per_hour: float, spent_usd: float = 0.0
    ) -> None:
        self._prices = tuple(prices)
        self._billed = any(price.billed for price in prices)
        self._hour_usd = sum(price.hour for price in prices)
        self._coordinator_share = sum(price.coordinator_hour for price in prices) / (self._hour_usd or 1.0)
        # Reading involves no executor, so use the highest price.
        self._record_gb_usd = max(price.record_gb for price in prices)
        self._max_usd, self._max_usd_per_hour = max_usd, max_usd_per_hour
        self._per_s = max_usd_per_hour / _HOUR_S
        self.capped = min(max_usd, max_usd_per_hour) < math.inf
        self.spending = Spending.FREELY  # as of the last `update`
        self._warn_again_s = 0.0
        self._saved_usd = self._per_s * _SAVED_S
        self._pools: dict[bytes, _Pool] = {}
        # A job's own costs: its reading, and its hours once it has ended
        self._own: dict[str, Costs] = {NOBODY: Costs(earlier_usd=spent_usd)} if spent_usd else {}
        self._present: dict[str, float] = {}
        self._hours_usd = 0.0  # hourly costs of a job that was always present
        self._settled_s: float | None = None
        self._sample_usd, self._request_usd = [0.0] * len(prices), [0.0] * len(prices)
        self._bills = [0] * len(prices)
        self._lately = LastMinute()
        self.total_usd = spent_usd

    def settle(self, now: float) -> None:
        """Charge hourly costs for the time since the last call."""
        passed_s = 0.0 if self._settled_s is None else now - self._settled_s
        self._settled_s = now
        if passed_s <= 0:
            return
        if self._per_s < math.inf:
            self._saved_usd = min(self._per_s * _SAVED_S, self._saved_usd + self._per_s * passed_s)
        usd = self._hour_usd * passed_s / _HOUR_S
        if not usd:
            return
        self._spend(usd, now)
        if self._present:
            self._hours_usd += usd / len(self._present)
        else:
            self._own.setdefault(NOBODY, Costs()).add(self._hours(usd))

    def _hours(self, usd: float) -> Costs:
        coordinator_usd = usd * self._coordinator_share
        return Costs(cache_usd=usd - coordinator_usd, coordinator_usd=coordinator_usd)

    def add_job(self, job: str) -> None:
        """Include a job in the even split of hourly costs."""
        self._present.setdefault(job, self._hours_usd)

    def remove_job(self, job: str) -> None:
        """Remove a job and settle its hourly costs."""
        since = self._present.pop(job, None)
        if since is not None:
            name = job if len(self._own) < _JOBS_MAX else NOBODY
            self._own.setdefault(name, Costs()).add(self._hours(self._hours_usd - since))

    def bill_invocation(
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
        """Bill an invocation and return its cost in US dollars."""
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
            self._spend(usd, now)
        known_usd = self._request_usd[executor]
        self._request_usd[executor] += (usd - known_usd) * (_SMOOTHING if self._bills[executor] else 1.0)
        self._bills[executor] += 1
        return usd

    def add_produced(self, dataset: bytes, job: str, samples: int, usd: float, executor: int = 0) -> None:
        """Record samples that an executor produced for a job at a cost of ``usd``."""
        if not samples or not self._billed:
            return
        pool = self._pools.setdefault(dataset, _Pool())
        _add_samples(pool.produced, job, samples)
        pool.total_produced += samples
        sample_usd = usd / samples
        known_usd = self._sample_usd[executor]
        self._sample_usd[executor] += (sample_usd - known_usd) * (_SMOOTHING if known_usd else 1.0)

    def add_read(self, dataset: bytes, job: str, samples: int, size_bytes: int, now: float) -> None:
        """Record samples that a job has read, and charge for their transfer."""
        if not samples or not self._billed:
            return
        pool = self._pools.setdefault(dataset, _Pool())
        name = _add_samples(pool.read, job, samples)
        pool.total_read += samples
        usd = self._record_gb_usd * size_bytes / _GB
        if usd:
            self._own.setdefault(name, Costs()).transfer_usd += usd
            self._spend(usd, now)

    def job_costs(self, job: str) -> Costs:
        """Return the costs of an open or closed job."""
        costs = replace(self._own.get(job, Costs()))
        if job in self._present:
            costs.add(self._hours(self._hours_usd - self._present[job]))
        for pool in self._pools.values():
            if share := pool.share(job):
                costs.add(pool.costs, share)
        return costs

    def spent(self) -> Costs:
        """Return the total costs of all jobs."""
        total = self._hours(sum(self._hours_usd - since for since in self._present.values()))
        for costs in (*self._own.values(), *(pool.costs for pool in self._pools.values())):
            total.add(costs)
        return total

    def usd_per_hour(self, now: float) -> float:
        """Return the spending rate over the last minute, in US dollars per hour."""
        return self._lately.total(now) * _HOUR_S / 60.0

    def update(self, in_flight: Sequence[tuple[int, int]], now: float) -> str | None:
        """Update ``spending``. Return a warning if a cap is near, unless there was one recently.

        ``in_flight`` contains the number of requests and samples in flight on each executor.
        """
        if not self.capped:
            return None
        committed_usd = self.committed_usd(in_flight)
        expected_usd = self.total_usd + committed_usd
        if expected_usd + self.request_usd > self._max_usd or expected_usd >= self._max_usd:
            self.spending = Spending.STOPPED
        elif expected_usd >= _SOFT_SHARE * self._max_usd or self._saved_usd <= committed_usd:
            self.spending = Spending.SLOWED
        else:
            self.spending = Spending.FREELY
        if self.spending is Spending.FREELY or now < self._warn_again_s:
            return None
        if self.spending is Spending.STOPPED and any(requests for requests, _ in in_flight):
            return None  # requests in flight may turn out cheaper
        self._warn_again_s = now + _WARN_EVERY_S
        spent = f"spent {self.total_usd:.4f} of {self._max_usd:g} USD (max_usd)"
        if self.spending is Spending.STOPPED:
            return f"{spent}: production has stopped, because another request might exceed the cap"
        return (
            f"{spent}: this cap or the hourly cap (max_usd_per_hour, {self._max_usd_per_hour:g}) is near, "
            "so only samples that readers are waiting for are produced"
        )

    def refusal(self) -> str:
        """Explain to readers why the hard cap has stopped production, and how to continue."""
        return (
            f"production has stopped: {self.total_usd:.4f} USD were spent on this cache, including before "
            f"restarts, and another request might exceed max_usd ({self._max_usd:g} USD). To continue, start "
            "the coordinator with a higher max_usd (--max-usd, SUPER_MAX_USD)"
        )

    def freely_at_s(self, now: float, in_flight: Sequence[tuple[int, int]]) -> float | None:
        """Return when the hourly cap allows free spending again, or ``None`` if it already does."""
        if self._per_s == math.inf:
            return None
        missing_usd = self.committed_usd(in_flight) - self._saved_usd
        return now + missing_usd / self._per_s + _MOMENT_S if missing_usd >= 0 else None

    def committed_usd(self, in_flight: Sequence[tuple[int, int]]) -> float:
        """Return the estimated cost of requests in flight."""
        return sum(
            max(requests * self._each_usd(executor), samples * self._sample_usd[executor])
            for executor, (requests, samples) in enumerate(in_flight)
        )

    @property
    def request_usd(self) -> float:
        """Return the estimated cost of another request."""
        return max(map(self._each_usd, range(len(self._prices))))

    def _each_usd(self, executor: int) -> float:
        return max(self._prices[executor].invocation, self._request_usd[executor])

    def _spend(self, usd: float, now: float) -> None:
        self.total_usd += usd
        self._saved_usd -= usd
        self._lately.add(usd, now)


def _add_samples(by_job: Counter[str], job: str, samples: int) -> str:
    """Count samples for a job. Return the name under which they are counted."""
    name = job if job in by_job or len(by_job) < _JOBS_MAX else NOBODY
    by_job[name] += samples
    return name


_KEPT_S = 2.0  # of an unused share that a team can accumulate
_SAMPLE_S = 0.01  # until a request has ended


@dataclass(slots=True)
class TeamState:
    """A team, the number of its requests in flight and in total, and their cost."""

    facts: Team
    in_flight: int = 0
    requests: int = 0
    usd: float = 0.0
    virtual_s: float = 0.0
    warned_s: float = -math.inf  # time of the last warning about its cap
    sample_s: float = 0.0  # smoothed function time per sample; 0 until a request has ended


class Teams:
    """All teams seen so far. ``spent_usd`` is each team's earlier spending."""

    def __init__(self, teams: Iterable[Team] = (), spent_usd: Mapping[str, float] | None = None) -> None:
        # Start-time fair queueing (Goyal et al., 1996): a team's virtual time advances by the function time
        # of its requests, divided by its share. The time is estimated first, and corrected at the end.
        self._states = {NO_TEAM: TeamState(Team())}
        self.configured: tuple[Team, ...] = ()  # by the last change
        self._floor_s = 0.0  # lower bound of all virtual times
        self._sample_s = _SAMPLE_S
        self.change(teams)
        for name, usd in (spent_usd or {}).items():
            self[name].usd = usd

    def __iter__(self) -> Iterator[TeamState]:
        return iter(self._states.values())

    def __getitem__(self, name: str) -> TeamState:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = TeamState(Team(name))
        return state

    @property
    def several(self) -> bool:
        """Return whether there is more than one team."""
        return len(self._states) > 1

    def change(self, teams: Iterable[Team]) -> None:
        """Set the limits of teams. Teams that are not listed keep their limits."""
        self.configured = tuple(teams)
        facts = {team.name: team for team in self.configured}
        for name in sorted({*facts, *self._states}):
            self[name].facts = facts.get(name, self[name].facts)

    def turn(self, name: str) -> Turn:
        """Return a team's turn. Turns sort by highest priority, then by smallest virtual time."""
        state = self[name]
        return -state.facts.priority, max(self._floor_s, state.virtual_s)

    def began(self, name: str, samples: int, *, capacity: int) -> float:
        """Account for a new request, and return its expected duration in seconds.

        ``capacity`` is the maximum number of concurrent requests across all teams.
        """
        state = self[name]
        expected_s = samples * (state.sample_s or self._sample_s)
        start_s, passes_s = max(self._floor_s, state.virtual_s), expected_s / state.facts.share
        state.virtual_s = start_s + passes_s
        state.in_flight += 1
        shares = sum(team.facts.share for team in self if team.in_flight)
        # A team that needed less for a while may only partly catch up.
        self._floor_s = max(self._floor_s, start_s - max(passes_s, _KEPT_S * capacity / shares))
        state.requests += 1
        return expected_s

    def ended(self, name: str, samples: int, took_s: float, *, expected_s: float) -> None:
        """Account for a finished request that occupied a function for ``took_s`` seconds."""
        state = self[name]
        state.in_flight -= 1
        state.virtual_s += (took_s - expected_s) / state.facts.share
        if took_s:  # 0: no function ran
            each_s = took_s / samples
            state.sample_s += (each_s - state.sample_s) * (_SMOOTHING if state.sample_s else 1.0)
            self._sample_s = state.sample_s

    def may_spend(self, name: str, request_usd: float) -> bool:
        """Return whether a team can afford another request, assuming ``request_usd`` per request."""
        state = self[name]
        expected_usd = state.usd + (state.in_flight + 1) * request_usd
        return expected_usd <= state.facts.max_usd and state.usd < state.facts.max_usd

    def refusal(self, name: str) -> str:
        """Explain to a team's readers why production has stopped, and how to continue."""
        state = self[name]
        return (
            f"production has stopped for team {name}: its requests have cost {state.usd:.4f} USD, and "
            f"another might exceed its max_usd ({state.facts.max_usd:g} USD). To continue, raise it in the "
            "coordinator's token_file"
        )
