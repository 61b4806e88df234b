"""Warnings that others can cause as often as they like: one line a minute, which says how many there were."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

__all__ = ["CountedLog"]

_EVERY_S = 60.0


class CountedLog:
    """One cause of warnings.

    Args:
        log: where they go.
        clock: in seconds; it does not go back.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._again_s = 0.0
        self._untold = 0
        self.count = 0
        """How often it was so."""

    def warn(self, message: str, *values: object) -> None:
        """Tell it, and how often it was so since it was told last; within a minute of that, only count it."""
        self.count += 1
        self._untold += 1
        if self._clock() < self._again_s:
            return
        self._again_s = self._clock() + _EVERY_S
        more = f" (and {self._untold - 1:,} more since the last such line)" if self._untold > 1 else ""
        self._untold = 0
        self._log.warning(message + more, *values)
