"""Receiving many replies with one call: while records have one size, their frames are predictable.

The bytes of ``n`` replies to GETs of one length alternate: payload, row, payload, row, ... where a row is the
line end of the previous reply, the frame (``$``, length, line end) and the record's header. Every byte of a
frame is compared with the prediction before waiting for more, so that a different reply is noticed however
short it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.super_wire.cache import CRLF
from superdl.super_wire.record import HEADER_BYTES, payload_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["PredictedReplies"]

_VIEWS_PER_CALL = 64
_BYTES_PER_CALL = 2**21


class PredictedReplies:
    """The rest of the current payload, then a row and a payload for each of the following replies.

    ``complete`` replies are received up to their line end, counting the current one first. ``digests`` has,
    by sample, the xxh3-64 of the payloads after the current one that must be hashed, including some not
    confirmed yet. They are hashed on arrival, while the processor's cache still holds them, which is four
    times as fast as later.
    """

    def __init__(
        self,
        rest: memoryview,
        record_bytes: int,
        offsets: Sequence[int],
        slots: list[memoryview],
        to_hash: NDArray[np.bool_],
    ) -> None:
        self.offsets = offsets
        self.complete = 0
        self.digests: dict[int, int] = {}
        self._to_hash: list[bool] = to_hash[offsets].tolist()
        self._frame = CRLF + b"$%d\r\n" % record_bytes
        self._stride = len(self._frame) + HEADER_BYTES
        self._rows = memoryview(bytearray(self._stride * len(offsets)))
        self._views = [rest]
        for row, slot in enumerate(slots):
            self._views += (self._rows[row * self._stride : (row + 1) * self._stride], slot)
        self._at = 0  # the view that receives next
        self._part = 0  # number of its bytes already received
        pairs = max(1, min(_VIEWS_PER_CALL // 2, _BYTES_PER_CALL // record_bytes))
        self._views_per_call = 2 * pairs

    def buffers(self) -> list[memoryview]:
        """Return the views that receive the next bytes, in order."""
        views = self._views[self._at : self._at + self._views_per_call]
        if self._part:
            views[0] = views[0][self._part :]
        return views

    def received(self, count: int) -> bytes | None:
        """Count more bytes; at the window's end, return those to parse the general way."""
        views, at = self._views, self._at
        count += self._part
        while at < len(views) and count >= len(views[at]):
            count -= len(views[at])
            if at and not at % 2 and self._to_hash[at // 2 - 1]:
                self.digests[self.offsets[at // 2 - 1]] = payload_hash(views[at])
            at += 1
        self._at, self._part = at, count
        wrong = self._compare_rows()
        if wrong:
            return b"".join([*views[wrong:at], views[at][:count]] if count else views[wrong:at])
        return b"" if at == len(views) else None

    def _compare_rows(self) -> int:
        """Compare the frames received meanwhile; return the view that differs, or 0."""
        frame, rows, stride = self._frame, self._rows, self._stride
        row = self.complete
        whole_rows = self._at // 2  # views alternate: payload, row, payload, row, ...
        while row < whole_rows:
            start = row * stride
            if rows[start : start + len(frame)] != frame:
                return 2 * row + 1
            row += 1
            self.complete = row
        if self._at % 2 and self._part:
            start = row * stride
            size = min(self._part, len(frame))
            if rows[start : start + size] != frame[:size]:
                return 2 * row + 1
        return 0

    def headers(self, count: int) -> NDArray[np.uint8]:
        """Return headers of the first ``count`` replies, uint8 of shape (count, 64)."""
        rows = np.frombuffer(self._rows, dtype=np.uint8).reshape(-1, self._stride)
        return rows[:count, len(self._frame) :]

    def header(self, row: int) -> bytes:
        """Return the header of the predicted reply ``row``."""
        start = row * self._stride + len(self._frame)
        return bytes(self._rows[start : start + HEADER_BYTES])
