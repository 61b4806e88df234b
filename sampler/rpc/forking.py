"""Forks: those who hold threads, channels or sockets step aside before one and come back after it.

A fork copies memory and file descriptors but only one thread, and grpc does not promise to survive one with
an open channel. So members are asked to let go before any ``os.fork`` of this process, however it came about,
and told afterwards on which side they are. What each lets go of is its own matter; here are the two that
others share: sockets that no forked process may hold, and whether grpc's own threads are still running.

grpc starts its threads with the first channel and ends them some milliseconds after the last one, and tells
nobody when. So :class:`GrpcThreads` looks at the process's threads, which only Linux shows; elsewhere it sees
none.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Protocol

__all__ = ["Forkable", "GrpcThreads", "HeldSockets", "step_aside_at_forks"]

_TASKS = Path("/proc/self/task")
_NAMES = ("event_engine", "grpc_", "lifeguard")  # grpcio 1.66 to 1.85; test_grpc_threads.py would miss one
_NAMING_S = 2.0  # a thread has the name of its maker until it first runs, on a busy machine for a while
_PAUSE_S = 0.001


class Forkable(Protocol):
    """Who wants to hear of forks. None of these calls may raise, nor wait without a bound."""

    def before_fork(self) -> None:
        """Let go of what must not be open during a fork; called in the thread that forks."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Forget everything; the threads are gone, the descriptors are copies."""


class _Members:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: tuple[weakref.ref[Forkable], ...] = ()
        self._aside: dict[int, list[Forkable]] = {}  # by forking thread: two may fork at once
        self._hooked = False

    def add(self, member: Forkable) -> None:
        with self._lock:
            alive = [kept for kept in self._members if kept() is not None]
            self._members = (*alive, weakref.ref(member))
            if not self._hooked:
                os.register_at_fork(
                    before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
                )
                self._hooked = True

    def _before(self) -> None:
        # No lock is taken: the tuple is replaced whole, and a member that is only just being added has
        # nothing open yet.
        aside = [member for kept in self._members if (member := kept()) is not None]
        self._aside[threading.get_ident()] = aside
        for member in aside:
            member.before_fork()

    def _in_parent(self) -> None:
        for member in self._aside.pop(threading.get_ident()):
            member.after_fork_in_parent()

    def _in_child(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        aside = self._aside.pop(threading.get_ident())
        self._aside.clear()
        for member in aside:
            member.after_fork_in_child()


_MEMBERS = _Members()


def step_aside_at_forks(member: Forkable) -> None:
    """Tell ``member`` of every fork from now on, for as long as it lives (it is held weakly)."""
    _MEMBERS.add(member)


class HeldSockets:
    """Unix stream sockets that are closed in every forked child. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for moments, and during a fork: none comes or goes unseen
        self._sockets: list[socket.socket] = []
        step_aside_at_forks(self)

    def open(self) -> socket.socket:
        """A new one."""
        with self._lock:
            held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._sockets.append(held)
            return held

    def close(self, held: socket.socket, *, handed_over: bool = False) -> None:
        """Close one of them; a thread that waits for it wakes up.

        One that was ``handed_over`` lives on in another process: only this process's copy is closed.
        """
        with self._lock, contextlib.suppress(ValueError):  # closed before
            self._sockets.remove(held)
            if not handed_over:
                with contextlib.suppress(OSError):  # not connected, or no longer
                    held.shutdown(socket.SHUT_RDWR)
            held.close()

    def close_all(self) -> None:
        """Close all of them."""
        for held in list(self._sockets):
            self.close(held)

    def before_fork(self) -> None:
        """Let none come or go."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Close the copies; the parent's ends stay open."""
        for held in self._sockets:
            held.close()
        self._sockets = []
        self._lock.release()


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
