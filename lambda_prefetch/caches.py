"""The function's caches: opened with its credentials, and kept for the next invocation to find.

A few addresses are kept for each process, and one user at a time has a cache's connections. Records go
through them in :mod:`superdl.lambda_prefetch.push`, outcomes in :mod:`superdl.lambda_prefetch.answering`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.cache_secret import cache_secret
from superdl.super_wire.cache import CacheAddress, NodeConnections, WrongPasswordError

if TYPE_CHECKING:
    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.super_wire.cache import Credentials

__all__ = ["close_idle_connections", "keep_cache", "take_cache", "warm_connection"]

_MAX_IDLE = 4
_REMEDY = (
    "a function may also have them from the secret that SUPER_CACHE_SECRET names; functions of the local "
    "executor have the coordinator's settings"
)

# By process and address, the longest unused first.
_idle: dict[tuple[int, str], NodeConnections] = {}


def warm_connection(cache: str, settings: FunctionSettings) -> None:
    """Open a connection for the first invocation to find.

    Raises:
        CacheError: the cache is unreachable or refuses the credentials.
    """
    nodes = take_cache(cache, settings)
    if not nodes.connected:
        nodes.connect()
    keep_cache(cache, nodes)


def take_cache(cache: str, settings: FunctionSettings) -> NodeConnections:
    """What this process has kept of a cache, or a new one; the taker has it alone.

    Raises:
        ConfigError: the address is none, or the certificates cannot be used.
        CacheError: the secret that holds the password cannot be read.
    """
    kept = _idle.pop((os.getpid(), cache), None)
    if kept is None:
        return _make_cache(cache, settings)
    kept.renew()
    return kept


def keep_cache(cache: str, nodes: NodeConnections) -> None:
    """Put connections where the next invocation finds them: one cache per address, and few addresses."""
    replaced = _idle.pop((os.getpid(), cache), None)
    _idle[os.getpid(), cache] = nodes
    if replaced is None and len(_idle) > _MAX_IDLE:
        replaced = _idle.pop(next(iter(_idle)))
    if replaced is not None:
        replaced.close()


def close_idle_connections() -> None:
    """Close what is kept for the next invocation; it opens its own then."""
    while _idle:
        _, nodes = _idle.popitem()
        nodes.close()


def _make_cache(cache: str, settings: FunctionSettings) -> NodeConnections:
    address = CacheAddress.parse(cache)
    secret = cache_secret(settings.cache_secret) if settings.cache_secret else None

    def renewed(refused: Credentials, error: WrongPasswordError) -> Credentials:
        """Other credentials where the password comes from a secret, which may have changed since."""
        found = secret.renewed(refused) if secret is not None else None
        if found is None:
            raise WrongPasswordError(f"{error}; {_REMEDY}") from error
        return found

    credentials = settings.cache_credentials
    return NodeConnections(address, secret.credentials(credentials) if secret else credentials, renewed)
