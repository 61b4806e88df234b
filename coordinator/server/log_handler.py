"""Log lines as text or JSON. A repeated cause is logged once a minute with its count."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from superdl.super_wire.display import counted, shown_lines

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_EVERY_S = 60.0
_CAUSES_MAX = 256
# Maximum number of warnings per minute. Errors are always written.
_WARNINGS_MAX = 15
_LATELY_S = 900.0
_LATEST_MAX = 10
_TEXT_MAX = 500
# Parts that log: the coordinator's packages, and everything else in the process.
PARTS = ("cache", "catalog", "core", "executors", "server", "store", "other")
_HUNG_UP = "ExecuteBatchError raised in core by servicer method"
_NUMBER = re.compile(r"\b[0-9a-f]*[0-9][0-9a-f]*\b|\d+")
_FIELDS = ("job", "rank", "dataset", "executor", "request")


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        # Keys, sources and errors may come from strangers and must not control a terminal.
        return shown_lines(super().format(record))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {"time": f"{at}.{record.msecs:03.0f}Z", "level": record.levelname}
        entry |= {"logger": record.name, "message": record.getMessage()}
        entry |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


LINE_FORMATS: dict[str, Callable[[], logging.Formatter]] = {"text": _Text, "json": _Json}


class Warned(NamedTuple):
    """The latest warning or error of one cause, its Unix time, and how often the cause has occurred."""

    at_s: float
    level: str
    times: int
    text: str


class RepeatedLines(logging.StreamHandler[TextIO]):
    """A handler that writes warnings and errors once a minute per cause, and every other line.

    The first line for a cause is written immediately. More lines within a minute are only counted. Their
    number is added to the next line or, if there is no next line, written by :meth:`log_counts`. After
    fifteen warnings in a minute, warnings with new causes are only counted as well.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        # By cause: the time of the last written line, the number of lines since then, and the latest line.
        self._reported: dict[tuple[str, int, str], tuple[float, int, logging.LogRecord]] = {}
        self._minute_s = -_EVERY_S
        # Numbers of warnings written this minute, and of warnings that were only counted.
        self._warnings = self._beyond = 0
        self._counts: Counter[str] = Counter()
        self._latest: dict[tuple[str, int, str], Warned] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop the tracebacks that gRPC logs for clients that hung up before the reply."""
        return not record.getMessage().startswith(_HUNG_UP) and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write or count a line. The caller holds the handler's lock."""
        if record.levelno >= logging.WARNING:
            # Lines that differ only in numbers share a cause. If a stranger controls the words, the caller
            # must name the cause (extra=).
            words = getattr(record, "cause", None) or _NUMBER.sub("#", record.getMessage())
            cause, now_s = (record.name, record.levelno, words), self._clock()
            self._note(cause, record)
            reported_s, repeats, _ = self._reported.pop(cause, (now_s - _EVERY_S, 0, record))
            if now_s - reported_s < _EVERY_S:
                self._reported[cause] = reported_s, repeats + 1, record
                return
            if now_s >= self._minute_s + _EVERY_S:
                self._minute_s, self._warnings = now_s, 0
            if record.levelno == logging.WARNING and self._warnings >= _WARNINGS_MAX:
                self._beyond += 1 + repeats
                return
            self._warnings += 1
            self._reported[cause] = now_s, 0, record
            if len(self._reported) > _CAUSES_MAX:
                del self._reported[next(iter(self._reported))]
            if repeats:
                record = _with_suffix(record, f" (and {repeats:,} more times since it was last logged)")
        super().emit(record)

    def _note(self, cause: tuple[str, int, str], record: logging.LogRecord) -> None:
        *_, part = record.name.split(".", 3)[:3]  # superdl.coordinator.PART
        self._counts[part if part in PARTS else PARTS[-1]] += 1
        times = 1 + (self._latest.pop(cause).times if cause in self._latest else 0)
        text = record.getMessage()[:_TEXT_MAX]
        self._latest[cause] = Warned(record.created, record.levelname, times, text)
        if len(self._latest) > _LATEST_MAX:
            del self._latest[next(iter(self._latest))]

    def warned_of(self) -> tuple[Counter[str], list[Warned]]:
        """Return warning counts by part, and the causes of the last fifteen minutes, oldest first."""
        with self.lock or contextlib.nullcontext():
            since_s = time.time() - _LATELY_S
            return self._counts.copy(), [cause for cause in self._latest.values() if cause.at_s >= since_s]

    def log_counts(self) -> None:
        """Write the counts for the last minute. Call this regularly."""
        with self.lock or contextlib.nullcontext():
            now_s = self._clock()
            for cause, (reported_s, repeats, record) in list(self._reported.items()):
                if repeats and now_s - reported_s >= _EVERY_S:
                    self._reported[cause] = now_s, 0, record
                    late = _with_suffix(record, f" (the newest of {repeats:,} in {now_s - reported_s:.0f} s)")
                    late.created, late.msecs = time.time(), time.time() % 1 * 1000
                    super().emit(late)
            if self._beyond and now_s >= self._minute_s + _EVERY_S:
                text, self._beyond = f"{self._beyond:,} more warnings with other causes", 0
                about = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
                super().emit(logging.makeLogRecord({**about, "msg": text}))


def _with_suffix(record: logging.LogRecord, suffix: str) -> logging.LogRecord:
    return logging.makeLogRecord({**record.__dict__, "msg": f"{record.getMessage()}{suffix}", "args": None})


def log_counts() -> None:
    """Write the counts kept by this process's handler."""
    for handler in _handlers():
        handler.log_counts()


def warned_of() -> tuple[Counter[str], list[Warned]]:
    """Return :meth:`RepeatedLines.warned_of` for this process's handler."""
    return next((handler.warned_of() for handler in _handlers()), (Counter(), []))


def _handlers() -> list[RepeatedLines]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, RepeatedLines)]


def warn_of_samples(source: str, cause: str, first: str, count: int, problem: str) -> None:
    """Warn about some samples of a source, naming the first of them."""
    others = f" (and {counted(count - 1, 'more sample')})" if count > 1 else ""
    _log.warning("%s%s %s", first, others, problem, extra={"cause": cause, "dataset": source})
