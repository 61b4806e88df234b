"""Sockets that no forked process may share with this one: their end tells that this process has ended."""

from __future__ import annotations

import contextlib
import socket
import threading

from superdl.sampler.forking import step_aside_at_forks

__all__ = ["HeldSockets"]


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
