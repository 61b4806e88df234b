"""The one home of rate-limited log lines: a cause that repeats itself is told once a minute, with its count.

The first line of a cause is written at once. Those that follow within a minute are counted, and the last of
them is written at its end, with how many there were: 871 refusals by one executor are two lines, in which
others can still be seen. Two lines have one cause if they differ in numbers alone, or if their records name
it as ``cause`` (``extra=``): so it is where a stranger chooses the words.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RepeatedLines"]

_EVERY_S = 60.0
_CAUSES_MAX = 256
_NUMBER = re.compile(r"\b[0-9a-f]*[0-9][0-9a-f]*\b|\d+")

_Cause: TypeAlias = "tuple[str, int, str]"


@dataclass(slots=True)
class _Told:
    """What of a cause was not written since it was written last."""

    last: logging.LogRecord
    timer: threading.Timer
    more: int = 0


class RepeatedLines(logging.StreamHandler[TextIO]):
    """Writes warnings and errors as above, all else as it comes.

    Args:
        stream: where lines go.
        every_s: how often a cause is told.
        after: starts a timer that calls a function once; a seam for tests.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        every_s: float = _EVERY_S,
        after: Callable[[float, Callable[[], None]], threading.Timer] | None = None,
    ) -> None:
        super().__init__(stream)
        self._every_s = every_s
        self._after = after or _start_timer
        self._told: dict[_Cause, _Told] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it; called with the handler's lock."""
        if record.levelno < logging.WARNING:
            super().emit(record)
            return
        words = getattr(record, "cause", None) or _NUMBER.sub("#", record.getMessage())
        cause = record.name, record.levelno, words
        told = self._told.get(cause)
        if told is not None:
            told.last, told.more = record, told.more + 1
            return
        super().emit(record)
        if len(self._told) >= _CAUSES_MAX:
            self._tell(next(iter(self._told)), is_over=True)
        self._told[cause] = _Told(record, self._after(self._every_s, lambda: self._minute_is_over(cause)))

    def close(self) -> None:
        """Write what was counted, and end."""
        with self.lock or threading.RLock():
            for cause in list(self._told):
                self._tell(cause, is_over=True)
        super().close()

    def _minute_is_over(self, cause: _Cause) -> None:
        with self.lock or threading.RLock():
            self._tell(cause, is_over=False)

    def _tell(self, cause: _Cause, *, is_over: bool) -> None:
        """Write how often a cause was repeated; one that was not is forgotten."""
        told = self._told.pop(cause, None)
        if told is None:
            return
        told.timer.cancel()
        if not told.more:
            return
        text = f"{told.last.getMessage()} ({told.more:,} times more within {self._every_s:.0f} s)"
        line = logging.makeLogRecord({**told.last.__dict__, "msg": text, "args": None, "exc_info": None})
        super().emit(line)
        if not is_over:
            timer = self._after(self._every_s, lambda: self._minute_is_over(cause))
            self._told[cause] = _Told(told.last, timer)


def _start_timer(delay_s: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(delay_s, call)
    timer.daemon = True  # the end of the process writes what is left
    timer.start()
    return timer
