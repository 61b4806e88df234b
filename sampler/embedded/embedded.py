"""Find, start and restart the embedded coordinator of this process's run, and hold on to it."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from superdl.sampler.embedded.settings import EmbeddedSettings
from superdl.sampler.rpc.forking import HeldSockets
from superdl.super_wire.errors import EmbeddedError, SuperError
from superdl.super_wire.protocol import PROTOCOL_VERSION
from superdl.super_wire.run_directory import RunDirectory
from superdl.super_wire.user_text import seconds_from

if TYPE_CHECKING:
    import socket

_LOG = logging.getLogger(__name__)

# Limit for the whole start, which usually takes two seconds.
_START_TIMEOUT_S = 300.0

_LOG_EVERY_S = 10.0
_MAX_REVIVALS = 3
_REVIVAL_SPAN_S = 60.0
_REVIVAL_PAUSE_S = 0.5
_MAX_CALLS = 5
_LINE_BYTES = 65536
_END_WAIT_S = 30.0
_BACKLOG = 256

# Prefixes of environment variables that the coordinator and its functions read at startup.
_PREFIXES = ("SUPER_", "AWS_", "AZURE_", "GOOGLE_", "HF_")


class _LostError(EmbeddedError):
    """The coordinator did not start, or exited without a message. A retry may succeed."""


class Embedded:
    """This process's hold on its run's coordinator: a connection to the coordinator's socket.

    The coordinator runs while any rank has such a connection. ``coordinator`` is its address, which survives
    restarts. Raises ``EmbeddedError`` with the end of its log if it does not start.
    """

    def __init__(
        self, run: str, settings: EmbeddedSettings | None = None, before: Embedded | None = None
    ) -> None:
        self._settings = settings or EmbeddedSettings.of_this_host()
        self._directory = RunDirectory.of_run(run, self._settings.choice.variant)
        self.path = self._directory.path
        self.coordinator = f"unix:{self._directory.coordinator_socket}"
        self.pid: object = None
        self.informed = False
        self.stays: bool = before is not None and before.stays  # a sampler uses it
        self.queries: int = before.queries if before else 0  # pending queries
        self.shares_cache = bool(self._settings.choice.cache)
        self.variables = _variables()
        self._start_timeout_s = seconds_from(os.environ, "SUPER_START_TIMEOUT_S", _START_TIMEOUT_S)
        self._failure: EmbeddedError | None = None
        self._released = threading.Event()
        self._revivals_s: deque[float] = deque(maxlen=_MAX_REVIVALS)
        self._sockets = HeldSockets()
        self._processes: list[subprocess.Popen[bytes]] = before.processes() if before else []
        hold = self._connect()
        threading.Thread(target=self._watch, args=(hold,), name="superdl-embedded", daemon=True).start()

    def failure(self) -> SuperError | None:
        """Return the coordinator's permanent failure, if any."""
        return self._failure

    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Return the coordinator processes that this process started."""
        return list(self._processes)

    @property
    def is_over(self) -> bool:
        """Return whether the coordinator failed for good or the hold was released."""
        return self._failure is not None or self._released.is_set()

    def drop(self) -> None:
        """Release the hold without waiting. The coordinator exits unless others hold it too."""
        self._released.set()
        self._sockets.close_all()

    def release(self) -> None:
        """Release the hold and wait up to 30 s for each coordinator that this process started."""
        self.drop()
        self._await_exits()

    def _await_exits(self) -> None:
        for process in self._processes:
            try:
                process.wait(_END_WAIT_S)  # it would stay a zombie otherwise
            except subprocess.TimeoutExpired:
                _LOG.warning(
                    "coordinator process %d has not exited; see %s", process.pid, self._directory.log
                )

    def _clean_up(self) -> None:
        """Remove the files of a coordinator that exited early, unless another one is running."""
        self._await_exits()
        with self._directory.locked_for_start(self._start_timeout_s):
            other = self._call()
            if other is None:
                self._directory.remove()
            else:
                self._sockets.close(other)

    def _connect(self) -> socket.socket:
        """Connect to the coordinator, starting it if none is running, and return the connection."""
        for _ in range(_MAX_CALLS):
            hold, was_running = self._find_or_start()
            try:
                self._await_ready(hold)
            except BaseException as error:
                self._sockets.close(hold)
                # A running coordinator that closes without a message was dying: the kernel may close a
                # killed process's connections before its listening socket.
                if was_running and isinstance(error, _LostError):
                    continue
                if not was_running:
                    self._processes[-1].terminate()  # it may hang
                self._clean_up()
                raise
            if self._released.is_set():
                self._sockets.close(hold)
            return hold
        raise _LostError(f"{_MAX_CALLS} embedded coordinators in a row exited when this process connected")

    def _find_or_start(self) -> tuple[socket.socket, bool]:
        with self._directory.locked_for_start(self._start_timeout_s):
            self._directory.create()
            hold = self._call()
            if hold is not None:
                return hold, True
            self._start()
            hold = self._call()
        if hold is None:
            error = _LostError(f"the embedded coordinator exited immediately{self._directory.log_tail()}")
            self._clean_up()
            raise error
        return hold, False

    def _call(self) -> socket.socket | None:
        hold = self._sockets.open()
        try:
            hold.connect(str(self._directory.ranks_socket))
        except (FileNotFoundError, ConnectionRefusedError):
            self._sockets.close(hold)
            return None
        return hold

    def _start(self) -> None:
        path = self._directory.ranks_socket
        path.unlink(missing_ok=True)  # left behind by a killed one; this process holds the start lock
        listener = self._sockets.open()
        try:
            listener.bind(str(path))
            # Ranks can connect and wait before the coordinator serves.
            listener.listen(_BACKLOG)
            command = self._settings.command(self._directory, listener.fileno())
            with self._directory.log.open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._settings.environment(),
                    pass_fds=(listener.fileno(),),
                    # Ctrl-C in the terminal goes only to the trainer. Not a new session, because kernels that
                    # group sessions would then give functions as much CPU as the trainer, despite nice.
                    process_group=0,
                )
        except OSError as error:
            raise _LostError(f"cannot start the embedded coordinator: {error}") from error
        finally:
            self._sockets.close(listener, handed_over=True)
        self._processes = [old for old in self._processes if old.poll() is None] + [process]

    def _await_ready(self, hold: socket.socket) -> None:
        # The first call needs this module. Its import overlaps with the coordinator's start.
        from superdl.super_wire import coordinator_pb2_grpc  # noqa: F401

        poll, begun_s = select.poll(), time.monotonic()
        poll.register(hold, select.POLLIN)
        while not poll.poll(1000 * min(_LOG_EVERY_S, self._start_timeout_s)):
            waited_s = time.monotonic() - begun_s
            problem = f"the embedded coordinator is not ready after {waited_s:.0f} s"
            if waited_s >= self._start_timeout_s:
                raise EmbeddedError(f"{problem} (SUPER_START_TIMEOUT_S){self._directory.log_tail()}")
            load = f"{os.getloadavg()[0]:.0f} processes share {os.cpu_count()} cores"
            _LOG.warning("%s and is still starting (%s); see %s", problem, load, self._directory.log)
        message = _read_line(hold)
        if message is None:
            raise _LostError(f"the embedded coordinator exited during startup{self._directory.log_tail()}")
        if "error" in message:
            raise EmbeddedError(f"{message['error']}{self._directory.log_tail()}")
        self.pid = message.get("coordinator")
        if message.get("protocol_version") != PROTOCOL_VERSION:
            raise EmbeddedError(
                "this run's coordinator on this host speaks protocol version "
                f"{message.get('protocol_version')}, but this process speaks version {PROTOCOL_VERSION}. All "
                "ranks of a run must use the same SUPER version"
            )

    def _watch(self, hold: socket.socket) -> None:
        """Restart the coordinator at the same paths whenever it dies, until it fails for good."""
        while True:
            try:
                line = _read_line(hold)
            except OSError:
                line = None
            if self._released.is_set():
                return
            self._sockets.close(hold)
            try:
                hold = self._revive(line)
            except EmbeddedError as error:
                if self._released.is_set():
                    return
                self._failure = error
                _LOG.error("%s", error)  # a traceback would not help users
                return

    def _revive(self, message: dict[str, object] | None) -> socket.socket:
        if message is not None:
            raise EmbeddedError(str(message.get("error", message)))
        reason = f"it was killed{self._directory.log_tail()}"
        while True:
            now_s = time.monotonic()
            if len(self._revivals_s) == _MAX_REVIVALS and now_s - self._revivals_s[0] < _REVIVAL_SPAN_S:
                raise EmbeddedError(
                    f"the embedded coordinator died {_MAX_REVIVALS + 1} times within {_REVIVAL_SPAN_S:g} s. "
                    f"Latest failure: {reason}"
                )
            self._revivals_s.append(now_s)
            _LOG.warning("the embedded coordinator died; restarting it")
            try:
                return self._connect()
            except _LostError as error:
                _LOG.warning("the embedded coordinator died again: %s", error)
                reason = str(error)
            if self._released.wait(_REVIVAL_PAUSE_S):
                raise EmbeddedError("the hold was released before the coordinator was restarted")


def _read_line(connection: socket.socket) -> dict[str, object] | None:
    """Return the next line of JSON, or ``None`` if the connection is closed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            received = connection.recv(_LINE_BYTES)
        except ConnectionResetError:  # the coordinator exited before it accepted the connection
            return None
        if not received or len(line) > _LINE_BYTES:
            return None
        line += received
    message: dict[str, object] = json.loads(line)
    return message


# This process's holds by process id, run and executor. A forked child has none.
_holds: dict[tuple[int, str, str], Embedded] = {}
_lock = threading.Lock()


def embedded_for(run: str, *, for_query: bool = False) -> Embedded:
    """Return this process's hold on the run's coordinator. Renew it if environment variables changed."""
    settings = EmbeddedSettings.of_this_host()
    key = (os.getpid(), run, settings.choice.variant)
    with _lock:
        hold = before = _holds.get(key)
        changed = sorted(before.variables ^ _variables()) if before and not before.is_over else []
        if before is not None and changed:
            before.release()
        if hold is None or hold.is_over:
            # A hold that only served queries of another run may keep the cache locked.
            for other, idle in list(_holds.items()):
                if other[0] == key[0] and other != key and not (idle.stays or idle.queries):
                    _holds.pop(other).release()
            RunDirectory.sweep({other.path for other in _holds.values()})
            hold = _holds[key] = Embedded(run, settings, before)
            if before is not None and changed and hold.pid == before.pid:
                _LOG.warning(
                    "%s changed since the embedded coordinator was started. It keeps its settings, because "
                    "other ranks of this run still use it. Restart the run to apply the change",
                    ", ".join(dict.fromkeys(name for name, _ in changed)),
                )
        if for_query:
            hold.queries += 1
        else:
            hold.stays = True
        return hold


def query_done(coordinator: str) -> None:
    """End a query. If nothing else uses the hold, drop it so that other runs can use a shared cache."""
    with _lock:
        for (pid, *_), hold in _holds.items():
            if hold.coordinator == coordinator and pid == os.getpid():
                hold.queries -= 1
                if hold.shares_cache and not (hold.stays or hold.queries):
                    hold.drop()  # without waiting, since other ranks may hold it


def _variables() -> set[tuple[str, str]]:
    return {item for item in os.environ.items() if item[0].startswith(_PREFIXES)}


def inform_user(coordinator: str, kept: str) -> None:
    """Print once where the embedded coordinator keeps records, since they use the user's disk space."""
    with _lock:
        holds = [hold for hold in _holds.values() if hold.coordinator == coordinator and not hold.informed]
        for hold in holds if kept else ():
            hold.informed = True
            sys.stderr.write(f"superdl: {kept}; run superdl top to watch it (with --web 0, in a browser)\n")


def release_all() -> None:
    """Release this process's holds now rather than at exit."""
    with _lock:
        for key in [key for key in _holds if key[0] == os.getpid()]:
            _holds.pop(key).release()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # another thread of the parent may have held it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
