"""A bound in bytes on what waits between two stages of the pipeline."""

from __future__ import annotations

import threading

__all__ = ["MIN_PIECE_BYTES", "BudgetClosedError", "ByteBudget"]

MIN_PIECE_BYTES = 4096
"""What a piece counts at least: about what Python spends on keeping it."""


class BudgetClosedError(Exception):
    """The invocation ends: a wait for room is over."""


class ByteBudget:
    """Room for ``capacity_bytes``, handed out first come, first served.

    Each piece counts at least ``MIN_PIECE_BYTES``, so that many tiny ones are bounded as well. What is larger
    than the whole capacity gets in alone, when all else has left: so nothing waits forever, and the bytes in
    use never exceed the larger of the capacity and the largest single piece.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._next_ticket = 0
        self._serving = 0
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def used_bytes(self) -> int:
        """Bytes handed out and not yet returned."""
        return self._used_bytes

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return self._next_ticket - self._serving

    def acquire(self, size_bytes: int) -> None:
        """Wait for room; :class:`BudgetClosedError` once :meth:`close` was called.

        The wait ends because each holder of room either returns it or closes the budget.
        """
        counted_bytes = max(size_bytes, MIN_PIECE_BYTES)
        with self._lock:
            if self.waiting or self._closed or not self._fits(counted_bytes):
                self._wait_for_turn(counted_bytes)
            self._used_bytes += counted_bytes

    def release(self, size_bytes: int) -> None:
        """Return the room of a piece of this size."""
        with self._lock:
            self._used_bytes -= max(size_bytes, MIN_PIECE_BYTES)
            if self.waiting:
                self._changed.notify_all()

    def close(self) -> None:
        """Turn away all who wait, and all who come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait_for_turn(self, counted_bytes: int) -> None:
        """Return once all who came before were served, and it fits; the lock is held by the caller."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._changed.wait_for(
            lambda: self._closed or (ticket == self._serving and self._fits(counted_bytes))
        )
        if self._closed:
            raise BudgetClosedError
        self._serving += 1
        self._changed.notify_all()  # the next one may fit as well

    def _fits(self, size_bytes: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + size_bytes <= self._capacity_bytes
