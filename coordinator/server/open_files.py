"""How many files this process may have open, and so how many connections it takes.

A connection is an open file, and who is out of them reaches neither cache nor functions: strangers who
connect and say nothing must not take the last.
"""

from __future__ import annotations

import resource

__all__ = ["connections_that_fit", "raise_limit_of_open_files"]

_OWN_MAX = 1024  # the cache's nodes, functions, S3, workers' pipes, listings


def raise_limit_of_open_files() -> None:
    """Take as many as the system allows without asking; the usual 1024 are a matter of old programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS has a lower limit that it does not tell: what there is will do
            return


def connections_that_fit(most: int) -> int:
    """At most ``most``, so that there is enough for other things: half of all, or 1024 where that is less."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, limit - min(limit // 2, _OWN_MAX)))
