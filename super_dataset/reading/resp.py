"""The few words of the Redis protocol that a reader speaks, as bytes, and the lines that answer a GET.

Who sends them is :mod:`superdl.super_dataset.reading.connection`, who understands the replies to a batch's
GETs is :mod:`superdl.super_dataset.reading.scatter`. Replies of any other shape are
:mod:`superdl.super_wire.resp`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from superdl.super_wire.errors import CacheUnreachableError
from superdl.super_wire.keys import cache_keys, report_stream
from superdl.super_wire.report import REPORT_STREAM_MAXLEN
from superdl.super_wire.resp import CRLF, MAX_BULK_BYTES, encode_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.super_wire.report import ReadReport

__all__ = ["ASKING", "ProtocolDoubtError", "encode_gets", "encode_report", "parse_line"]

ASKING = encode_command(b"ASKING")
"""Goes before a GET where a node of a cluster has answered ``ASK``."""


_MAX_DIGITS = len(str(MAX_BULK_BYTES))  # Python refuses to read thousands of them, by an error of its own


class ProtocolDoubtError(CacheUnreachableError):
    """What came is not what can come: replies can no longer be told apart, so the connection must go."""


def encode_gets(sample_ids: bytes) -> list[bytes]:
    """A GET for each of the concatenated sample ids."""
    keys = cache_keys(sample_ids)
    if not keys:
        return []
    head = b"*2\r\n$3\r\nGET\r\n$%d\r\n" % len(keys[0])
    return [head + key + CRLF for key in keys]


def encode_report(job: str, report: ReadReport) -> bytes:
    """The XADD that leaves a read report in the job's bounded stream."""
    pairs: Iterable[tuple[bytes, bytes]] = report.to_fields().items()
    fields = [word for pair in pairs for word in pair]
    return encode_command(
        b"XADD", report_stream(job), b"MAXLEN", b"~", b"%d" % REPORT_STREAM_MAXLEN, b"*", *fields
    )


def parse_line(
    line: bytes | bytearray | memoryview,
) -> tuple[Literal["bulk", "nil", "error", "simple"], int, str]:
    """What one reply line, without CRLF, announces: its kind, a bulk's length, other replies' text.

    Raises:
        ProtocolDoubtError: no reply to a reader's commands looks so.
    """
    line = bytes(line)
    mark, rest = line[:1], line[1:]
    if mark == b"$":
        if rest == b"-1":
            return "nil", 0, ""
        if rest.isdigit() and len(rest) <= _MAX_DIGITS and int(rest) <= MAX_BULK_BYTES:
            return "bulk", int(rest), ""
    elif mark == b"_" and not rest:
        return "nil", 0, ""
    elif mark == b"-":
        return "error", 0, rest.decode(errors="replace")
    elif mark in (b"+", b":"):
        return "simple", 0, rest.decode(errors="replace")
    msg = f"a reply began with {line[:40]!r}, which is no answer to what was asked"
    raise ProtocolDoubtError(msg)
