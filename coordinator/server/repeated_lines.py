"""Rate-limited log lines: a cause that repeats itself is told once a minute, with its count."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RepeatedLines"]

_EVERY_S = 60.0
_CAUSES_MAX = 256
_NUMBER = re.compile(r"\b[0-9a-f]*[0-9][0-9a-f]*\b|\d+")


class RepeatedLines(logging.StreamHandler[TextIO]):
    """Writes all lines below warnings; of warnings and errors, those of one cause once a minute.

    The first line of a cause is written at once. Those within a minute after it are counted, and the next one
    says how many there were. Two lines have one cause if they differ in numbers alone, or if their records
    name it as ``cause`` (``extra=``): so it is where a stranger chooses the words.

    Args:
        stream: where lines go.
        clock: seconds on a clock that does not go back; a seam for tests.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._told: dict[tuple[str, int, str], tuple[float, int]] = {}
        """When a cause was written last, and how often it was not since."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it; called with the handler's lock."""
        if record.levelno >= logging.WARNING:
            words = getattr(record, "cause", None) or _NUMBER.sub("#", record.getMessage())
            cause, now_s = (record.name, record.levelno, words), self._clock()
            told_s, more = self._told.pop(cause, (now_s - _EVERY_S, 0))
            if now_s - told_s < _EVERY_S:
                self._told[cause] = told_s, more + 1
                return
            self._told[cause] = now_s, 0
            if len(self._told) > _CAUSES_MAX:
                del self._told[next(iter(self._told))]
            if more:
                text = f"{record.getMessage()} ({more:,} times more since it was last told)"
                record = logging.makeLogRecord({**record.__dict__, "msg": text, "args": None})
        super().emit(record)
