"""Connections to caches that outlive an invocation, for the next one to find: what is warm stays warm.

A few addresses for each process, and whoever takes a cache's connections has them alone. What is done with
them is :mod:`superdl.lambda_prefetch.push`'s and :mod:`superdl.lambda_prefetch.answering`'s.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.cache_nodes import CacheNodes

if TYPE_CHECKING:
    from superdl.lambda_prefetch.settings import Settings

__all__ = ["close_idle_connections", "keep_cache", "open_cache", "take_cache", "warm_connection"]

_MAX_IDLE = 4

# By process and address, the longest unused first.
_idle: dict[tuple[int, str], CacheNodes] = {}


def warm_connection(cache: str, settings: Settings) -> None:
    """Open a connection for the first invocation to find.

    Raises:
        CacheError: the cache is unreachable or refuses the credentials.
    """
    keep_cache(take_cache(cache, settings))


def take_cache(cache: str, settings: Settings) -> CacheNodes:
    """What this process has kept of a cache, or a new connection; whoever takes it has it alone.

    Raises:
        CacheError: it cannot be opened.
    """
    kept = _idle.pop((os.getpid(), cache), None)
    if kept is None:
        return open_cache(cache, settings)
    kept.renew()
    return kept


def open_cache(cache: str, settings: Settings) -> CacheNodes:
    """A new connection.

    Raises:
        CacheError: it cannot be opened.
    """
    return CacheNodes(cache, settings.cache_credentials, settings.cache_secret)


def keep_cache(nodes: CacheNodes) -> None:
    """Put connections where the next invocation finds them: one cache per address, and few addresses."""
    replaced = _idle.pop((os.getpid(), nodes.url), None)
    _idle[os.getpid(), nodes.url] = nodes
    if replaced is None and len(_idle) > _MAX_IDLE:
        replaced = _idle.pop(next(iter(_idle)))
    if replaced is not None:
        replaced.close()


def close_idle_connections() -> None:
    """Close what is kept for the next invocation; it opens its own then."""
    while _idle:
        _, nodes = _idle.popitem()
        nodes.close()
