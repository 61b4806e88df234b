"""The Redis protocol, RESP2 and RESP3: commands to bytes, and bytes to replies of any shape.

It is general and not in a hurry: for greetings, slot maps and what is odd. Replies to a batch's GETs, which
are large and many, have a way of their own (:mod:`superdl.super_dataset.reading.scatter`). It does no I/O.

A reply becomes a Python value: simple, bulk and verbatim strings ``bytes``; integers and big numbers ``int``;
doubles ``float``; booleans ``bool``; nulls ``None``; arrays and sets ``list``; maps ``dict``; errors
:class:`ErrorReply`; push messages :class:`PushReply`. An attribute is read and dropped: what it belongs to
follows. Streamed strings and aggregates (``$?``, ``*?``), which no server sends, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CRLF",
    "MAX_BULK_BYTES",
    "MAX_DEPTH",
    "MAX_ELEMENTS",
    "MAX_LINE_BYTES",
    "ErrorReply",
    "MalformedReplyError",
    "PushReply",
    "Reply",
    "encode_command",
    "parse_reply",
]

CRLF = b"\r\n"
MAX_BULK_BYTES = 512 * 2**20
"""The largest value that Redis holds."""
MAX_LINE_BYTES = 65536
"""The longest line, without a bulk's bytes, of which the end is awaited."""
MAX_DEPTH = 16
"""How deep aggregates may lie in one another; an outermost one is at depth 1."""
MAX_ELEMENTS = 2**20
"""How many elements one aggregate may have; a map has two for each entry."""

_MAX_DIGITS = 4096  # Python refuses to read longer numbers as integers
_VERBATIM_MARK = 4  # bytes of "txt:" before a verbatim string


class MalformedReplyError(ValueError):
    """The bytes are no reply, or one beyond the bounds: the stream is of no use any more."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as the server worded it: a code such as ``MOVED`` or ``ERR``, then text."""

    text: str


@dataclass(frozen=True, slots=True)
class PushReply:
    """A message that answers no command; RESP3 only."""

    items: list[Reply]


Reply: TypeAlias = (
    "bytes | int | float | bool | list[Reply] | dict[Reply, Reply] | ErrorReply | PushReply | None"
)


class _TooShortError(Exception):
    """The reply goes on beyond what has come."""


def encode_command(*words: bytes) -> bytes:
    """One command as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def parse_reply(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[Reply, int] | None:
    """The reply that begins at ``at`` and where the next one begins; ``None`` if more bytes are needed.

    Raises:
        MalformedReplyError: no further bytes can make it a reply.
    """
    try:
        # Slices of other buffers cannot be hashed, or have no find: all below takes bytes and nothing else.
        return _reply(bytes(data), at, 0)
    except _TooShortError:
        return None


def _reply(data: bytes, at: int, depth: int) -> tuple[Reply, int]:
    end = data.find(CRLF, at, at + MAX_LINE_BYTES)
    if end < 0:
        if at < len(data) and data[at : at + 1] not in _KINDS:
            raise _malformed("an unknown mark", data, at)
        if len(data) - at > MAX_LINE_BYTES:
            raise MalformedReplyError(f"a reply's first line is longer than {MAX_LINE_BYTES} bytes")
        raise _TooShortError
    kind = _KINDS.get(data[at : at + 1])
    if kind is None:
        raise _malformed("an unknown mark", data, at)
    line = data[at + 1 : end]
    try:
        return kind(data, line, end + len(CRLF), depth)
    except ValueError as error:
        if isinstance(error, MalformedReplyError):
            raise
        raise _malformed(str(error), data, at) from error


def _simple(_data: bytes, line: bytes, body: int, _depth: int) -> tuple[Reply, int]:
    return line, body


def _error(_data: bytes, line: bytes, body: int, _depth: int) -> tuple[Reply, int]:
    return ErrorReply(line.decode(errors="replace")), body


def _integer(_data: bytes, line: bytes, body: int, _depth: int) -> tuple[Reply, int]:
    digits = line.removeprefix(b"-") if line[:1] == b"-" else line.removeprefix(b"+")
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        raise ValueError("no whole number")
    return int(line), body


def _double(_data: bytes, line: bytes, body: int, _depth: int) -> tuple[Reply, int]:
    if b"_" in line or line.strip() != line:  # which Python's float would let pass
        raise ValueError("no number")
    return float(line), body


def _boolean(_data: bytes, line: bytes, body: int, _depth: int) -> tuple[Reply, int]:
    if line not in (b"t", b"f"):
        raise ValueError("neither true nor false")
    return line == b"t", body


def _null(_data: bytes, line: bytes, body: int, _depth: int) -> tuple[Reply, int]:
    if line:
        raise ValueError("no null")
    return None, body


def _bulk(data: bytes, line: bytes, body: int, _depth: int) -> tuple[Reply, int]:
    if line == b"-1":
        return None, body
    end = body + _count(line, MAX_BULK_BYTES)
    mark = data[end : end + len(CRLF)]
    if mark != CRLF:
        if len(data) < end + len(CRLF) and mark == CRLF[: len(mark)]:
            raise _TooShortError
        raise ValueError("a string without a line's end")
    return data[body:end], end + len(CRLF)


def _bulk_error(data: bytes, line: bytes, body: int, depth: int) -> tuple[Reply, int]:
    text, end = _bulk(data, line, body, depth)
    if isinstance(text, bytes):
        return ErrorReply(text.decode(errors="replace")), end
    raise ValueError("an error without text")


def _verbatim(data: bytes, line: bytes, body: int, depth: int) -> tuple[Reply, int]:
    text, end = _bulk(data, line, body, depth)
    if not isinstance(text, bytes) or text[_VERBATIM_MARK - 1 : _VERBATIM_MARK] != b":":
        raise ValueError("a verbatim string without its mark")
    return text[_VERBATIM_MARK:], end


def _array(data: bytes, line: bytes, body: int, depth: int) -> tuple[Reply, int]:
    if line == b"-1":
        return None, body
    return _items(data, body, _count(line, MAX_ELEMENTS), depth)


def _map(data: bytes, line: bytes, body: int, depth: int) -> tuple[Reply, int]:
    items, end = _items(data, body, 2 * _count(line, MAX_ELEMENTS // 2), depth)
    try:
        return dict(zip(items[::2], items[1::2], strict=True)), end
    except TypeError as error:
        raise ValueError("a map with an aggregate as a key") from error


def _push(data: bytes, line: bytes, body: int, depth: int) -> tuple[Reply, int]:
    items, end = _items(data, body, _count(line, MAX_ELEMENTS), depth)
    return PushReply(items), end


def _attribute(data: bytes, line: bytes, body: int, depth: int) -> tuple[Reply, int]:
    # It counts as a level, so that a chain of attributes is bounded as well.
    _, end = _map(data, line, body, depth)
    return _reply(data, end, depth + 1)


def _items(data: bytes, at: int, count: int, depth: int) -> tuple[list[Reply], int]:
    if depth >= MAX_DEPTH:
        raise ValueError(f"aggregates lie deeper than {MAX_DEPTH} in one another")
    found = []
    for _ in range(count):
        item, at = _reply(data, at, depth + 1)
        found.append(item)
    return found, at


def _count(line: bytes, limit: int) -> int:
    if not line.isdigit() or len(line) > len(str(limit)) or int(line) > limit:
        raise ValueError(f"a length that is no number up to {limit}")
    return int(line)


def _malformed(why: str, data: bytes, at: int) -> MalformedReplyError:
    return MalformedReplyError(f"a reply began with {data[at : at + 40]!r}: {why}")


_KINDS: dict[bytes, Callable[[bytes, bytes, int, int], tuple[Reply, int]]] = {
    b"+": _simple,
    b"-": _error,
    b":": _integer,
    b"(": _integer,
    b",": _double,
    b"#": _boolean,
    b"_": _null,
    b"$": _bulk,
    b"!": _bulk_error,
    b"=": _verbatim,
    b"*": _array,
    b"~": _array,
    b"%": _map,
    b">": _push,
    b"|": _attribute,
}
