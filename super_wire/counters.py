"""The table of a job's counters: the core counts in it, ``JobStats`` transfers it, reports read it.

A new counter needs a field here, and a field of the same name in ``JobStats`` to reach a report.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkCounters:
    """A job's work and cost since it was opened, over all its ranks.

    ``cache_hits`` are samples that a reader's first GET found, ``samples_reused`` those that were resident
    when planned. ``samples_produced`` were decoded, ``samples_restored`` came from the store into the cache,
    ``samples_straight`` from the store to readers. Seconds are sums over functions (``fetch_s``,
    ``decode_s``, ``push_s``) or readers (``read_s``, ``wait_s``). ``stalls`` are batches that a reader had to
    wait for, ``hedges`` second requests that raced a straggler, ``source_requests`` GETs, ``read_bytes``
    bytes read from the cache. ``store_requests`` are GETs and PUTs of a store in a bucket, ``store_bytes``
    the bytes that functions read from a store or wrote to it. ``usd`` is the job's share of the spending, the
    sum of the six fields before it; the share falls if other jobs use the same samples. The ledger of
    `coordinator.core` defines each of them.
    """

    batches_read: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    samples_reused: int = 0
    samples_produced: int = 0
    samples_restored: int = 0
    samples_straight: int = 0
    samples_failed: int = 0
    retries: int = 0
    invocations: int = 0
    fetch_s: float = 0.0
    decode_s: float = 0.0
    push_s: float = 0.0
    read_s: float = 0.0
    wait_s: float = 0.0
    source_bytes: int = 0
    record_bytes: int = 0
    stalls: int = 0
    hedges: int = 0
    gb_s: float = 0.0
    source_requests: int = 0
    read_bytes: int = 0
    store_requests: int = 0
    store_bytes: int = 0
    functions_usd: float = 0.0
    source_requests_usd: float = 0.0
    store_requests_usd: float = 0.0
    transfer_usd: float = 0.0
    cache_usd: float = 0.0
    coordinator_usd: float = 0.0
    usd: float = 0.0
