"""Reasons for readers' waits, as shown to users: five causes that they can act on, and ``unknown``.

The coordinator and the trainer distinguish more. They report one of these everywhere: in statistics, metrics,
files of runs and on pages. `docs/runs.md` has the same table.
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN = "unknown"


class Wait(NamedTuple):
    """A cause of waiting: its meaning as a clause, its remedy, and the internal causes that it covers."""

    meaning: str
    remedy: str
    of: tuple[str, ...]


WAITS = {
    "starting": Wait(
        "workers, functions or the look-ahead were starting",
        "persistent workers, superdl warm, provisioned concurrency, or a longer run",
        ("cold_start", "late_planning", "loader_start"),
    ),
    "storage": Wait(
        "images or stored records arrived slowly, or had to be fetched again",
        "a bucket in the same region, a store that readers see, a faster disk, or more loader workers",
        ("source", "store", "retry", "store_read"),
    ),
    "decoding": Wait(
        "decoding took longer than training",
        "more slots or functions, or a second executor",
        ("decode",),
    ),
    "limits": Wait(
        "a concurrency quota or a spending cap held functions back",
        "a higher quota or a higher cap",
        ("throttle", "spending"),
    ),
    "cache": Wait(
        "the cache was full, or reading from it took longer than a step",
        "more memory for the cache, more loader workers, or a cache that is nearer",
        ("cache_memory", "cache_transfer"),
    ),
    UNKNOWN: Wait("nothing was reported about it", "superdl stats --batch", ("loading",)),
}
"""The causes by name, in the order in which pages and documentation list them."""

_WAIT_FOR = {cause: name for name, wait in WAITS.items() for cause in (name, *wait.of)}


def wait_for(cause: str) -> str:
    """Return the user's name of a cause; ``unknown`` for one from another version."""
    return _WAIT_FOR.get(cause, UNKNOWN)
