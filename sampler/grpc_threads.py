"""Whether grpc's own threads are running in this process.

grpc starts them with the first channel and ends them some milliseconds after the last one, and tells nobody
when. So this looks at the process's threads, which only Linux shows; elsewhere it sees none.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path

__all__ = ["GrpcThreads"]

_TASKS = Path("/proc/self/task")
_NAMES = ("event_engine", "grpc_", "lifeguard")  # grpcio 1.66 to 1.85; test_grpc_threads.py would miss one
_NAMING_S = 2.0  # a thread has the name of its maker until it first runs, on a busy machine for a while
_PAUSE_S = 0.001


class GrpcThreads:
    """Sees grpc's threads by their names, and those too young to have one by their coming with a channel."""

    def __init__(self) -> None:
        self._openings: deque[tuple[float, frozenset[int]]] = deque(maxlen=16)

    def expect(self) -> None:
        """To be called before a channel is made."""
        self._openings.append((time.monotonic(), _thread_ids()))

    def running(self) -> bool:
        """Whether there is any."""
        alive = _thread_ids()
        if any(_name(thread).startswith(_NAMES) for thread in alive):
            return True
        pythons = {thread.native_id for thread in threading.enumerate()}
        now_s = time.monotonic()
        young = [before for opened_s, before in self._openings if now_s - opened_s < _NAMING_S]
        return any(alive - before - pythons for before in young)

    def wait_until_gone(self, limit_s: float) -> bool:
        """Wait until there is none, at most ``limit_s``; whether that is so."""
        deadline_s = time.monotonic() + limit_s
        while self.running():
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_PAUSE_S)  # grpc has no way to wait for its end
        return True


def _thread_ids() -> frozenset[int]:
    try:
        return frozenset(int(task.name) for task in _TASKS.iterdir())
    except FileNotFoundError:  # no Linux
        return frozenset()


def _name(thread: int) -> str:
    try:
        return (_TASKS / str(thread) / "comm").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it ended meanwhile
