"""A parser of the replies to a batch's GETs, which routes their bytes to the right memory, without I/O.

One ``ReplyScatter`` follows one connection's stream of replies, in one of two ways:

- general: a small scratch catches a reply's frame and the record's header; the payload goes where the batch
  buffer wants it.
- predicted: while records are of one size, one call receives many frames and payloads, each to its place
  (:mod:`superdl.super_dataset.reading.prediction`). At the first reply that differs, the bytes after it are
  put in line again and read the general way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from superdl.super_dataset.reading.prediction import PredictedReplies
from superdl.super_wire.cache import CRLF, MAX_BULK_BYTES, MAX_LINE_BYTES, ProtocolDoubtError
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from superdl.super_dataset.reading.buffer import BatchBuffer, Incoming

__all__ = ["ReplyScatter", "parse_line"]

_SCRATCH_BYTES = 512
_MAX_DIGITS = len(str(MAX_BULK_BYTES))  # Python refuses thousands of digits


class ReplyScatter:
    """A parser of replies into ``buffer``, for the samples at ``offsets``, in order of their requests.

    ``skip`` replies to earlier commands come first and are skipped, and so are the replies to an ``ASKING``
    before the requests for the samples in ``asking``.
    """

    def __init__(
        self, buffer: BatchBuffer, offsets: Sequence[int], *, skip: int = 0, asking: Collection[int] = ()
    ) -> None:
        self.skipped_errors: list[str] = []
        """Texts of the skipped replies that were errors."""
        self._buffer = buffer
        self._offsets = offsets
        self._skip = skip
        self._asking = asking
        self._asked_leave: str | None = None  # the reply to the current ASKING; None before it came
        self._asked = 0
        self._done = 0  # replies to our own requests that are completely read
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._line = b""  # bytes of a reply's frame and header that are not complete yet
        self._payload: memoryview | None = (
            None  # the remaining bytes of the current bulk; None between replies
        )
        self._current: Incoming | None = None  # the record it belongs to; None if it is skipped
        self._window: PredictedReplies | None = None

    @property
    def answered(self) -> int:
        """Return the number of requests that have been answered completely."""
        return self._done + (self._window.complete if self._window else 0)

    @property
    def finished(self) -> bool:
        """Return whether all requests and skipped replies have been answered."""
        return self._done == len(self._offsets) and not self._skip and not self._line

    def asked(self, count: int) -> None:
        """Note that ``count`` more requests have been sent."""
        self._asked += count

    def buffers(self) -> list[memoryview]:
        """Return the memory for the next bytes; never empty until all is finished."""
        if self._window is None and self._payload is not None and self._current is not None:
            self._window = self._predict(self._payload, self._current)
        if self._window is not None:
            return self._window.buffers()
        return [self._payload, self._scratch] if self._payload else [self._scratch]

    def received(self, count: int) -> None:
        """Process ``count`` bytes that were put into :meth:`buffers`.

        Raises:
            ProtocolDoubtError: the bytes do not answer the requests; the connection is no longer usable.
        """
        window = self._window
        if window is not None:
            stray = window.received(count)
            if stray is not None:
                self._leave(window)
                self._parse(stray)
            return
        if self._payload:
            taken = min(count, len(self._payload))
            self._payload = self._payload[taken:]
            count -= taken
        if count:
            self._parse(bytes(self._scratch[:count]))

    def settle(self) -> None:
        """Store what has been received completely, before the stream is abandoned."""
        if self._window is not None:
            self._commit(self._window)
            self._window = None

    def _predict(self, rest: memoryview, current: Incoming) -> PredictedReplies | None:
        buffer = self._buffer
        following = self._offsets[self._done + 1 : self._asked]
        if not following or self._line or self._skip or not current.in_block:
            return None
        if self._asking:  # other replies come between
            return None
        slots = [buffer.slot(offset) for offset in following]
        return PredictedReplies(rest, current.record_bytes, following, slots, buffer.to_hash)

    def _leave(self, window: PredictedReplies) -> None:
        """Drop a window; the current reply is then the last one that it confirmed."""
        self._commit(window)
        self._window = None
        self._payload = memoryview(bytearray())

    def _commit(self, window: PredictedReplies) -> None:
        """Store the window's complete replies: the current one, then those it predicted."""
        if not window.complete or self._current is None:
            return
        self._buffer.note_record(self._current)
        confirmed = window.complete - 1
        offsets = window.offsets[:confirmed]
        if confirmed:
            digests = {offset: window.digests[offset] for offset in offsets if offset in window.digests}
            self._buffer.note_records(offsets, window.headers(confirmed), digests)
        self._done += window.complete
        # The next reply's frame was right: it is the current one, but for its line end.
        self._current = self._buffer.place_in_block(window.offsets[confirmed], window.header(confirmed))
        window.complete = 0

    def _parse(self, data: bytes) -> None:
        """Parse ``data`` as replies, the general way, until its end."""
        data = self._line + data if self._line else data
        view = memoryview(data)
        self._line = b""
        at = 0
        while at < len(data):
            if self._payload is None:
                taken = self._begin(data, at)
                if not taken:
                    self._line = data[at:]
                    return
                at += taken
                continue
            if self._payload:
                taken = min(len(self._payload), len(data) - at)
                self._payload[:taken] = view[at : at + taken]
                self._payload = self._payload[taken:]
                at += taken
                continue
            if data[at : at + 2] != CRLF:
                if data[at : at + 2] == CRLF[: len(data) - at]:
                    self._line = data[at:]
                    return
                raise ProtocolDoubtError(f"a record ended with {data[at : at + 2]!r} instead of a line's end")
            at += 2
            self._end_bulk()

    def _begin(self, data: bytes, at: int) -> int:
        """Parse a frame and a record's header; return the bytes used, 0 if too few."""
        if not self._skip and self._done >= self._asked:
            raise ProtocolDoubtError(f"a reply came that nobody asked for: {data[at : at + 40]!r}")
        end = data.find(CRLF, at)
        if end < 0:
            if len(data) - at > MAX_LINE_BYTES:
                raise ProtocolDoubtError(f"a reply's first line is longer than {MAX_LINE_BYTES} bytes")
            return 0
        kind, length, text = parse_line(data[at:end])
        body = end + len(CRLF)
        if not self._skip and self._asked_leave is None and self._offsets[self._done] in self._asking:
            if kind not in ("simple", "error"):
                raise ProtocolDoubtError(f"ASKING was answered by {data[at:end][:40]!r}")
            self._asked_leave = text if kind == "error" else ""  # the GET's reply follows
            return body - at
        if kind == "bulk":
            return self._begin_bulk(data, body, length) and body - at + self._header_bytes(length)
        if self._skip:
            self._skip -= 1
            if kind == "error":
                self.skipped_errors.append(text)
        else:
            self._note(kind, text)
        return body - at

    def _note(self, kind: str, text: str) -> None:
        """Store a reply that is a single line."""
        offset = self._offsets[self._done]
        if kind == "nil":
            self._buffer.note_nil(offset)
        elif kind == "error":
            self._buffer.note_error(offset, self._asked_leave or text)
        else:
            raise ProtocolDoubtError(f"a GET was answered by {text[:40]!r}")
        self._done += 1
        self._asked_leave = None

    def _header_bytes(self, length: int) -> int:
        return HEADER_BYTES if self._current is not None and length >= HEADER_BYTES else 0

    def _begin_bulk(self, data: bytes, body: int, length: int) -> bool:
        """Prepare for a bulk's bytes; return ``False`` while its header is incomplete."""
        if self._skip:
            self._payload, self._current = memoryview(bytearray(length)), None
            return True
        offset = self._offsets[self._done]
        if length < HEADER_BYTES:
            self._expect(self._buffer.place_short(offset, length))
            return True
        if len(data) - body < HEADER_BYTES:
            return False
        header = data[body : body + HEADER_BYTES]
        self._expect(self._buffer.place(offset, header, length - HEADER_BYTES))
        return True

    def _expect(self, record: Incoming) -> None:
        self._current, self._payload = record, record.payload

    def _end_bulk(self) -> None:
        self._payload = None
        if self._current is None:
            self._skip -= 1
            return
        self._buffer.note_record(self._current)
        self._done += 1
        self._asked_leave = None


def parse_line(
    line: bytes | bytearray | memoryview,
) -> tuple[Literal["bulk", "nil", "error", "simple"], int, str]:
    """Parse one reply line, without CRLF: return its kind, a bulk's length, other replies' text.

    Raises:
        ProtocolDoubtError: it is not a valid reply to a reader's commands.
    """
    line = bytes(line)
    mark, rest = line[:1], line[1:]
    if mark == b"$":
        if rest == b"-1":
            return "nil", 0, ""
        if rest.isdigit() and len(rest) <= _MAX_DIGITS and int(rest) <= MAX_BULK_BYTES:
            return "bulk", int(rest), ""
    elif mark == b"-":
        return "error", 0, rest.decode(errors="replace")
    elif mark in (b"+", b":"):
        return "simple", 0, rest.decode(errors="replace")
    raise ProtocolDoubtError(f"a reply began with {line[:40]!r}, which is no answer to what was asked")
