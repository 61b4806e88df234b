"""How long requests take: learnt from their answers, asked by look-ahead, sizing and hedging.

The time that a function takes is fitted by a line over the number of samples (least squares, old answers
fading); what comes on top of it (queues, network, cold starts) is averaged. How far single answers lie off
the line is kept as a ratio, so that quantiles of requests of all sizes can be told from one sample of them.
"""

from __future__ import annotations

from collections import deque

__all__ = ["LatencyModel"]

_FADING = 0.98
_AROUNDS = 64
_RATIOS = 256
_RATIOS_LEAST = 16
_SMOOTHING = 0.05
_SPREAD_LEAST = 1e-3
_TINY_S = 1e-6


class LatencyModel:
    """What is known of the time from a request to its answer, in seconds; zeros before the first answer.

    Attributes:
        answers: observed so far.
        sample_s: time that one more sample takes a function.
        invocation_s: time that an invocation takes whatever it carries: queues, which come and go, left out.
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
        """A request of so many samples was answered; ``duration_s`` of it the function itself took."""
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
            self.sample_s = min(max(slope_s, mean_s / 4), mean_s)  # a line through noise may be too flat
        self._fixed_s = (self._t - self.sample_s * self._n) / self._weight
        self.invocation_s = self._fixed_s + min(self._arounds)

    @property
    def known(self) -> bool:
        """Whether enough was observed for :meth:`quantile_s`."""
        return len(self._ratios) >= _RATIOS_LEAST

    def expected_s(self, samples: int) -> float:
        """Time from a request of so many samples to its answer, on average."""
        return self._around_s + self._fixed_s + self.sample_s * samples

    def quantile_s(self, samples: int, quantile: float) -> float | None:
        """The time in which such a share of requests is answered; ``None`` before enough are known."""
        if not self.known:
            return None
        if self._since_sorted >= _RATIOS_LEAST or not self._sorted:
            self._sorted, self._since_sorted = sorted(self._ratios), 0
        place = min(int(quantile * len(self._sorted)), len(self._sorted) - 1)
        return self._sorted[place] * self.expected_s(samples)
