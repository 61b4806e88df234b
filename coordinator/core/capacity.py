"""Measure the speed, capacity and health of executors, and the pace of ranks."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.coordinator.core.events import ExecutorResized

_FADING = 0.98  # weight of older observations at each new one
_AROUNDS = 64
_RATIOS = 256
_RATIOS_LEAST = 16  # observations before quantiles are known
_SMOOTHING = 0.05
_SPREAD_LEAST = 1e-3  # if request sizes vary less, no slope can be fitted
_TINY_S = 1e-6
_OVERHEAD_SHARE = 0.05  # maximum share of an invocation's time in a large enough request
_SLACK_SHARE = 0.5
_SAMPLE_LEAST_S = 1e-6
_LEAST = 4  # samples per request before anything is known
_LEAST_KNOWN = 16
_FIRST_S = 0.05
_WINDOW_S = 0.5
_WEIGHT = 0.3
_PAUSE = 8.0  # an interval grows at most by this factor, because a pause does not change the pace


class LastMinute:
    """A sum over the last minute."""

    def __init__(self) -> None:
        self._slices: deque[tuple[float, float]] = deque()
        self._total = 0.0

    def add(self, amount: float, now: float) -> None:
        """Add an amount. Amounts within a second share an entry."""
        self._total += amount
        if self._slices and now - self._slices[-1][0] < 1.0:
            self._slices[-1] = (self._slices[-1][0], self._slices[-1][1] + amount)
        else:
            self._slices.append((now, amount))
            self.total(now)

    def total(self, now: float) -> float:
        """Return the current sum."""
        while self._slices and self._slices[0][0] <= now - 60.0:
            self._total -= self._slices.popleft()[1]
        if not self._slices:  # clears rounding errors
            self._total = 0.0
        return self._total


class LatencyModel:
    """The time from a request to its result, in seconds. All values are zero before the first result.

    Attributes:
        answers: number of results observed so far.
        sample_s: a function's time per additional sample.
        invocation_s: fixed time per invocation, without queueing, which varies.
    """

    def __init__(self) -> None:
        # A function's duration is modelled as linear in the number of samples (least squares with decaying
        # weights). The rest (queues, network, cold starts) is averaged. Deviations are kept as ratios, so
        # that they yield quantiles for requests of all sizes.
        self.sample_s = self.invocation_s = 0.0
        self._weight = self._n = self._t = self._nn = self._nt = 0.0
        self._around_s = 0.0
        self._arounds: deque[float] = deque(maxlen=_AROUNDS)
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        self._sorted: list[float] = []
        self._since_sorted = 0
        self._fixed_s = 0.0
        self.answers = 0

    def observe(self, samples: int, latency_s: float, duration_s: float) -> None:
        """Add the latency of a request with ``samples``. The function took ``duration_s`` of it."""
        duration_s = min(duration_s, latency_s) or latency_s
        around_s = latency_s - duration_s
        self._around_s += (around_s - self._around_s) * (_SMOOTHING if self.answers else 1.0)
        self._arounds.append(around_s)
        self._weight = self._weight * _FADING + 1.0
        self._n = self._n * _FADING + samples
        self._t = self._t * _FADING + duration_s
        self._nn = self._nn * _FADING + samples * samples
        self._nt = self._nt * _FADING + samples * duration_s
        self.answers += 1
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
        self.invocation_s = self._fixed_s + min(self._arounds)

    @property
    def known(self) -> bool:
        """Return whether there are enough observations for :meth:`quantile_s`."""
        return len(self._ratios) >= _RATIOS_LEAST

    def expected_s(self, samples: int) -> float:
        """Return the average time from a request with ``samples`` to its result."""
        return self._around_s + self._fixed_s + self.sample_s * samples

    def quantile_s(self, samples: int, quantile: float) -> float | None:
        """Return the ``quantile`` of the time to the result, or ``None`` if too little is known."""
        if not self.known:
            return None
        if self._since_sorted >= _RATIOS_LEAST or not self._sorted:
            self._sorted, self._since_sorted = sorted(self._ratios), 0
        index = min(int(quantile * len(self._sorted)), len(self._sorted) - 1)
        return self._sorted[index] * self.expected_s(samples)


def request_size(latency: LatencyModel, *, requested: int, idle: int, slack_s: float, most: int) -> int:
    """Return the size of the next request, with enough samples to be worth an
    invocation, but few enough to be in time.

    ``requested`` is the number of samples of a batch, and ``slack_s`` the time until the first
    is needed, which is infinite if it cannot be in time.
    """
    invocation_s, sample_s = latency.invocation_s, max(latency.sample_s, _SAMPLE_LEAST_S)
    least = _LEAST
    if latency.answers:  # the overhead must not exceed the work
        least = max(_LEAST_KNOWN, math.ceil(invocation_s / sample_s))
    # At the start, and if late, spread the batch over all idle functions, but
    # not into requests that are mostly overhead.
    spread = min(most, max(math.ceil(requested / max(idle, 1)), least))
    if not latency.answers or slack_s <= 0:
        return spread
    # Else let requests grow until the fixed part of an invocation is a small share,
    # as far as the slack allows.
    paying = math.ceil(invocation_s * (1 - _OVERHEAD_SHARE) / (_OVERHEAD_SHARE * sample_s))
    in_time = int(min(float(most), (slack_s * _SLACK_SHARE - invocation_s) / sample_s))
    return max(1, min(most, max(min(paying, in_time), min(paying, spread))))


class Pace:
    """The time between two batches of a rank that never waits, which is a guess until it is ``known``."""

    __slots__ = ("_batches", "_since_s", "_stalls", "interval_s", "known")

    def __init__(self, now: float) -> None:
        self.interval_s = _FIRST_S
        self.known = False
        self.restart(now)

    def restart(self, now: float) -> None:
        """Start over, because the time so far does not predict the time until the next batch."""
        self._since_s = now
        self._batches = self._stalls = 0

    def read(self, batches: int, now: float, *, stalled: bool) -> None:
        """Record batches read since the last call, and whether a reader waited for the newest."""
        self._batches += batches
        self._stalls += stalled
        passed_s = now - self._since_s
        # Reports come in clumps, so the pace is measured over windows of time.
        if passed_s < _WINDOW_S or not self._batches:
            return
        interval_s = min(passed_s / self._batches, self.interval_s * _PAUSE)
        weight = _WEIGHT if self.known else 1.0  # a guess has no inertia
        # A window in which readers waited says little about the job's pace,
        # unless it was short.
        if interval_s > self.interval_s:
            weight *= max(0.0, 1.0 - self._stalls / self._batches)
        self.interval_s += (interval_s - self.interval_s) * weight
        self.known = self.known or weight > 0
        self.restart(now)


_HALVING_PAUSE_S = 1.0  # concurrent refusals halve the limit only once
_RAISE_SHARE = 0.02
_WARM_S = 300.0  # unused environments are removed after this

_FAILURES = 3  # consecutive failures before an executor is set aside
_FIRST_PAUSE_S = 0.5  # the first pause; each following pause is twice as long
OPEN_MAX_S = 30.0  # maximum pause in seconds


class Concurrency:
    """The limit on requests in flight. ``backlog`` of them may wait for a free function."""

    def __init__(self) -> None:
        # AWS Lambda adds environments at a limited rate, a burst and then a number per second, modelled as a
        # token bucket. Warm environments are free, and each additional one takes a token.
        self.capacity = 0
        self._backlog = 0
        self._burst = 0.0
        self._per_s = math.inf
        self._tokens = 0.0
        self._filled_s = 0.0
        self._warm = 0
        self._peak = 0
        self._peak_since_s = 0.0
        self._limit = math.inf
        self._halved_s = -math.inf
        self._throttled = LastMinute()

    def resize(self, to: ExecutorResized, now: float) -> None:
        """Adopt the executor's new capacity."""
        self.capacity, self._per_s = to.capacity, to.per_s
        self._backlog = to.capacity if to.backlog is None else to.backlog
        self._burst = float(to.capacity if to.burst is None else min(to.burst, to.capacity))
        self._tokens, self._filled_s = self._burst, now

    def limit(self, now: float) -> int:
        """Return how many concurrent requests the executor accepts now, at least one if it accepts any."""
        if not self.capacity:
            return 0
        bound = min(float(self.capacity), self._limit)
        if self._per_s < math.inf:
            self._fill(now)
            bound = min(bound, self._warm + self._tokens)
        return max(1, int(bound))

    def free_slots(self, in_flight: int, now: float) -> int:
        """Return how many more requests can be made."""
        limit = self.limit(now)
        backlog = self._backlog if limit >= self.capacity else 0
        return limit + backlog - in_flight

    def idle(self, in_flight: int, now: float) -> int:
        """Return the number of idle functions."""
        return max(0, self.limit(now) - in_flight)

    def used(self, in_flight: int, now: float) -> None:
        """Record the number of requests in flight, including a new one."""
        if self._per_s == math.inf:
            return
        if in_flight > self._warm:
            self._fill(now)
            self._tokens = max(0.0, self._tokens - (in_flight - self._warm))
            self._warm = in_flight
        self._peak = max(self._peak, in_flight)
        if now - self._peak_since_s > _WARM_S:  # environments that were unused for this long are removed
            self._warm, self._peak, self._peak_since_s = self._peak, in_flight, now

    def throttled(self, in_flight: int, now: float) -> None:
        """Record that the executor refused an early request."""
        self._throttled.add(1, now)
        # Throttling halves the limit, at most once per pause. Every result raises
        # it a little (Chiu and Jain 1989).
        if now - self._halved_s >= _HALVING_PAUSE_S:
            self._limit = max(1.0, min(self._limit, float(self.capacity), float(in_flight + 1)) / 2)
            self._halved_s = now

    def throttled_lately(self, now: float) -> int:
        """Return how often the executor was throttled in the last minute."""
        return round(self._throttled.total(now))

    def succeeded(self) -> None:
        """Record a result."""
        if self._limit < self.capacity:
            self._limit += max(_RAISE_SHARE, 1.0 / self._limit)

    def more_at_s(self, now: float) -> float | None:
        """Return when the ramp will allow another request, or ``None`` if it is not the limit."""
        if self._per_s == math.inf or self._warm >= min(self.capacity, self._limit):
            return None
        self._fill(now)
        # Later than now, even if the difference is below the clock's resolution.
        return max(now + (1.0 - self._tokens % 1.0) / self._per_s, math.nextafter(now, math.inf))

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._filled_s) * self._per_s)
        self._filled_s = now


class CircuitBreaker:
    """The failures of an executor since its last success (circuit breaker, Nygard, "Release It!", 2007)."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause_s = 0.0
        self._tripped_s = -math.inf
        self.reason = ""  # the reason for the last pause; empty once the executor has worked again
        self.probe = 0  # number of the trial request after a pause
        self.corrupts = False  # whether the last record that was read back was corrupt

    def failed(self, reason: str, made_s: float, now: float) -> None:
        """Record a failure that may be the fault of the executor or of a sample."""
        self._failures += 1
        if self._failures >= _FAILURES:
            self.refused(reason, made_s, now)

    def worked(self) -> None:
        """Record a success: the executor produced a sample, or a reason why one cannot be produced."""
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
        """Return whether the executor was set aside and has not worked since."""
        return self._pause_s > 0

    def open_until_s(self, open_max_s: float = OPEN_MAX_S) -> float:
        """Return the end of the pause, which is at most ``open_max_s`` after the executor was set aside."""
        return self._tripped_s + min(self._pause_s, open_max_s)

    def refused(self, reason: str, made_s: float, now: float) -> None:
        """Record that the executor, throttled or gone, did not accept a request made at ``made_s``."""
        self.reason = reason
        if self.tripped and made_s <= self._tripped_s:  # several requests may fail together
            return
        # The pause doubles each time. After it, a single trial request is allowed.
        self._pause_s = min(OPEN_MAX_S, 2 * self._pause_s or _FIRST_PAUSE_S)
        self._tripped_s = now
