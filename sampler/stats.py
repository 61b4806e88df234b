"""``SamplerStats``: what the coordinator has counted for one job, as plain numbers.

Counters run from the opening of the job and go over all its ranks. Showing them is others' work.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

__all__ = ["SamplerStats"]


@dataclass(frozen=True, slots=True)
class SamplerStats:
    """Counters of one job, and the state of the cache that it reads from.

    ``epoch`` and ``position`` are those of the furthest rank; ``cache_hits`` are samples that a reader's
    first GET found, ``samples_reused`` those that were resident when planned; seconds are summed over
    function processes (``fetch_s``, ``decode_s``, ``push_s``) or readers (``read_s``, ``wait_s``). ``stalls``
    are batches that a reader had to wait for, ``hedges`` second requests that raced a straggler; ``usd`` is
    this job's share of what was spent. The fields from ``budget_bytes`` on describe the whole cache;
    ``needed_bytes`` is the budget with which nothing would be dropped.
    """

    job: str
    source: str
    epoch: int
    position: int
    batches_read: int
    cache_hits: int
    cache_misses: int
    samples_reused: int
    samples_produced: int
    samples_failed: int
    retries: int
    invocations: int
    requests_in_flight: int
    fetch_s: float
    decode_s: float
    push_s: float
    read_s: float
    wait_s: float
    source_bytes: int
    record_bytes: int
    lookahead_batches: int
    interval_s: float
    stalls: int
    hedges: int
    lapsed: bool
    gb_s: float
    source_requests: int
    read_bytes: int
    usd: float
    budget_bytes: int
    resident_bytes: int
    resident_samples: int
    in_flight_samples: int
    dropped_samples: int
    reproduced_samples: int
    thrashing: bool
    needed_bytes: int
    total_requests_in_flight: int
    concurrency: int
    capacity: int
    total_usd: float
    usd_per_hour: float
    spending: str
    free_bytes: int

    @classmethod
    def from_messages(cls, job: Any, cache: Any) -> SamplerStats:
        """From the proto messages ``JobStats`` and ``CacheStats``."""
        of_job = {field.name for field in job.DESCRIPTOR.fields}
        return cls(
            **{
                field.name: getattr(job if field.name in of_job else cache, field.name)
                for field in fields(cls)
            }
        )
