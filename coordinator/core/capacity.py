"""Measure the speed, capacity and health of executors, and the pace of ranks."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.coordinator.core.events import ExecutorResized

_FADING = 0.98  # weight of older observations at each new one
_OVERHEADS = 64
_RATIOS = 256
_RATIOS_LEAST = 16  # observations before quantiles are known
_SMOOTHING = 0.05
_SPREAD_LEAST = 1e-3  # if request sizes vary less, no slope can be fitted
_TINY_S = 1e-6
_OVERHEAD_SHARE = 0.05  # maximum share of an invocation's fixed time in a large request
_SLACK_SHARE = 0.5
_SAMPLE_LEAST_S = 1e-6
_LEAST = 4  # samples per request before anything is known
_LEAST_KNOWN = 16
_FIRST_S = 0.05
_WINDOW_S = 0.5
_WEIGHT = 0.3
_PAUSE = 8.0  # maximum growth factor of an interval, because a pause does not change the pace


class LastMinute:
    """A running sum over the last minute."""

    def __init__(self) -> None:
        self._slices: deque[tuple[float, float]] = deque()

    def add(self, amount: float, now: float) -> None:
        """Add an amount."""
        if self._slices and now - self._slices[-1][0] < 1.0:
            began_s, earlier = self._slices.pop()
            self._slices.append((began_s, earlier + amount))
        else:
            self._slices.append((now, amount))
            self.total(now)

    def total(self, now: float) -> float:
        """Return the current sum."""
        while self._slices and self._slices[0][0] <= now - 60.0:
            self._slices.popleft()
        return sum(amount for _, amount in self._slices)


class LatencyModel:
    """A model of the time from a request to its result. All values are zero before the first result.

    Attributes:
        results: number of observed results.
        sample_s: function time per additional sample, in seconds.
        invocation_s: fixed time per invocation in seconds, without queueing.
    """

    def __init__(self) -> None:
        # A function's duration is modelled as linear in the number of samples (least squares with decaying
        # weights). The overhead (queues, network, cold starts) is averaged. Deviations are kept as ratios,
        # which yield quantiles for requests of any size.
        self.sample_s = self.invocation_s = 0.0
        self._weight = self._n = self._t = self._nn = self._nt = 0.0
        self._overhead_s = 0.0
        self._overheads: deque[float] = deque(maxlen=_OVERHEADS)
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        self._sorted: list[float] = []
        self._since_sorted = 0
        self._fixed_s = 0.0
        self.results = 0

    def observe(self, samples: int, latency_s: float, duration_s: float) -> None:
        """Record a request's latency, including the ``duration_s`` spent in the function."""
        duration_s = min(duration_s, latency_s) or latency_s
        overhead_s = latency_s - duration_s
        self._overhead_s += (overhead_s - self._overhead_s) * (_SMOOTHING if self.results else 1.0)
        self._overheads.append(overhead_s)
        self._weight = self._weight * _FADING + 1.0
        self._n = self._n * _FADING + samples
        self._t = self._t * _FADING + duration_s
        self._nn = self._nn * _FADING + samples * samples
        self._nt = self._nt * _FADING + samples * duration_s
        self.results += 1
        self._fit()
        self._since_sorted += 1
        self._ratios.append(latency_s / max(self.expected_s(samples), _TINY_S))

    def _fit(self) -> None:
        mean_s = self._t / self._n
        self.sample_s = mean_s
        spread = self._weight * self._nn - self._n * self._n
        if spread >= _SPREAD_LEAST * self._n * self._n:
            slope_s = (self._weight * self._nt - self._n * self._t) / spread
            self.sample_s = min(max(slope_s, mean_s / 4), mean_s)  # noise may make the slope too flat
        self._fixed_s = (self._t - self.sample_s * self._n) / self._weight
        # The smallest overhead includes no queueing.
        self.invocation_s = self._fixed_s + min(self._overheads)

    @property
    def known(self) -> bool:
        """Return whether there are enough observations for :meth:`quantile_s`."""
        return len(self._ratios) >= _RATIOS_LEAST

    def expected_s(self, samples: int) -> float:
        """Return the expected latency of a request for this number of samples."""
        return self._overhead_s + self._fixed_s + self.sample_s * samples

    def quantile_s(self, samples: int, quantile: float) -> float | None:
        """Return a quantile of a request's latency, or ``None`` if there are too few observations."""
        if not self.known:
            return None
        if self._since_sorted >= _RATIOS_LEAST or not self._sorted:
            self._sorted, self._since_sorted = sorted(self._ratios), 0
        index = min(int(quantile * len(self._sorted)), len(self._sorted) - 1)
        return self._sorted[index] * self.expected_s(samples)


def request_size(latency: LatencyModel, *, requested: int, idle: int, slack_s: float, most: int) -> int:
    """Return the size of the next request in samples: worth an invocation, yet small enough to be in time.

    ``requested`` is the number of samples in the batch. ``slack_s`` is the time until the first
    is needed, or infinity if it will be late in any case.
    """
    invocation_s, sample_s = latency.invocation_s, max(latency.sample_s, _SAMPLE_LEAST_S)
    least = _LEAST
    if latency.results:  # the overhead must not exceed the work
        least = max(_LEAST_KNOWN, math.ceil(invocation_s / sample_s))
    # At first, and if late, spread the batch over all idle functions, but not into requests that are mostly
    # overhead.
    spread = min(most, max(math.ceil(requested / max(idle, 1)), least))
    if not latency.results or slack_s <= 0:
        return spread
    # Otherwise let requests grow, as far as the slack allows, until the fixed time is a small share.
    paying = math.ceil(invocation_s * (1 - _OVERHEAD_SHARE) / (_OVERHEAD_SHARE * sample_s))
    in_time = int(min(float(most), (slack_s * _SLACK_SHARE - invocation_s) / sample_s))
    return max(1, min(most, max(min(paying, in_time), min(paying, spread))))


class Pace:
    """The time between a rank's batches when it does not have to wait. An initial guess until ``known``."""

    __slots__ = ("_batches", "_since_s", "_stalls", "interval_s", "known")

    def __init__(self, now: float) -> None:
        self.interval_s = _FIRST_S
        self.known = False
        self.restart(now)

    def restart(self, now: float) -> None:
        """Start a new measurement window."""
        self._since_s = now
        self._batches = self._stalls = 0

    def read(self, batches: int, now: float, *, stalled: bool) -> None:
        """Record newly read batches, and whether a reader had to wait for the latest one."""
        self._batches += batches
        self._stalls += stalled
        passed_s = now - self._since_s
        # Measure over windows of time, because reports arrive in clumps.
        if passed_s < _WINDOW_S or not self._batches:
            return
        interval_s = min(passed_s / self._batches, self.interval_s * _PAUSE)
        weight = _WEIGHT if self.known else 1.0
        # A long window in which readers waited says little about the pace.
        if interval_s > self.interval_s:
            weight *= max(0.0, 1.0 - self._stalls / self._batches)
        self.interval_s += (interval_s - self.interval_s) * weight
        self.known = self.known or weight > 0
        self.restart(now)


_HALVING_PAUSE_S = 1.0  # concurrent refusals halve the limit only once
_RAISE_SHARE = 0.02

_FAILURES = 3  # consecutive failures before an executor is set aside
_FIRST_PAUSE_S = 0.5  # each following pause is twice as long
OPEN_MAX_S = 30.0


class Concurrency:
    """The limit on requests in flight: additive increase, multiplicative decrease (Chiu and Jain, 1989).

    Up to ``backlog`` requests beyond the limit may wait for a free function.
    """

    def __init__(self) -> None:
        self.capacity = 0
        self._backlog = 0
        self._limit = math.inf
        self._halved_s = -math.inf
        self._throttled = LastMinute()

    def resize(self, event: ExecutorResized) -> None:
        """Adopt the executor's new capacity."""
        self.capacity = event.capacity
        self._backlog = event.capacity if event.backlog is None else event.backlog

    @property
    def limit(self) -> int:
        """Return the limit on concurrent requests, which is at least 1 if the executor has capacity."""
        return max(1, int(min(float(self.capacity), self._limit))) if self.capacity else 0

    @property
    def slots(self) -> int:
        """Return the limit, plus the backlog unless the executor is throttled."""
        return self.limit + (self._backlog if self.limit >= self.capacity else 0)

    def throttled(self, in_flight: int, now: float) -> None:
        """Record that the executor refused a request for lack of capacity. Halves the limit."""
        self._throttled.add(1, now)
        if now - self._halved_s >= _HALVING_PAUSE_S:
            self._limit = max(1.0, min(self._limit, float(self.capacity), float(in_flight + 1)) / 2)
            self._halved_s = now

    def throttled_lately(self, now: float) -> int:
        """Return how often the executor was throttled in the last minute."""
        return round(self._throttled.total(now))

    def succeeded(self) -> None:
        """Record a result. Raises the limit slightly."""
        if self._limit < self.capacity:
            self._limit += max(_RAISE_SHARE, 1.0 / self._limit)


class CircuitBreaker:
    """Sets an executor aside after repeated failures (a circuit breaker; Nygard, "Release It!", 2007)."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause_s = 0.0
        self._tripped_s = -math.inf
        self.reason = ""  # of the last pause; empty after a success
        self.probe = 0  # number of the trial request after a pause
        self.corrupts = False  # whether the last record read back was corrupt

    def failed(self, reason: str, sent_s: float, now: float) -> None:
        """Record a failure that may be the executor's or a sample's fault."""
        self._failures += 1
        if self._failures >= _FAILURES:
            self.refused(reason, sent_s, now)

    def worked(self) -> None:
        """Record a success: the executor produced a sample, or a tombstone for one."""
        if self.corrupts:  # other successes prove nothing
            return
        self._failures = 0
        self._pause_s = 0.0
        self.reason = ""

    def record_corrupt(self, reason: str, now: float) -> None:
        """Record that one of the executor's records was corrupt when read back."""
        self.corrupts = True
        self.refused(reason, now, now)

    def record_intact(self) -> None:
        """Record that one of the executor's records was intact when read back."""
        if self.corrupts:
            self.corrupts = False
            self.worked()

    @property
    def tripped(self) -> bool:
        """Return whether the executor was set aside and has not succeeded since."""
        return self._pause_s > 0

    def open_until_s(self, open_max_s: float = OPEN_MAX_S) -> float:
        """Return the time at which the pause ends, with the pause capped at ``open_max_s``."""
        return self._tripped_s + min(self._pause_s, open_max_s)

    def refused(self, reason: str, sent_s: float, now: float) -> None:
        """Set the executor aside because it refused a request sent at ``sent_s``.

        The pause doubles each time. A single trial request is allowed after it.
        """
        self.reason = reason
        if self.tripped and sent_s <= self._tripped_s:  # requests may fail together
            return
        self._pause_s = min(OPEN_MAX_S, 2 * self._pause_s or _FIRST_PAUSE_S)
        self._tripped_s = now
