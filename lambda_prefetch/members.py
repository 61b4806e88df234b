"""Members of objects: group them into reads, and unpack their bytes."""

from __future__ import annotations

import io
import threading
import zlib
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from superdl.lambda_prefetch.sources import SampleFailedError, read_object, spoiled
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.objects import Span
from superdl.super_wire.parquet_pages import PagesError, check_pages
from superdl.super_wire.request import ROW_ENCODING, Outcome, is_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from superdl.super_wire.objects import Bucket
    from superdl.super_wire.request import PrefetchRequest

MAX_RANGE_BYTES = 16 * 2**20
# Bytes between two members that may be read for nothing: one or two photos that are already cached.
MAX_GAP_BYTES = 256 * 1024

_MAX_FOOTER_BYTES = 16 * 2**20
_FOOTER_READ_BYTES = 64 * 1024  # most footers are shorter
_KEPT_BYTES = 16 * 2**20  # of all footers together; parsed they take a multiple
_END_BYTES = 8  # behind the footer: its length in four bytes, and the magic
_MAGIC = b"PAR1"
_ROWS_AT_A_TIME = 32

_LIST_AGAIN = "the object was truncated, or the key list is for another object. List its members again"


@dataclass(frozen=True, slots=True)
class MemberRange:
    """Members that are read together: their indices in the request, ordered by offset."""

    indices: list[int]
    span: Span | None  # of their object; None for rows of one row group and column


def ranges_of(request: PrefetchRequest, most_bytes: int) -> list[MemberRange]:
    """Group all members into ranges of at most ``most_bytes``, ordered by each range's first sample."""
    offsets, lengths = request.member_offsets, request.member_lengths
    objects = list(zip(request.keys, request.versions, strict=True))
    own = (index for index in range(len(objects)) if request.members[index])
    ranges: list[MemberRange] = []
    groups: dict[tuple[object, ...], MemberRange] = {}
    for index in sorted(own, key=lambda index: (objects[index], offsets[index])):
        if request.encodings and is_row(request.encodings[index]):
            place = objects[index], offsets[index], request.encodings[index]
            groups.setdefault(place, MemberRange([], None)).indices.append(index)
            continue
        begin, end = offsets[index], offsets[index] + lengths[index]
        # Members come by ascending offset, so only the last range can take this one.
        last = ranges[-1] if ranges else None
        if last is not None and last.span is not None and objects[last.indices[0]] == objects[index]:
            span = Span(last.span.begin, max(last.span.end, end))
            if begin - last.span.end <= MAX_GAP_BYTES and span.size_bytes <= most_bytes:
                last.indices.append(index)
                ranges[-1] = MemberRange(last.indices, span)
                continue
        # A member may be larger than most_bytes.
        ranges.append(MemberRange([index], Span(begin, end)))
    count = request.count
    return sorted(
        [*ranges, *groups.values()], key=lambda members: min(index % count for index in members.indices)
    )


def content_of(request: PrefetchRequest, index: int, data: bytes | bytearray | memoryview) -> bytes:
    """Return a sample's bytes for its decoder, decompressed up to the request's limit."""
    if not request.encodings or request.encodings[index] != "deflate":
        return bytes(data)
    limit_bytes = request.limits.object_bytes
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS)  # raw deflate
    try:
        content = unpacking.decompress(data, limit_bytes + 1)  # one more shows that it is too large
    except zlib.error as error:
        raise spoiled("undecodable", f"it is not a deflate stream: {error}") from error
    if len(content) > limit_bytes:
        raise spoiled("too_large", f"it exceeds the limit of {limit_bytes} bytes when uncompressed")
    if not unpacking.eof or unpacking.unused_data:
        where = "after" if unpacking.eof else "before"
        raise spoiled("undecodable", f"its {len(data)} bytes end {where} its deflate stream does")
    return content


@dataclass(slots=True)
class Rows:
    """Contents or failures of rows, by index in the request, and counts of the reads for them."""

    contents: dict[int, bytes | SampleFailedError] = field(default_factory=dict)
    requests: int = 0
    read_bytes: int = 0


def need_pyarrow() -> None:
    """Raise ``ConfigError`` if the package that reads Parquet is missing."""
    try:
        # Imported for the first row: functions that read no Parquet do without it.
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "the samples are rows of Parquet files, but this function has no pyarrow: package it with "
            f"infra/function/parquet-requirements.txt, as described in docs/data.md ({error})"
        ) from error


def read_rows(
    request: PrefetchRequest, indices: Sequence[int], bucket: Bucket, reserve: Callable[[int], None]
) -> Rows:
    """Read the rows at ``indices`` of a request, all from one row group and column. Each can fail alone.

    ``reserve`` is called once, with the sum of the column's compressed and uncompressed bytes.
    """
    first, result = indices[0], Rows()
    key, version, group = request.keys[first], request.versions[first], request.member_offsets[first]
    column = request.encodings[first].removeprefix(ROW_ENCODING)
    limit_bytes = request.limits.object_bytes
    footer = _footer((request.bucket, key, version), bucket, result)
    span, unpacked_bytes, rows_at_a_time = _locate(footer, group, column, limit_bytes)
    data = read_object(
        *(bucket, key, version),
        limit_bytes=limit_bytes,
        reserve=lambda size_bytes: reserve(size_bytes + unpacked_bytes),
        span=span,
    )
    result.requests += 1
    result.read_bytes += len(data)
    if len(data) < span.size_bytes:
        raise SampleFailedError(
            Outcome.CHANGED,
            f"its object ends at {span.begin + len(data)}, but its row group {group} should be at "
            f"{span.begin} to {span.end}: {_LIST_AGAIN}",
        )
    try:
        check_pages(data, unpacked_bytes, limit_bytes)  # pyarrow allocates what page headers declare
    except PagesError as error:
        raise spoiled("too_large" if error.is_large else "undecodable", str(error)) from error
    rows = sorted((request.member_lengths[index], index) for index in indices)
    contents = _contents(_Piece(data, span), footer, group, column, rows_at_a_time, [row for row, _ in rows])
    kept_bytes = 0
    for (_, index), content in zip(rows, contents, strict=False):
        kept_bytes += len(content) if isinstance(content, bytes) else 0
        result.contents[index] = content
        if kept_bytes > limit_bytes:  # each may fit in another request
            why = f"the rows of this request exceed {limit_bytes} bytes when uncompressed"
            result.contents[index] = SampleFailedError(Outcome.SOURCE_ERROR, why)
    for row, index in rows[len(result.contents) :]:
        result.contents[index] = SampleFailedError(
            Outcome.CHANGED, f"its row group {group} has no row {row}: {_LIST_AGAIN}"
        )
    return result


def _contents(
    piece: _Piece, footer: Any, group: int, column: str, rows_at_a_time: int, rows: Sequence[int]
) -> Iterator[bytes | SampleFailedError]:
    """Yield the bytes or the failure of each of these rows, which are in ascending order."""
    import pyarrow as pa
    from pyarrow import parquet

    begin, remaining = 0, deque(rows)
    try:
        # read_dictionary: values that many rows share would otherwise be copied per row. No pre_buffer:
        # pyarrow's threads that still hold the file at Python's exit would abort it by SIGABRT.
        file = parquet.ParquetFile(
            piece,
            metadata=footer,
            read_dictionary=[column],
            pre_buffer=False,
            page_checksum_verification=True,
        )
        batches = file.iter_batches(rows_at_a_time, row_groups=[group], columns=[column], use_threads=False)
        for batch in batches:
            while remaining and remaining[0] < begin + batch.num_rows:
                yield _leaf(batch.column(0), remaining.popleft() - begin)
            begin += batch.num_rows
    except MemoryError:  # ArrowMemoryError is one
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, TypeError) as error:
        raise spoiled("undecodable", f"its row group {group} is not valid Parquet: {error}") from error


def _leaf(array: Any, row: int) -> bytes | SampleFailedError:
    """Return a row's bytes, which may be in nested structs with one field."""
    value = array[row].as_py()
    while isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    if value is None:
        return spoiled("empty", "its row contains no bytes (does it refer to a file instead?)")
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        return spoiled("undecodable", f"its row contains a {type(value).__name__} instead of bytes")
    return value


class _Piece(io.RawIOBase):
    """A seekable file for pyarrow that contains only one span of its bytes."""

    def __init__(self, data: bytes | bytearray, span: Span) -> None:
        super().__init__()
        self._data, self._span, self._at = memoryview(data), span, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._span.end)[whence]  # the file ends with the span
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin = self._at - self._span.begin
        if begin < 0:
            raise OSError("a column is not where the footer says it is")
        chunk = bytes(self._data[begin : None if size < 0 else begin + size])
        self._at += len(chunk)
        return chunk


# Parsed footers and their lengths, by bucket, key and version, most recently used last.
_kept: OrderedDict[tuple[str, str, str], tuple[int, Any]] = OrderedDict()
_kept_lock = threading.Lock()
# A lock per footer that is being read: other threads wait for it instead of reading it
# too. Weak values: a lock goes with the last thread that holds it.
_reading: WeakValueDictionary[tuple[str, str, str], threading.Lock] = WeakValueDictionary()


def _footer(place: tuple[str, str, str], bucket: Bucket, counts: Rows) -> Any:
    with _kept_lock:
        reading = _reading.setdefault(place, threading.Lock())
    with reading:
        with _kept_lock:
            if place in _kept:
                _kept.move_to_end(place)
                return _kept[place][1]
        size_bytes, footer = _read_footer(place, bucket, counts)
        with _kept_lock:
            _kept[place] = size_bytes, footer
            # Keep at least the newest footer, however long it is.
            while len(_kept) > 1 and sum(size for size, _ in _kept.values()) > _KEPT_BYTES:
                _kept.popitem(last=False)
    return footer


def _read_footer(place: tuple[str, str, str], bucket: Bucket, counts: Rows) -> tuple[int, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    end = _read_end(place, _FOOTER_READ_BYTES, bucket, counts)
    size_bytes = int.from_bytes(end[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
    if len(end) < _END_BYTES or not end.endswith(_MAGIC):
        raise spoiled("undecodable", "its object is not a Parquet file, or it was truncated")
    if size_bytes > _MAX_FOOTER_BYTES:
        raise spoiled(
            "too_large",
            f"the footer of its file takes {size_bytes} bytes, over the limit of {_MAX_FOOTER_BYTES}",
        )
    # A shorter answer is the whole object, and reading more of it would not help.
    if size_bytes > len(end) == _FOOTER_READ_BYTES:
        end = _read_end(place, size_bytes, bucket, counts)
    try:
        return size_bytes, parquet.read_metadata(pa.BufferReader(end[-size_bytes:]))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise spoiled("undecodable", f"the footer of its file is corrupt: {error}") from error


def _read_end(
    place: tuple[str, str, str], size_bytes: int, bucket: Bucket, counts: Rows
) -> bytes | bytearray:
    _, key, version = place
    span = Span(-size_bytes, 0)
    data = read_object(bucket, key, version, limit_bytes=size_bytes, reserve=lambda _: None, span=span)
    counts.requests += 1
    counts.read_bytes += len(data)
    return data


def _locate(footer: Any, group: int, column: str, limit_bytes: int) -> tuple[Span, int, int]:
    """Return a column chunk's span, its uncompressed size in bytes, and the rows per batch."""
    if group >= footer.num_row_groups:
        raise SampleFailedError(
            Outcome.CHANGED,
            f"its object has {footer.num_row_groups} row groups, so row group {group} does not exist: "
            f"{_LIST_AGAIN}",
        )
    schema = footer.schema
    at = next((at for at in range(len(schema)) if schema.column(at).path == column), None)
    if at is None:
        raise SampleFailedError(Outcome.CHANGED, f"its object has no column {column[:200]!r}: {_LIST_AGAIN}")
    leaf, chunk = schema.column(at), footer.row_group(group).column(at)
    if leaf.max_repetition_level:  # a few bytes may declare billions of items
        raise spoiled("undecodable", "its row contains a list instead of bytes")
    begin = chunk.data_page_offset
    if chunk.dictionary_page_offset:  # a dictionary page precedes the data pages
        begin = min(begin, chunk.dictionary_page_offset)
    size_bytes, unpacked_bytes = chunk.total_compressed_size, chunk.total_uncompressed_size
    if begin < 0 or size_bytes < 1 or unpacked_bytes < 0:
        raise spoiled(
            "undecodable", f"the footer of its file is corrupt: row group {group} has no valid position"
        )
    if max(size_bytes, unpacked_bytes) > limit_bytes:
        raise spoiled(
            "too_large",
            f"column {column[:200]!r} of its row group {group} takes {size_bytes} bytes ({unpacked_bytes} "
            f"uncompressed), over the limit of {limit_bytes}: write smaller row groups, since each is read "
            "as a whole",
        )
    if leaf.length > limit_bytes:
        raise spoiled("too_large", f"its rows take {leaf.length} bytes each, over the limit of {limit_bytes}")
    # Null values of a fixed length take that length, too.
    rows_at_a_time = min(_ROWS_AT_A_TIME, limit_bytes // max(leaf.length, 1))
    return Span(begin, begin + size_bytes), unpacked_bytes, rows_at_a_time
