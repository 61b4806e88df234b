"""Requesting a node's share of a batch, and receiving the replies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from superdl.super_dataset.reading.buffer import ReplyKind
from superdl.super_wire.cache import CRLF, MAX_BULK_BYTES, MAX_LINE_BYTES, ProtocolDoubtError, encode_command
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import HEADER_BYTES, payload_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from superdl.super_dataset.reading.batch import Batch
    from superdl.super_dataset.reading.buffer import BatchBuffer, Incoming
    from superdl.super_wire.cache import CacheConnection

_DIGITS = 2 * ID_BYTES  # of a sample id, at the end of a cache key
_GET = encode_command(b"GET", cache_key(bytes(ID_BYTES)))[: -_DIGITS - len(CRLF)]
_ASKING = encode_command(b"ASKING")  # precedes a GET after an ``ASK`` redirection
_UNKNOWN_RECORD_BYTES = 2**20
_MAX_IN_FLIGHT = 1024
_SCRATCH_BYTES = 512
_MAX_DIGITS = len(str(MAX_BULK_BYTES))  # int() rejects thousands of digits
_VIEWS_PER_CALL = 64
_BYTES_PER_CALL = 2**21


class Receiver:
    """Requests the samples at ``offsets`` from one node, and receives the replies in that order.

    Outstanding replies to earlier requests come first and are skipped, as are replies to the ``ASKING`` that
    precedes each sample in ``asking``. ``part`` is the node's share of ``in_flight_bytes``. The general
    method receives frame and header into a small buffer. As long as records have the same size, a window
    predicts their frames and receives many records in one call. The connection is unusable after an error.
    """

    def __init__(
        self,
        connection: CacheConnection,
        batch: Batch,
        offsets: Sequence[int],
        *,
        part: float = 1.0,
        asking: Collection[int] = (),
    ) -> None:
        self.connection = connection
        self.finished = False  # all replies have arrived, including those that are skipped
        self._batch = batch
        self._buffer = batch.buffer
        self._offsets = offsets
        self._digits = batch.ref.sample_ids.hex().encode()
        self._part = part
        self._asking = asking
        self._asking_error: str | None = None  # the current ASKING's error, or None before its reply
        self._skip = connection.owed
        self._requested = 0
        self._done = 0  # replies to own requests that were read completely
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._line = b""  # an incomplete frame and header
        self._payload: memoryview | None = None  # the current bulk's remaining bytes, or None between replies
        self._current: Incoming | None = None  # the current bulk's record, or None if it is skipped
        self._window: _Window | None = None

    def send_requests(self) -> None:
        """Send more requests if at most half of the allowed number are in flight."""
        batch, sent = self._batch, self._requested
        # Each node may have at least one request in flight.
        expected = batch.buffer.item_bytes if batch.buffer.item_bytes > 0 else batch.record_bytes
        bound = batch.in_flight_bytes // (expected or _UNKNOWN_RECORD_BYTES)
        allowed = max(1, int(max(1, min(bound, _MAX_IN_FLIGHT)) * self._part))
        in_flight = sent - self._done - (self._window.complete if self._window else 0)
        if 2 * in_flight > allowed:
            return
        digits, asking = self._digits, self._asking
        upcoming = self._offsets[sent : sent + allowed - in_flight]
        gets = [_GET + digits[_DIGITS * offset : _DIGITS * (offset + 1)] for offset in upcoming]
        if asking:
            pairs = zip(upcoming, gets, strict=True)
            gets = [_ASKING + get if offset in asking else get for offset, get in pairs]
        self.connection.send(CRLF.join([*gets, b""]))
        self._requested += len(upcoming)

    def receive(self, *, once: bool = False) -> None:
        """Receive some bytes, or a whole window, and send more requests.

        With ``once``, read from the socket only once, even if no reply is complete, so that replies from
        other nodes need not wait.
        """
        if self._window is None and self._payload is not None:
            self._predict()
        window, payload = self._window, self._payload
        if window is not None:
            more = self._requested < len(self._offsets)
            until_s = -math.inf if once or more else self._batch.deadline_s
            unexpected = window.receive(self.connection, self._batch.clock, until_s, once=once)
            if unexpected is not None:
                self._end_window()
                self._payload = memoryview(bytearray())  # of the current bulk, only the line end is missing
                self._parse(unexpected)
        else:
            buffers = [payload, self._scratch] if payload else [self._scratch]
            count = self.connection.receive(buffers, once=once)
            if payload:
                taken = min(count, len(payload))
                self._payload = payload[taken:]
                count -= taken
            if count:
                self._parse(bytes(self._scratch[:count]))
        if self._requested < len(self._offsets):
            self.send_requests()

    def settle(self) -> None:
        """Store the records received so far, and update the connection's count of outstanding replies."""
        self._end_window()
        if self.finished:
            self.connection.owed = 0

    def _predict(self) -> None:
        """Begin a window if the current record is in the block and only records are expected after it."""
        if self._current is None or not self._current.in_block or self._payload is None:
            return
        following = self._offsets[self._done + 1 : self._requested]
        if following and not (self._line or self._skip or self._asking):
            self._window = _Window(self._payload, self._buffer, following, self._scratch)

    def _end_window(self) -> None:
        """Store the window's complete records, and return to the general method."""
        window, self._window = self._window, None
        if window is None or not window.complete or self._current is None:
            return
        self._buffer.note_record(self._current)
        confirmed = window.complete - 1
        if confirmed:
            self._buffer.note_records(
                window.offsets[:confirmed], window.headers[:confirmed], window.digests[:confirmed]
            )
        self._done += window.complete
        # The next reply's frame matched, and only its line end is missing.
        header = window.headers[confirmed].tobytes()
        self._current = self._buffer.place(window.offsets[confirmed], header, self._buffer.item_bytes)

    def _parse(self, data: bytes) -> None:
        """Parse ``data`` with the general method."""
        data = self._line + data if self._line else data
        view = memoryview(data)
        self._line = b""
        at = 0
        while at < len(data):
            if self._payload is None:
                begun_at, at = at, self._begin(data, at)
                if at == begun_at:
                    self._line = data[at:]
                    return
                continue
            if self._payload:
                taken = min(len(self._payload), len(data) - at)
                self._payload[:taken] = view[at : at + taken]
                self._payload = self._payload[taken:]
                at += taken
                continue
            if data[at : at + 2] != CRLF:
                # The line end itself may arrive in two parts.
                if data[at : at + 2] == CRLF[: len(data) - at]:
                    self._line = data[at:]
                    return
                raise ProtocolDoubtError(f"a record ended with {data[at : at + 2]!r} instead of a line end")
            at += 2
            self._payload = None
            if self._current is None:
                self._skip -= 1
            else:
                self._buffer.note_record(self._current)
                self._done += 1
                self._asking_error = None
        self.finished = self._done == len(self._offsets) and not self._skip

    def _begin(self, data: bytes, at: int) -> int:
        """Parse a frame and a record's header. Return the offset after them, or ``at`` if incomplete."""
        if not self._skip and self._done >= self._requested:
            raise ProtocolDoubtError(f"a reply arrived that was not requested: {data[at : at + 40]!r}")
        end = data.find(CRLF, at)
        if end < 0:
            if len(data) - at > MAX_LINE_BYTES:
                raise ProtocolDoubtError(f"a reply's first line is longer than {MAX_LINE_BYTES} bytes")
            return at
        kind, length, text = parse_line(data[at:end])
        body = end + len(CRLF)
        if not self._skip and self._asking_error is None and self._offsets[self._done] in self._asking:
            if kind not in ("simple", "error"):
                raise ProtocolDoubtError(f"unexpected reply to ASKING: {data[at:end][:40]!r}")
            self._asking_error = text if kind == "error" else ""  # the GET's reply follows
        elif kind == "bulk":
            return self._begin_bulk(data, body, length) or at
        elif self._skip:
            self._skip -= 1
            if kind == "error":
                self.connection.late_errors.append(text)
        else:
            self._note(kind, text)
        return body

    def _begin_bulk(self, data: bytes, body: int, length: int) -> int:
        """Return the start of a bulk's payload, or 0 if the header is still incomplete."""
        if self._skip:
            self._payload, self._current = memoryview(bytearray(length)), None
            return body
        begin = body + (HEADER_BYTES if length >= HEADER_BYTES else 0)
        if begin > len(data):
            return 0
        header = data[body:begin]
        self._current = self._buffer.place(self._offsets[self._done], header, length - len(header))
        self._payload = self._current.payload
        return begin

    def _note(self, kind: str, text: str) -> None:
        offset = self._offsets[self._done]
        if kind == "nil":
            self._buffer.replies[offset] = ReplyKind.NIL
        elif kind == "error":
            self._buffer.replies[offset] = ReplyKind.ERROR
            self._buffer.errors[offset] = self._asking_error or text
        else:
            raise ProtocolDoubtError(f"unexpected reply to a GET: {text[:40]!r}")
        self._done += 1
        self._asking_error = None


class _Window:
    """Predicted replies: the rest of the current payload, then a row and a payload for each record.

    Any further bytes go to ``scratch``.
    """

    def __init__(
        self, rest: memoryview, buffer: BatchBuffer, offsets: Sequence[int], scratch: memoryview
    ) -> None:
        self.offsets = offsets
        self.complete = 0  # replies received up to their line end, including the current one
        self.digests = [0] * len(offsets)  # of payloads to hash, some of them unconfirmed
        self._to_hash: list[bool] = buffer.to_hash[offsets].tolist()
        item_bytes = buffer.item_bytes
        # A row is the previous reply's line end, the frame, and the record's header.
        self._frame = CRLF + b"$%d\r\n" % (HEADER_BYTES + item_bytes)
        self._stride = stride = len(self._frame) + HEADER_BYTES
        self._rows = memoryview(bytearray(stride * len(offsets)))
        rows = np.frombuffer(self._rows, dtype=np.uint8).reshape(-1, stride)
        self.headers = rows[:, len(self._frame) :]
        self._views = [rest]
        for row, offset in enumerate(offsets):
            slot = buffer.slots[offset * item_bytes : (offset + 1) * item_bytes]
            self._views += (self._rows[row * stride : (row + 1) * stride], slot)
        self._views.append(scratch)
        self._at = 0  # the view that receives next
        self._part = 0  # number of its bytes already received
        pairs = max(1, min(_VIEWS_PER_CALL // 2, _BYTES_PER_CALL // (HEADER_BYTES + item_bytes)))
        self._views_per_call = 2 * pairs

    def receive(
        self, connection: CacheConnection, clock: Callable[[], float], until_s: float, *, once: bool
    ) -> bytes | None:
        """Receive until the window ends or ``clock`` reaches ``until_s``.

        Returns the bytes left for the general method to parse if the window ended, and ``None`` otherwise.
        """
        views, frame, rows, stride = self._views, self._frame, self._rows, self._stride
        last, at, count = len(views) - 1, self._at, self._part
        while True:
            buffers = views[at : at + self._views_per_call]
            if count:
                buffers[0] = buffers[0][count:]
            count += connection.receive(buffers, once=once)
            while at < last and count >= len(views[at]):
                count -= len(views[at])
                if at and not at % 2 and self._to_hash[at // 2 - 1]:
                    # Hash it now, while it is in the CPU cache, which is four times as fast as later.
                    self.digests[at // 2 - 1] = payload_hash(views[at])
                at += 1
            # Views alternate between payload and row. Compare partial frames too, to detect other replies
            # however short they are.
            for row in range(self.complete, min((at + 1) // 2, len(self.offsets))):
                size = len(frame) if row < at // 2 else min(count, len(frame))
                if rows[row * stride : row * stride + size] != frame[:size]:
                    return b"".join([*views[2 * row + 1 : at], views[at][:count]])
                self.complete = min(row + 1, at // 2)
            if at == last:
                return bytes(views[at][:count])
            if clock() >= until_s:
                self._at, self._part = at, count
                return None


def parse_line(
    line: bytes | bytearray | memoryview,
) -> tuple[Literal["bulk", "nil", "error", "simple"], int, str]:
    """Parse a reply line without CRLF. Returns its kind, a bulk's length, and the text of other kinds."""
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
    raise ProtocolDoubtError(f"a reply began with {line[:40]!r}, which does not answer the request")
