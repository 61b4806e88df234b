"""Members of objects: which of them are read together, and how their bytes are unpacked.

Members of one object that are close together are read as one *range* of it: one GET, one system call. Rows of
a row group of a Parquet file are read together by :mod:`superdl.lambda_prefetch.row_groups`. A range's bytes
stay in the buffer that received them until the last of its members is decoded.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.sources import spoiled
from superdl.super_wire.objects import Span
from superdl.super_wire.request import is_row

if TYPE_CHECKING:
    from superdl.super_wire.request import PrefetchRequest

__all__ = ["MAX_RANGE_BYTES", "MemberRange", "content_of", "ranges_of"]

MAX_RANGE_BYTES = 16 * 2**20
MAX_GAP_BYTES = 256 * 1024
"""Bytes between two members that may be read for nothing: one or two photos that are already cached."""

_RAW_DEFLATE = -zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class MemberRange:
    """The members at ``indices`` of a request, by offset, and the ``span`` of their object to read for them.

    Without a ``span`` they are rows of one row group, and of one column.
    """

    indices: list[int]
    span: Span | None


def ranges_of(request: PrefetchRequest, most_bytes: int) -> list[MemberRange]:
    """Group all members of a request into ranges, ordered by each range's first sample in the request.

    A range has at most ``most_bytes``, unless a single member is larger.
    """
    offsets, lengths = request.member_offsets, request.member_lengths
    objects = list(zip(request.keys, request.versions, strict=True))
    own = (index for index in range(len(objects)) if request.members[index])
    order = sorted(own, key=lambda index: (objects[index], offsets[index]))
    ranges: list[MemberRange] = []
    groups: dict[tuple[object, ...], MemberRange] = {}
    for index in order:
        if request.encodings and is_row(request.encodings[index]):
            place = objects[index], offsets[index], request.encodings[index]
            groups.setdefault(place, MemberRange([], None)).indices.append(index)
            continue
        begin, end = offsets[index], offsets[index] + lengths[index]
        # Members come by rising offset, so only the last range can take this one.
        last = ranges[-1] if ranges else None
        if last is not None and last.span is not None and objects[last.indices[0]] == objects[index]:
            span = Span(last.span.begin, max(last.span.end, end))
            if begin - last.span.end <= MAX_GAP_BYTES and span.size_bytes <= most_bytes:
                last.indices.append(index)
                ranges[-1] = MemberRange(last.indices, span)
                continue
        ranges.append(MemberRange([index], Span(begin, end)))
    count = len(request.ids)
    return sorted([*ranges, *groups.values()], key=lambda one: min(index % count for index in one.indices))


def content_of(request: PrefetchRequest, index: int, data: bytes | bytearray | memoryview) -> bytes:
    """Return a sample's bytes as its decoder takes them, decompressed if necessary.

    Raises:
        SampleFailedError: decompression fails, or gives more than the request allows.
    """
    if not request.encodings or request.encodings[index] != "deflate":
        return bytes(data)
    limit_bytes = request.limits.object_bytes
    unpacking = zlib.decompressobj(_RAW_DEFLATE)
    try:
        content = unpacking.decompress(data, limit_bytes + 1)  # one more shows that it is too large
    except zlib.error as error:
        raise spoiled("undecodable", f"it is no deflate stream: {error}") from error
    if len(content) > limit_bytes:
        raise spoiled("too_large", f"unpacked it is over the limit of {limit_bytes} bytes")
    if not unpacking.eof or unpacking.unused_data:
        where = "behind" if unpacking.eof else "before"
        raise spoiled("undecodable", f"its {len(data)} bytes end {where} the end of its deflate stream")
    return content
