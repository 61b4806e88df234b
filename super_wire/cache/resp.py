"""The Redis protocol, RESP2: commands to bytes, and bytes to replies of any shape. It does no I/O.

The many large replies to a batch's GETs have their own parser (:mod:`superdl.super_dataset.reading.scatter`).
Strings become ``bytes``, integers ``int``, arrays ``list``, nulls ``None``, errors :class:`ErrorReply`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

CRLF = b"\r\n"
# The largest value that Redis holds.
MAX_BULK_BYTES = 512 * 2**20
# The longest line, without a bulk's bytes, whose end is awaited.
MAX_LINE_BYTES = 65536
# Bound on the nesting of arrays; an outermost one is at depth 1.
MAX_DEPTH = 16
# Bound on the number of elements of one array.
MAX_ELEMENTS = 2**20


class MalformedReplyError(ValueError):
    """The bytes are no reply, or one beyond the bounds: the stream is no longer usable."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error in the server's words: a code such as ``MOVED`` or ``ERR``, then text."""

    text: str


Reply: TypeAlias = "bytes | int | list[Reply] | ErrorReply | None"


class _TooShortError(Exception):
    """The reply continues beyond the received bytes."""


def encode_command(*words: bytes) -> bytes:
    """Encode one command as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def parse_reply(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[Reply, int] | None:
    r"""Return the reply at ``at`` and the start of the next one; ``None`` if more bytes are needed.

    >>> parse_reply(b"*2\r\n:7\r\n$2\r\nhi\r\n")
    ([7, b'hi'], 16)

    Raises:
        MalformedReplyError: no further bytes can make it a reply.
    """
    try:
        return _reply(bytes(data), at, 1)  # a memoryview has no find
    except _TooShortError:
        return None


def _reply(data: bytes, at: int, depth: int) -> tuple[Reply, int]:
    mark, end = data[at : at + 1], data.find(CRLF, at, at + MAX_LINE_BYTES)
    # Detect other protocols at once: their bytes may never contain a line's end.
    if mark and mark not in (b"+", b"-", b":", b"$", b"*"):
        raise _malformed("an unknown mark", data, at)
    if end < 0:
        if len(data) - at > MAX_LINE_BYTES:
            raise _malformed(f"a first line longer than {MAX_LINE_BYTES} bytes", data, at)
        raise _TooShortError
    line, body = data[at + 1 : end], end + len(CRLF)
    reply: Reply = line
    if mark == b"-":
        reply = ErrorReply(line.decode(errors="replace"))
    elif mark == b":":
        signed = line[:1] in (b"+", b"-")
        number = _count(data, at, line[signed:], 2**64)
        reply = -number if line[:1] == b"-" else number
    elif mark in (b"$", b"*") and line == b"-1":
        reply = None
    elif mark == b"$":
        reply, body = _bulk(data, at, line, body)
    elif mark == b"*":
        reply, body = _array(data, at, line, body, depth)
    return reply, body


def _bulk(data: bytes, at: int, line: bytes, body: int) -> tuple[bytes, int]:
    end = body + _count(data, at, line, MAX_BULK_BYTES)
    mark = data[end : end + len(CRLF)]
    if len(mark) < len(CRLF) and CRLF.startswith(mark):
        raise _TooShortError
    if mark != CRLF:
        raise _malformed("a string without a line's end", data, at)
    return data[body:end], end + len(CRLF)


def _array(data: bytes, at: int, line: bytes, body: int, depth: int) -> tuple[list[Reply], int]:
    count = _count(data, at, line, MAX_ELEMENTS)
    if depth > MAX_DEPTH:
        raise _malformed(f"arrays lie deeper than {MAX_DEPTH} in one another", data, at)
    items = []
    for _ in range(count):
        item, body = _reply(data, body, depth + 1)
        items.append(item)
    return items, body


def _count(data: bytes, at: int, digits: bytes, limit: int) -> int:
    if not digits.isdigit() or len(digits) > len(str(limit)) or int(digits) > limit:
        raise _malformed(f"what is no number up to {limit}", data, at)
    return int(digits)


def _malformed(why: str, data: bytes, at: int) -> MalformedReplyError:
    return MalformedReplyError(f"a reply began with {data[at : at + 40]!r}: {why}")
