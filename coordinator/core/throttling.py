"""Limits on the load of one executor: a bound on requests in flight, and a circuit breaker.

An executor that adds environments at a bounded rate (AWS Lambda: a burst, then a number per second) is
modelled as a token bucket: environments that were in use are warm and free, each further one takes a token.
Throttling halves the limit, at most once in a while, and every answer raises it a little (Chiu and Jain
1989). An executor that queues early requests (Lambda's asynchronous invocations) never refuses: there, a
function that begins late counts as throttling.

An executor that refuses, or fails several times in a row, gets nothing for a while that doubles each time.
Then one request tries it, and a success lets it have all again (the circuit breaker of Nygard, "Release It!",
2007).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.coordinator.core.events import ExecutorResized
    from superdl.coordinator.core.settings import CoreSettings

_HALVING_PAUSE_S = 1.0  # refusals that come together halve the limit once
_RAISE_SHARE = 0.02
_WARM_S = 300.0  # after this, unused environments are gone
_LATELY_S = 60.0
_LATE_S = 2.0
"""Lambda begins an event within milliseconds, or retries after 1, 2, 4 ... seconds."""

_FAILURES = 3  # in a row, before an executor is set aside
_FIRST_S = 0.5  # the first pause; each further one is twice as long
OPEN_MAX_S = 30.0
"""Maximum pause in seconds."""


class Concurrency:
    """The bound on requests in flight; ``backlog`` of them may wait for a free function."""

    def __init__(self) -> None:
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
        self._queues = False
        self._crowded_s = -math.inf
        self._throttled: deque[list[float]] = deque()

    def resize(self, to: ExecutorResized, now: float) -> None:
        """Adopt the executor's new capacity."""
        self.capacity, self._queues, self._per_s = to.capacity, to.queues, to.per_s
        self._backlog = to.capacity if to.backlog is None else to.backlog
        self._burst = float(to.capacity if to.burst is None else min(to.burst, to.capacity))
        self._tokens, self._filled_s = self._burst, now

    def limit(self, now: float) -> int:
        """Return how many requests the executor takes at once now; at least one, if any."""
        if not self.capacity:
            return 0
        bound = min(float(self.capacity), self._limit)
        if self._per_s < math.inf:
            self._fill(now)
            bound = min(bound, self._warm + self._tokens)
        return max(1, int(bound))

    def places(self, in_flight: int, now: float) -> int:
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
        if now - self._peak_since_s > _WARM_S:  # environments unused for this long are gone
            self._warm, self._peak, self._peak_since_s = self._peak, in_flight, now

    def throttled(self, in_flight: int, now: float) -> None:
        """Record that the executor refused an early request."""
        if self._throttled and now - self._throttled[-1][0] < 1.0:
            self._throttled[-1][1] += 1
        else:
            self._throttled.append([now, 1])
            self.throttled_lately(now)
        if now - self._halved_s >= _HALVING_PAUSE_S:
            self._limit = max(1.0, min(self._limit, float(self.capacity), float(in_flight + 1)) / 2)
            self._halved_s = now

    def throttled_lately(self, now: float) -> int:
        """Return how often it was throttled in the last minute."""
        while self._throttled and self._throttled[0][0] <= now - _LATELY_S:
            self._throttled.popleft()
        return int(sum(times for _, times in self._throttled))

    def begun(self, late_s: float, in_flight: int, now: float) -> None:
        """Record the delay of a warm function's start after its request."""
        if self._queues and late_s > _LATE_S:
            self._crowded_s = now
            self.throttled(in_flight, now)

    def lost(self, in_flight: int, now: float) -> None:
        """Record an unanswered request: too many before it may have had it dropped."""
        if self._queues:
            self.throttled(in_flight, now)

    def was_crowded(self, since_s: float) -> bool:
        """Return whether functions began late after ``since_s``: requests may have been dropped."""
        return self._crowded_s >= since_s

    def succeeded(self) -> None:
        """Record an answer."""
        if self._limit < self.capacity:
            self._limit += max(_RAISE_SHARE, 1.0 / self._limit)

    def more_at_s(self, now: float) -> float | None:
        """Return when the ramp will allow another request; ``None`` if it holds nothing back."""
        if self._per_s == math.inf or self._warm >= min(self.capacity, self._limit):
            return None
        self._fill(now)
        # Later than now, even if the difference is below the clock's resolution.
        return max(now + (1.0 - self._tokens % 1.0) / self._per_s, math.nextafter(now, math.inf))

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._filled_s) * self._per_s)
        self._filled_s = now


@dataclass(slots=True)
class Outage:
    """Consecutive failures that no sample is to blame for; one counts in each wait."""

    failures: int = 0
    until_s: float = 0.0
    """No attempts before this time."""
    probing: bool = False
    """True while an attempt tests whether the outage is over."""

    def failed(self, settings: CoreSettings, now: float) -> bool:
        """Count a failure and extend the wait; return whether it is a new one."""
        if now < self.until_s and not self.probing:
            return False
        self.failures, self.probing = self.failures + 1, False
        self.until_s = now + settings.backoff_after_s(self.failures)
        return True

    def may_try(self, settings: CoreSettings, now: float) -> bool:
        """Return whether one more attempt may be made now; during an outage, one in each wait."""
        if now < self.until_s:
            return False
        self.until_s, self.probing = now + settings.backoff_after_s(self.failures), True
        return True


class CircuitBreaker:
    """An executor's failures since its last success."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause_s = 0.0
        self._tripped_s = -math.inf
        self.reason = ""
        """The reason of the last pause; empty once it has worked again."""
        self.probe = 0
        """The number of the single request that tries it after a pause."""
        self.corrupts = False
        """True if the last of its records that was read back was corrupt."""

    def failed(self, reason: str, made_s: float, now: float) -> None:
        """Record a failure that may be the executor's fault or a sample's."""
        self._failures += 1
        if self._failures >= _FAILURES:
            self.refused(reason, made_s, now)

    def worked(self) -> None:
        """Record a success: it produced a sample, or a reason why one cannot be produced."""
        if self.corrupts:  # its other successes prove nothing
            return
        self._failures = 0
        self._pause_s = 0.0
        self.reason = ""

    def does_not_read_back(self, reason: str, now: float) -> None:
        """Record that one of its records was corrupt when read back."""
        self.corrupts = True
        self.refused(reason, now, now)

    def reads_back(self) -> None:
        """Record that one of its records was intact when read back."""
        if self.corrupts:
            self.corrupts = False
            self.worked()

    @property
    def tripped(self) -> bool:
        """True if it was set aside and has not worked since."""
        return self._pause_s > 0

    def open_until_s(self, open_max_s: float = OPEN_MAX_S) -> float:
        """Return the end of its pause; at most ``open_max_s`` after it was set aside."""
        return self._tripped_s + min(self._pause_s, open_max_s)

    def refused(self, reason: str, made_s: float, now: float) -> None:
        """Record that it took no request, made at ``made_s``: it is throttled, or gone."""
        self.reason = reason
        if self.tripped and made_s <= self._tripped_s:  # requests fail together
            return
        self._pause_s = min(OPEN_MAX_S, 2 * self._pause_s or _FIRST_S)
        self._tripped_s = now
