"""Names of records and streams in the cache."""

from __future__ import annotations

from superdl.super_wire.ids import ID_BYTES

# Prefix of records, before the sample id in hex. All names are ASCII and begin with super:, so an ACL
# can use prefixes, and none looks like the hash tag of a cluster.
RECORD_PREFIX = b"super:r1:"
# Prefix of streams of read reports, before the job's id. The hash tag keeps all streams on one node,
# where the coordinator waits for them with one command.
REPORT_PREFIX = b"super:n1:{reports}:"
# The lock that a coordinator holds on its cache.
LOCK_KEY = b"super:lock"
# The fingerprint of the decoder that filled the cache.
FINGERPRINT_KEY = b"super:golden"
# US dollars that coordinators of this cache have spent, in total and by team, as JSON.
SPENT_KEY = b"super:spent"
# The history of closed and abandoned jobs that used this cache: a ``JobStatsList``.
HISTORY_KEY = b"super:history"


def cache_key(sample_id: bytes) -> bytes:
    """Return a sample's cache key: ``super:r1:`` followed by its id in hex."""
    return RECORD_PREFIX + sample_id.hex().encode()


def cache_keys(ids: bytes) -> list[bytes]:
    """Return the cache keys of concatenated 16-byte sample ids, in order."""
    digits = ids.hex().encode()
    width = 2 * ID_BYTES
    return [RECORD_PREFIX + digits[at : at + width] for at in range(0, len(digits), width)]


def report_stream(job: str) -> bytes:
    """Return the name of the stream for a job's read reports."""
    return REPORT_PREFIX + job.encode()
