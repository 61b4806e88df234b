"""How many samples one request carries: enough to pay for the invocation, few enough to be in time.

At a start, before anything is known, and for what is late, the batch is spread over all idle functions, so
that it comes fast, though not into requests that are hardly more than their overhead. Else requests grow
until the part of an invocation that does not depend on them is a small share of it, as far as the deadline
allows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.coordinator.core.latency import LatencyModel

__all__ = ["request_size"]

_OVERHEAD_SHARE = 0.05
_SLACK_SHARE = 0.5
_SAMPLE_LEAST_S = 1e-6
_LEAST = 4
_LEAST_KNOWN = 16


def request_size(latency: LatencyModel, *, wanted: int, idle: int, slack_s: float, most: int) -> int:
    """Samples for the next request.

    Args:
        latency: what is known of requests so far.
        wanted: samples of a batch.
        idle: functions that have nothing to do.
        slack_s: time until the first of the samples is wanted; not above 0 for what is late,
            infinite for what cannot be in time whatever is done.
        most: samples that a request may carry.
    """
    invocation_s, sample_s = latency.invocation_s, max(latency.sample_s, _SAMPLE_LEAST_S)
    least = _LEAST
    if latency.answers:  # no invocation costs more than what it is for
        least = max(_LEAST_KNOWN, math.ceil(invocation_s / sample_s))
    spread = min(most, max(math.ceil(wanted / max(idle, 1)), least))
    if not latency.answers or slack_s <= 0:
        return spread
    paying = math.ceil(invocation_s * (1 - _OVERHEAD_SHARE) / (_OVERHEAD_SHARE * sample_s))
    in_time = int(min(float(most), (slack_s * _SLACK_SHARE - invocation_s) / sample_s))
    return max(1, min(most, max(min(paying, in_time), min(paying, spread))))
