"""Resources that must not survive a fork: sockets and grpc's threads."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from pathlib import Path

_TASKS = Path("/proc/self/task")
_NAMES = ("event_engine", "grpc_", "lifeguard")  # grpcio 1.66 to 1.85, as test_forking.py checks
_NAMING_S = 2.0  # until it first runs, a thread has its creator's name
_PAUSE_S = 0.001

_held: set[socket.socket] = set()
_held_lock = threading.Lock()  # held during a fork, so that no socket is missed


def _close_copies() -> None:
    for held in _held:
        held.close()  # the parent's ends stay open
    _held.clear()
    _held_lock.release()


os.register_at_fork(
    before=_held_lock.acquire, after_in_parent=_held_lock.release, after_in_child=_close_copies
)


class HeldSockets:
    """Unix stream sockets that are closed in every forked child. Thread-safe."""

    def __init__(self) -> None:
        self._sockets: set[socket.socket] = set()

    def open(self) -> socket.socket:
        """Open a socket."""
        with _held_lock:
            held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._sockets.add(held)
            _held.add(held)
            return held

    def close(self, held: socket.socket, *, handed_over: bool = False) -> None:
        """Close a socket and wake the threads waiting on it. If it was handed over, close only this copy."""
        with _held_lock:
            if held not in self._sockets:
                return
            self._sockets.discard(held)
            _held.discard(held)
            if not handed_over:
                with contextlib.suppress(OSError):  # not connected
                    held.shutdown(socket.SHUT_RDWR)
            held.close()

    def close_all(self) -> None:
        """Close all sockets."""
        for held in list(self._sockets):
            self.close(held)


class GrpcThreads:
    """Detects grpc's threads by name or, while they are unnamed, by start time. Linux only."""

    def __init__(self) -> None:
        # grpc starts threads with the first channel and ends them some milliseconds after the last one,
        # without notice. It does not promise to survive a fork with an open channel.
        self._openings: deque[tuple[float, frozenset[int]]] = deque(maxlen=16)

    def expect(self) -> None:
        """Record that a channel is about to be opened."""
        self._openings.append((time.monotonic(), _thread_ids()))

    def running(self) -> bool:
        """Return whether any grpc thread is running."""
        alive = _thread_ids()
        if any(_name(thread).startswith(_NAMES) for thread in alive):
            return True
        pythons = {thread.native_id for thread in threading.enumerate()}
        now_s = time.monotonic()
        young = [before for opened_s, before in self._openings if now_s - opened_s < _NAMING_S]
        return any(alive - before - pythons for before in young)

    def wait_until_gone(self, limit_s: float) -> bool:
        """Wait up to ``limit_s`` seconds for grpc's threads to end, and return whether they have."""
        deadline_s = time.monotonic() + limit_s
        while self.running():
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_PAUSE_S)  # grpc offers no way to wait for it
        return True


def _thread_ids() -> frozenset[int]:
    try:
        return frozenset(int(task.name) for task in _TASKS.iterdir())
    except FileNotFoundError:  # not Linux
        return frozenset()


def _name(thread: int) -> str:
    try:
        return (_TASKS / str(thread) / "comm").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended in the meantime
