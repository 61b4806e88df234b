"""The supervisor: a process beside a run's ranks on one host that keeps a cache and a coordinator alive.

``python -P -m superdl.sampler.embedded.supervisor DIRECTORY LISTENER SETTINGS`` gets a socket that listens
already. Each rank that connects is told when all is ready, or why it never will be; the rank's connection is
its hold. When the last is gone for a grace period, the supervisor ends its children, removes the run's
directory and ends. It has one thread, its waits are one ``select``, and its process group is its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.sampler.embedded.children import CacheServer, Child, CoordinatorProcess
from superdl.sampler.embedded.run_directory import RunDirectory
from superdl.sampler.embedded.supervisor_settings import SupervisorSettings
from superdl.super_wire.errors import EmbeddedError
from superdl.super_wire.protocol import PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Supervisor", "main"]

_PROBE_PAUSE_S = 0.05
_QUICK_DEATH_S = 10.0
_QUICK_DEATHS_AT_START = 2
_QUICK_DEATHS = 5
_RESTART_PAUSE_S = 0.1
_RESTART_PAUSE_MAX_S = 2.0
_CHILDREN_LOCK_WAIT_S = 30.0
_LOCK_WAIT_S = 5.0


class Supervisor:
    """Serves the ranks that connect to ``listener`` until none is left; see the module."""

    def __init__(
        self, directory: RunDirectory, listener: socket.socket, settings: SupervisorSettings
    ) -> None:
        self._directory = directory
        self._listener = listener
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._ranks: set[socket.socket] = set()
        self._waiting: set[socket.socket] = set()  # ranks that were not told yet that all is ready
        self._children: list[Child] = []
        self._unready: set[Child] = set()
        self._quick_deaths: dict[Child, int] = {}
        self._was_ready = False
        self._ending = False
        self._place = directory.identity()

    def run(self) -> None:
        """Until no rank is left, or until it gives up and has told them why."""
        wakeup = _signals_as_bytes()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept_all)
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._on_signals(wakeup))
        try:
            self._start_children()
            self._set_timer("idle", self._settings.grace_s, self._end_if_idle)
            while not self._ending:
                self._step()
        except EmbeddedError as error:
            self._give_up(error)

    def _step(self) -> None:
        due_s = min((when_s for when_s, _ in self._timers.values()), default=None)
        wait_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        for key, _ in self._selector.select(wait_s):
            if not self._ending:
                key.data()
        now_s = time.monotonic()
        for name in [name for name, (when_s, _) in self._timers.items() if when_s <= now_s]:
            timer = self._timers.pop(name, None)
            if timer is not None and not self._ending:
                timer[1]()

    def _set_timer(self, name: str, after_s: float, action: Callable[[], None]) -> None:
        self._timers[name] = (time.monotonic() + after_s, action)

    # Children

    def _start_children(self) -> None:
        lock = self._directory.lock_for_children(_CHILDREN_LOCK_WAIT_S)
        kinds: list[type[Child]] = [CoordinatorProcess]
        if not self._settings.choice.cache:
            kinds.insert(0, CacheServer)
        self._children = [kind(self._directory, self._settings, lock) for kind in kinds]
        for child in self._children:
            self._start(child)

    def _start(self, child: Child) -> None:
        child.start()
        _log(f"{child.name} started")
        self._unready.add(child)
        self._set_timer("probe", 0.0, self._probe)

    def _probe(self) -> None:
        for child in list(self._unready):
            if child.ready():
                self._unready.discard(child)
        if self._unready:
            self._set_timer("probe", _PROBE_PAUSE_S, self._probe)
        elif self._all_run():
            self._was_ready = True
            for rank in list(self._waiting):
                self._tell_ready(rank)

    def _all_run(self) -> bool:
        return not any(name.startswith("restart") for name in self._timers)

    def _reap(self) -> None:
        for child in self._children:
            code = child.ended()
            if code is None:
                continue
            self._unready.discard(child)
            lived_s = time.monotonic() - child.started_s
            is_quick = lived_s < _QUICK_DEATH_S or not self._was_ready  # a start may take long to fail
            deaths = self._quick_deaths.get(child, 0) + 1 if is_quick else 0
            self._quick_deaths[child] = deaths
            _log(f"{child.name} ended with {_told(code)} after {lived_s:.1f} s")
            is_hopeless = code in child.hopeless and not self._was_ready
            if is_hopeless or deaths >= (_QUICK_DEATHS if self._was_ready else _QUICK_DEATHS_AT_START):
                said = self._directory.last_words(child.last_words)
                when = "soon after its start" if self._was_ready else "before it was ready"
                raise EmbeddedError(
                    f"the embedded {child.name} ended {_times(max(deaths, 1))} {when}, the "
                    f"last time with {_told(code)}{f': {said}' if said else ''}{self._directory.log_tail()}"
                )
            pause_s = min(_RESTART_PAUSE_MAX_S, _RESTART_PAUSE_S * 2**deaths)
            self._set_timer(f"restart {child.name}", pause_s, partial(self._start, child))

    # Ranks

    def _accept_all(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                self._welcome(self._listener.accept()[0])

    def _welcome(self, rank: socket.socket) -> None:
        rank.setblocking(False)
        self._ranks.add(rank)
        self._timers.pop("idle", None)
        self._selector.register(rank, selectors.EVENT_READ, lambda: self._on_rank(rank))
        if self._was_ready and not self._unready and self._all_run():
            self._tell_ready(rank)
        else:
            self._waiting.add(rank)

    def _on_rank(self, rank: socket.socket) -> None:
        if rank not in self._ranks:
            return  # dropped by what came before in the same round
        try:
            said = rank.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._drop(rank)

    def _drop(self, rank: socket.socket) -> None:
        self._selector.unregister(rank)
        rank.close()
        self._ranks.discard(rank)
        self._waiting.discard(rank)
        if not self._ranks:
            self._set_timer("idle", self._settings.grace_s, self._end_if_idle)

    def _tell_ready(self, rank: socket.socket) -> None:
        self._waiting.discard(rank)
        self._tell(rank, {"protocol_version": PROTOCOL_VERSION, "supervisor": os.getpid()})

    def _tell(self, rank: socket.socket, words: dict[str, object]) -> None:
        try:
            rank.send(json.dumps(words).encode() + b"\n")
        except OSError:  # it is gone, or never reads
            self._drop(rank)

    # The end

    def _end_if_idle(self) -> None:
        if not self._end("no rank is left", lock_wait_s=0.0, only_if_idle=True):
            self._set_timer("idle", _PROBE_PAUSE_S, self._end_if_idle)

    def _give_up(self, error: EmbeddedError) -> None:
        _log(f"giving up: {error}")
        self._end("it gave up", last_words={"error": str(error)})

    def _end(
        self,
        reason: str,
        *,
        lock_wait_s: float = _LOCK_WAIT_S,
        only_if_idle: bool = False,
        last_words: dict[str, object] | None = None,
    ) -> bool:
        """End all, under the start lock: a rank that looks for this supervisor waits, and starts another.

        Whether that is settled: it is not if the lock could not be had and ``only_if_idle`` lets it wait.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._directory.locked_for_start(lock_wait_s))
                locked = True
            except EmbeddedError:
                locked = False
            self._accept_all()
            is_found = self._directory.identity() == self._place  # else no rank can come any more
            if only_if_idle and (self._ranks or (is_found and not locked)):
                return bool(self._ranks)
            _log(f"ending: {reason}")
            self._ending = True
            for rank in list(self._ranks) if last_words else ():
                self._tell(rank, last_words or {})
            self._listener.close()
            for child in reversed(self._children):
                child.end()
            if locked and is_found:
                self._directory.remove()
        return True

    def _on_signals(self, wakeup: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            numbers = wakeup.recv(4096)
            if signal.SIGCHLD in numbers:
                self._reap()
            if signal.SIGTERM in numbers:
                self._end("SIGTERM")


def _told(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} supervisor {os.getpid()}: {text}\n")
    sys.stderr.flush()


def _signals_as_bytes() -> socket.socket:
    """A socket that receives the number of each SIGCHLD and SIGTERM as a byte."""
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return receiver


def main(arguments: list[str]) -> None:
    """Serve until no rank is left."""
    path, listener, settings = arguments
    with socket.socket(fileno=int(listener)) as listening:
        Supervisor(RunDirectory(Path(path)), listening, SupervisorSettings.from_json(settings)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
