"""Forks: those who hold threads, channels or sockets step aside before one and come back after it.

A fork copies memory and file descriptors but only one thread, and grpc does not promise to survive one with
an open channel. So members are asked to let go before any ``os.fork`` of this process, however it came about,
and told afterwards on which side they are. What each lets go of is its own matter.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

__all__ = ["Forkable", "step_aside_at_forks"]


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
