"""Timing: how long requests take, how fast a rank reads, and the request size that follows.

A function's own time is fitted by a line over the number of samples (least squares, with older answers
fading); the time on top of it (queues, network, cold starts) is averaged. The deviation of single answers
from the line is kept as a ratio, so that one sample of ratios gives quantiles for requests of all sizes.
"""

from __future__ import annotations

import math
from collections import deque

_FADING = 0.98  # of older answers, with each new one
_AROUNDS = 64
_RATIOS = 256
_RATIOS_LEAST = 16  # before quantiles are known
_SMOOTHING = 0.05
_SPREAD_LEAST = 1e-3  # if request sizes vary less, they show no slope
_TINY_S = 1e-6
_OVERHEAD_SHARE = 0.05  # of an invocation's time, in a request of sufficient size
_SLACK_SHARE = 0.5
_SAMPLE_LEAST_S = 1e-6
_LEAST = 4  # samples in a request, before anything is known
_LEAST_KNOWN = 16
_FIRST_S = 0.05
_WINDOW_S = 0.5
_WEIGHT = 0.3
_PAUSE = 8.0  # an interval grows at most by this factor, as a pause is not a change of pace


class LatencyModel:
    """The time from a request to its answer, in seconds; zeros before the first answer.

    Attributes:
        answers: observed so far.
        sample_s: a function's time for one more sample.
        invocation_s: fixed time of an invocation, without queues, which come and go.
    """

    def __init__(self) -> None:
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
        """Add an answer to a request of that size; ``duration_s`` of it is the function's own."""
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
            self.sample_s = min(max(slope_s, mean_s / 4), mean_s)  # noise may make it too flat
        self._fixed_s = (self._t - self.sample_s * self._n) / self._weight
        # The least overhead has no queue in it.
        self.invocation_s = self._fixed_s + min(self._arounds)

    @property
    def known(self) -> bool:
        """True if enough was observed for :meth:`quantile_s`."""
        return len(self._ratios) >= _RATIOS_LEAST

    def expected_s(self, samples: int) -> float:
        """Return the average time from a request of that size to its answer."""
        return self._around_s + self._fixed_s + self.sample_s * samples

    def quantile_s(self, samples: int, quantile: float) -> float | None:
        """Return the time in which that share is answered; ``None`` before enough are known."""
        if not self.known:
            return None
        if self._since_sorted >= _RATIOS_LEAST or not self._sorted:
            self._sorted, self._since_sorted = sorted(self._ratios), 0
        place = min(int(quantile * len(self._sorted)), len(self._sorted) - 1)
        return self._sorted[place] * self.expected_s(samples)


def request_size(latency: LatencyModel, *, wanted: int, idle: int, slack_s: float, most: int) -> int:
    """Return the size of the next request: enough samples to pay for the invocation, few enough to be in
    time.

    At the start, before any answer, and if late, the ``wanted`` samples of a batch are spread over all
    ``idle`` functions, though not into requests that are hardly more than their overhead. Otherwise requests
    grow until the fixed part of an invocation is a small share of it, as far as ``slack_s`` allows: the time
    until the first sample is needed, infinite if it cannot be in time.
    """
    invocation_s, sample_s = latency.invocation_s, max(latency.sample_s, _SAMPLE_LEAST_S)
    least = _LEAST
    if latency.answers:  # an invocation must not cost more than its samples
        least = max(_LEAST_KNOWN, math.ceil(invocation_s / sample_s))
    spread = min(most, max(math.ceil(wanted / max(idle, 1)), least))
    if not latency.answers or slack_s <= 0:
        return spread
    paying = math.ceil(invocation_s * (1 - _OVERHEAD_SHARE) / (_OVERHEAD_SHARE * sample_s))
    in_time = int(min(float(most), (slack_s * _SLACK_SHARE - invocation_s) / sample_s))
    return max(1, min(most, max(min(paying, in_time), min(paying, spread))))


class Pace:
    """The time between two batches of a rank if it never waited; a guess until it is ``known``.

    Reports come in clumps, so the pace is measured over windows of time. A window in which readers had to
    wait says little about the job's own pace, unless it was short. A long pause, such as for validation, is
    not a change of pace.
    """

    __slots__ = ("_batches", "_since_s", "_stalls", "interval_s", "known")

    def __init__(self, now: float) -> None:
        self.interval_s = _FIRST_S
        self.known = False
        self.restart(now)

    def restart(self, now: float) -> None:
        """Start over; the time before says nothing about the time until the next batch."""
        self._since_s = now
        self._batches = self._stalls = 0

    def read(self, batches: int, now: float, *, stalled: bool) -> None:
        """Record batches read since the last call, and whether a reader waited for the newest."""
        self._batches += batches
        self._stalls += stalled
        passed_s = now - self._since_s
        if passed_s < _WINDOW_S or not self._batches:
            return
        interval_s = min(passed_s / self._batches, self.interval_s * _PAUSE)
        weight = _WEIGHT if self.known else 1.0  # a guess has no weight
        if interval_s > self.interval_s:
            weight *= max(0.0, 1.0 - self._stalls / self._batches)
        self.interval_s += (interval_s - self.interval_s) * weight
        self.known = self.known or weight > 0
        self.restart(now)
