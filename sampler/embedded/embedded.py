"""A training process's hold on the embedded default: finds or starts its run's supervisor, again if it dies.

The hold is a connection to the supervisor's socket. As long as some rank has one, coordinator and cache live;
the system closes it when the rank ends, whatever ends it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from superdl.sampler.embedded.run_directory import RunDirectory
from superdl.sampler.embedded.supervisor_settings import SupervisorSettings
from superdl.sampler.rpc.forking import HeldSockets
from superdl.super_wire.errors import EmbeddedError, SuperError
from superdl.super_wire.protocol import PROTOCOL_VERSION

if TYPE_CHECKING:
    import socket

__all__ = ["Embedded", "embedded_for", "release_all", "tell_user"]

_LOG = logging.getLogger(__name__)

START_WAIT_S = 90.0
"""For everything: an earlier supervisor's end, imports, starting; usually two seconds."""

_MAX_REVIVALS = 3
_REVIVAL_SPAN_S = 60.0
_REVIVAL_PAUSE_S = 0.5
_MAX_CALLS = 5
_LINE_BYTES = 65536
_END_WAIT_S = 30.0
_BACKLOG = 256


class _LostSupervisorError(EmbeddedError):
    """It could not be started now, or it went without a word: one more may do better."""


class Embedded:
    """One process's hold on the supervisor of one run; made by :func:`embedded_for`, once for each run.

    ``coordinator`` is the coordinator's address, which a supervisor that is started again keeps. ``was_told``
    says that its user was told where it keeps records.

    Raises:
        EmbeddedError: it did not start; the message has the last lines of its log.
    """

    def __init__(self, run: str, settings: SupervisorSettings | None = None) -> None:
        self._settings = settings or SupervisorSettings.of_this_host()
        self._directory = RunDirectory.of_run(run, self._settings.choice.variant)
        self.coordinator = f"unix:{self._directory.coordinator_socket}"
        self.was_told = False
        self._failure: EmbeddedError | None = None
        self._released = threading.Event()
        self._revivals_s: deque[float] = deque(maxlen=_MAX_REVIVALS)
        self._sockets = HeldSockets()
        self._processes: list[subprocess.Popen[bytes]] = []
        hold = self._connect()
        threading.Thread(target=self._watch, args=(hold,), name="superdl-embedded", daemon=True).start()

    def failure(self) -> SuperError | None:
        """Why the supervisor is gone for good, if it is."""
        return self._failure

    def release(self) -> None:
        """Let go; the supervisor ends if no other rank holds it. Waits, bounded, for those started here."""
        self._released.set()
        self._sockets.close_all()
        self._await_ends()

    def _await_ends(self) -> None:
        """No zombie stays of the supervisors that this process started."""
        for process in self._processes:
            try:
                process.wait(_END_WAIT_S)
            except subprocess.TimeoutExpired:
                _LOG.warning("supervisor process %d has not ended; see %s", process.pid, self._directory.log)

    def _end_and_clear(self) -> None:
        """Remove what a supervisor that ended too early has left, unless there is another by now."""
        self._await_ends()
        with self._directory.locked_for_start(START_WAIT_S):
            other = self._call()
            if other is None:
                self._directory.remove()
            else:
                self._sockets.close(other)

    def _connect(self) -> socket.socket:
        """A connection to a supervisor that is ready, started if there was none.

        One that was found and goes without a word was dying: of a killed process the system may close the
        ranks' connections before the socket on which it listens.
        """
        for _ in range(_MAX_CALLS):
            hold, found = self._find_or_start()
            try:
                self._await_ready(hold)
            except BaseException as error:
                self._sockets.close(hold)
                if found and isinstance(error, _LostSupervisorError):
                    continue
                self._end_and_clear()
                raise
            if self._released.is_set():
                self._sockets.close(hold)
            return hold
        raise _LostSupervisorError(f"{_MAX_CALLS} supervisors in a row went when they were called")

    def _find_or_start(self) -> tuple[socket.socket, bool]:
        """A connection to the supervisor, which may not be ready, and whether it was there already."""
        with self._directory.locked_for_start(START_WAIT_S):
            self._directory.create()
            hold = self._call()
            if hold is not None:
                return hold, True
            self._start()
            hold = self._call()
        if hold is None:
            error = _LostSupervisorError(f"the supervisor ended at once{self._directory.log_tail()}")
            self._end_and_clear()
            raise error
        return hold, False

    def _call(self) -> socket.socket | None:
        """A connection to whoever listens at the supervisor's socket, or ``None``."""
        hold = self._sockets.open()
        try:
            hold.connect(str(self._directory.supervisor_socket))
        except (FileNotFoundError, ConnectionRefusedError):
            self._sockets.close(hold)
            return None
        return hold

    def _start(self) -> None:
        """Start the supervisor on a socket that listens already: every rank can simply connect and wait."""
        path = self._directory.supervisor_socket
        path.unlink(missing_ok=True)  # of one that was killed; the start lock is held
        command = [sys.executable, "-P", "-m", "superdl.sampler.embedded.supervisor"]
        listener = self._sockets.open()
        try:
            listener.bind(str(path))
            listener.listen(_BACKLOG)
            arguments = [str(self._directory.path), str(listener.fileno()), self._settings.to_json()]
            with self._directory.log.open("ab") as log:
                process = subprocess.Popen(
                    [*command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(listener.fileno(),),
                    # Ctrl-C in the terminal is the trainer's alone. No session of its own: where the kernel
                    # groups sessions, functions would take as much as the trainer, however nice they are.
                    process_group=0,
                )
        except OSError as error:
            raise _LostSupervisorError(
                f"the supervisor could not be started by {command}: {error}"
            ) from error
        finally:
            self._sockets.close(listener, handed_over=True)
        self._processes = [old for old in self._processes if old.poll() is None] + [process]

    def _await_ready(self, hold: socket.socket) -> None:
        hold.settimeout(START_WAIT_S)
        try:
            answer = _read_line(hold)
        except TimeoutError:
            message = f"the supervisor was not ready after {START_WAIT_S:g} s{self._directory.log_tail()}"
            raise EmbeddedError(message) from None
        hold.settimeout(None)
        if answer is None:
            raise _LostSupervisorError(f"the supervisor ended while it started{self._directory.log_tail()}")
        if "error" in answer:
            raise EmbeddedError(str(answer["error"]))
        if answer.get("protocol_version") != PROTOCOL_VERSION:
            raise EmbeddedError(
                "this run's supervisor on this host speaks protocol version "
                f"{answer.get('protocol_version')}, this process {PROTOCOL_VERSION}: the ranks of a run use "
                "one version of SUPER"
            )

    def _watch(self, hold: socket.socket) -> None:
        """Wait for the supervisor's last words or its death, and then start another at the same paths."""
        while True:
            try:
                said = _read_line(hold)
            except OSError:
                said = None
            if self._released.is_set():
                return
            self._sockets.close(hold)
            try:
                hold = self._revived(said)
            except EmbeddedError as error:
                if self._released.is_set():
                    return
                self._failure = error
                _LOG.error("%s", error)  # the message is for users, the place tells nothing
                return

    def _revived(self, last_words: dict[str, object] | None) -> socket.socket:
        if last_words is not None:
            raise EmbeddedError(str(last_words.get("error", last_words)))
        reason = f"it was killed{self._directory.log_tail()}"
        while True:
            now_s = time.monotonic()
            if len(self._revivals_s) == _MAX_REVIVALS and now_s - self._revivals_s[0] < _REVIVAL_SPAN_S:
                raise EmbeddedError(
                    f"the supervisor has died {_MAX_REVIVALS + 1} times within {_REVIVAL_SPAN_S:g} s, the "
                    f"last time because {reason}"
                )
            self._revivals_s.append(now_s)
            _LOG.warning("the supervisor of the embedded coordinator has died; another one is started")
            try:
                return self._connect()
            except _LostSupervisorError as error:
                _LOG.warning("that one was lost too: %s", error)
                reason = str(error)
            if self._released.wait(_REVIVAL_PAUSE_S):
                raise EmbeddedError("let go while another supervisor was to be started")


def _read_line(connection: socket.socket) -> dict[str, object] | None:
    """The next JSON line, or ``None`` at the end of the connection."""
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            received = connection.recv(_LINE_BYTES)
        except ConnectionResetError:  # it ended before it accepted the connection
            return None
        if not received or len(line) > _LINE_BYTES:
            return None
        line += received
    words: dict[str, object] = json.loads(line)
    return words


_holds: dict[tuple[int, str, str], Embedded] = {}
"""Of this process, by process id, run and executor: a forked child has none."""
_lock = threading.Lock()


def embedded_for(run: str) -> Embedded:
    """This process's hold on the embedded default of ``run``, taken at the first call.

    It outlives the samplers, so that what the cache holds serves the next one.
    """
    settings = SupervisorSettings.of_this_host()
    key = (os.getpid(), run, settings.choice.variant)
    with _lock:
        if key not in _holds or _holds[key].failure() is not None:
            _holds[key] = Embedded(run, settings)
        return _holds[key]


def tell_user(coordinator: str, kept: str) -> None:
    """Say on standard error, once, where an embedded coordinator keeps records: it fills a user's disk."""
    with _lock:
        holds = [hold for hold in _holds.values() if hold.coordinator == coordinator and not hold.was_told]
        for hold in holds if kept else ():
            hold.was_told = True
            sys.stderr.write(f"superdl: {kept}\n")


def release_all() -> None:
    """End this process's holds now rather than with the process."""
    with _lock:
        for key in [key for key in _holds if key[0] == os.getpid()]:
            _holds.pop(key).release()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # another thread of the parent may have held it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
