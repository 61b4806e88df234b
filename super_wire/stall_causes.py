"""The causes of waiting and a job's counters, as used in all reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

UNKNOWN = "unknown"

# What the setup of a run may contain besides the names of executors.
BUCKET, SHARED, RESTARTING = "bucket", "shared coordinator", "loader workers that restart in each epoch"

_ANY = frozenset[str]()
_FUNCTIONS = frozenset({"local", "workers", "lambda"})
_REMOTE = frozenset({"workers", "lambda", SHARED})


class Wait(NamedTuple):
    """A cause of waiting.

    A remedy applies to setups that contain one of its parts, or to all setups if it has none.
    """

    meaning: str  # as a clause
    remedies: Mapping[str, frozenset[str]]
    of: tuple[str, ...]  # the internal causes that it covers

    def remedy(self, setup: Collection[str] | None) -> str:
        """Return the remedies for a setup, or all remedies if the setup is unknown."""
        texts = [
            text
            for text, parts in self.remedies.items()
            if setup is None or not parts or not parts.isdisjoint(setup)
        ]
        return " or ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


# In the order of reports and docs/runs.md: five causes that users can do something about, and unknown.
WAITS = {
    "starting": Wait(
        "workers, functions or the look-ahead were starting",
        {
            "persistent workers": frozenset({RESTARTING}),
            "superdl warm": frozenset({SHARED}),
            "provisioned concurrency": frozenset({"lambda"}),
            "a longer run": _ANY,
        },
        ("cold_start", "late_planning", "loader_start"),
    ),
    "storage": Wait(
        "images or stored records arrived slowly, or had to be fetched again",
        {
            "a bucket in the same region": frozenset({BUCKET}),
            "a store that readers see": _REMOTE,
            "a faster disk": _ANY,
            "more loader workers": _ANY,
        },
        ("source", "store", "retry", "store_read"),
    ),
    "decoding": Wait(
        "decoding took longer than training",
        {
            "more cores": frozenset({"local"}),
            "more workers": frozenset({"workers"}),
            "a higher lambda_concurrency": frozenset({"lambda"}),
            "a second executor": _ANY,
        },
        ("decode",),
    ),
    "limits": Wait(
        "a concurrency quota or a spending cap held functions back",
        {"a higher concurrency quota": frozenset({"lambda"}), "a higher spending cap": _ANY},
        ("throttle", "spending"),
    ),
    "cache": Wait(
        "the cache was full, or reading from it took longer than a step",
        {
            "more memory for the cache": _ANY,
            "more loader workers": _ANY,
            "a cache that is closer": _REMOTE,
        },
        ("cache_memory", "cache_transfer"),
    ),
    UNKNOWN: Wait(
        "no cause was reported",
        {"more loader workers": _ANY, "superdl stats --batch during the run": _FUNCTIONS},
        ("loading",),
    ),
}

_WAIT_FOR = {cause: name for name, wait in WAITS.items() for cause in (name, *wait.of)}


def wait_for(cause: str) -> str:
    """Return the name of the cause that covers an internal cause, or ``unknown``."""
    return _WAIT_FOR.get(cause, UNKNOWN)


@dataclass(slots=True)
class WorkCounters:
    """The coordinator's counters for all ranks of a job since the job was opened."""

    # A new counter needs a field of the same name in JobStats.
    batches_read: int = 0
    cache_hits: int = 0  # in response to a reader's first GET
    cache_misses: int = 0
    samples_reused: int = 0  # already in the cache when planned
    samples_produced: int = 0  # decoded
    samples_restored: int = 0  # restored from the store to the cache
    samples_straight: int = 0  # read from the store directly
    samples_failed: int = 0
    retries: int = 0
    invocations: int = 0
    fetch_s: float = 0.0  # of all functions together, like the next two
    decode_s: float = 0.0
    push_s: float = 0.0
    read_s: float = 0.0  # of all readers together, like the next one
    wait_s: float = 0.0
    source_bytes: int = 0
    record_bytes: int = 0
    stalls: int = 0  # batches that a reader had to wait for
    hedges: int = 0  # duplicate requests that raced a straggler
    gb_s: float = 0.0
    source_requests: int = 0  # GETs
    read_bytes: int = 0  # from the cache
    store_requests: int = 0  # GETs and PUTs of a store in a bucket
    store_bytes: int = 0  # read from or written to a store by functions
    functions_usd: float = 0.0
    source_requests_usd: float = 0.0
    store_requests_usd: float = 0.0
    transfer_usd: float = 0.0
    cache_usd: float = 0.0
    coordinator_usd: float = 0.0
    usd: float = 0.0  # the sum of the previous six; it falls if other jobs use the samples too
