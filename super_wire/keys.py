"""Names in the cache: the keys of records, and the streams for reports."""

from __future__ import annotations

import functools

from superdl.super_wire.ids import ID_BYTES

# Prefix of records; the 32 hex digits of the sample id follow. All names are ASCII below super:,
# so an ACL can use a prefix, and no id looks like the hash tag of a cluster.
RECORD_PREFIX = b"super:r1:"
# Read reports of a job, whose id follows. The hash tag keeps the streams of all jobs at
# one node, where the coordinator waits for all of them with one command.
REPORT_PREFIX = b"super:n1:{reports}:"
# The lock that a coordinator holds on its cache.
LOCK_KEY = b"super:lock"
# Fingerprint of the decoder that filled this cache.
FINGERPRINT_KEY = b"super:golden"
# US dollars spent so far by the coordinators of this cache, in total and by team, as JSON.
SPENT_KEY = b"super:spent"
# The history of closed and abandoned jobs that used this cache: a ``JobStatsList``.
HISTORY_KEY = b"super:history"


def cache_key(sample_id: bytes) -> bytes:
    """Return the cache key of one sample: ``super:r1:`` and its id in hex."""
    return RECORD_PREFIX + sample_id.hex().encode()


def cache_keys(ids: bytes) -> list[bytes]:
    """Return the cache keys of concatenated 16-byte sample ids, in order."""
    digits = ids.hex().encode()
    width = 2 * ID_BYTES
    return [RECORD_PREFIX + digits[at : at + width] for at in range(0, len(digits), width)]


@functools.lru_cache(maxsize=64)  # called for each batch
def report_stream(job: str) -> bytes:
    """Return the name of the stream for a job's read reports."""
    return REPORT_PREFIX + job.encode()
