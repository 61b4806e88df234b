"""Group a request's samples into reads, and unpack the members of objects."""

from __future__ import annotations

import io
import threading
import zlib
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from superdl.lambda_prefetch.sources import SampleFailedError, fatal, read_object
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.objects import Span
from superdl.super_wire.parquet_pages import PagesError, check_pages
from superdl.super_wire.request import ROW_ENCODING, Outcome, is_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from superdl.super_wire.objects import Bucket
    from superdl.super_wire.request import PrefetchRequest

MAX_RANGE_BYTES = 16 * 2**20
# Largest gap between two members to read too: one or two photos that are already cached.
MAX_GAP_BYTES = 256 * 1024

_MAX_FOOTER_BYTES = 16 * 2**20
_FOOTER_READ_BYTES = 64 * 1024  # most footers are shorter
_FOOTER_CACHE_BYTES = 16 * 2**20  # of all footers in total; parsed footers take several times as much
_END_BYTES = 8  # after the footer: its length in four bytes, and the magic
_MAGIC = b"PAR1"
_ROWS_AT_A_TIME = 32

_LIST_AGAIN = "the object was truncated, or the key list is for another object. List its members again"


@dataclass(frozen=True, slots=True)
class Piece:
    """A whole object, neighbouring members, or rows of one row group and column, to read at once."""

    indices: list[int]  # in the request; members are ordered by offset
    span: Span | None = None  # of the members
    has_rows: bool = False


def pieces_of(request: PrefetchRequest, most_bytes: int) -> list[Piece]:
    """Group a request into pieces, ordered by first sample. Members are merged up to ``most_bytes``."""
    count, offsets, lengths = request.count, request.member_offsets, request.member_lengths
    objects = list(zip(request.keys, request.versions, strict=True))
    if not request.members:
        pieces = [Piece([index]) for index in range(len(objects))]
        # Keep a sample's parts together, because decoded parts wait for the others.
        return sorted(pieces, key=lambda piece: piece.indices[0] % count) if request.fields else pieces
    pieces = [Piece([index]) for index, member in enumerate(request.members) if not member]
    members = (index for index, member in enumerate(request.members) if member)
    ranges: list[Piece] = []
    groups: dict[tuple[object, ...], Piece] = {}
    for index in sorted(members, key=lambda index: (objects[index], offsets[index])):
        if request.encodings and is_row(request.encodings[index]):
            group_key = objects[index], offsets[index], request.encodings[index]
            groups.setdefault(group_key, Piece([], has_rows=True)).indices.append(index)
            continue
        begin, end = offsets[index], offsets[index] + lengths[index]
        # Members are sorted by offset, so a member can only extend the last range.
        last = ranges[-1] if ranges else None
        if last is not None and last.span is not None and objects[last.indices[0]] == objects[index]:
            span = Span(last.span.begin, max(last.span.end, end))
            if begin - last.span.end <= MAX_GAP_BYTES and span.size_bytes <= most_bytes:
                last.indices.append(index)
                ranges[-1] = Piece(last.indices, span)
                continue
        # A single member may be larger than most_bytes.
        ranges.append(Piece([index], Span(begin, end)))
    pieces += [*ranges, *groups.values()]
    return sorted(pieces, key=lambda piece: min(index % count for index in piece.indices))


def content_of(request: PrefetchRequest, index: int, data: bytes | bytearray | memoryview) -> bytes:
    """Return the bytes to decode for a sample, decompressed up to the request's limit."""
    if not request.encodings or request.encodings[index] != "deflate":
        return bytes(data)
    limit_bytes = request.limits.object_bytes
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS)  # raw deflate
    try:
        content = unpacking.decompress(data, limit_bytes + 1)  # one more byte shows that it is too large
    except zlib.error as error:
        raise fatal("undecodable", f"not a deflate stream: {error}") from error
    if len(content) > limit_bytes:
        raise fatal("too_large", f"exceeds the limit of {limit_bytes} bytes when uncompressed")
    if not unpacking.eof or unpacking.unused_data:
        where = "after" if unpacking.eof else "before"
        raise fatal("undecodable", f"the {len(data)} bytes end {where} the deflate stream does")
    return content


@dataclass(slots=True)
class Rows:
    """Contents or failures of rows by index in the request, with the number of requests and bytes read."""

    contents: dict[int, bytes | SampleFailedError] = field(default_factory=dict)
    requests: int = 0
    read_bytes: int = 0


def need_pyarrow() -> None:
    """Raise ``ConfigError`` if the package that reads Parquet is missing."""
    try:
        # Imported for the first row, because most functions read no Parquet and may not have it.
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "the samples are rows of Parquet files, but this function has no pyarrow: package it with "
            f"infra/function/parquet-requirements.txt, as described in docs/data.md ({error})"
        ) from error


def read_rows(
    request: PrefetchRequest, indices: Sequence[int], bucket: Bucket, reserve: Callable[[int], None]
) -> Rows:
    """Read the rows at ``indices`` of a request, all in one row group and column. Rows fail independently.

    ``reserve`` is called once with the total of the column's compressed and uncompressed bytes.
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
            f"the object ends at {span.begin + len(data)}, but row group {group} is listed at "
            f"{span.begin} to {span.end}: {_LIST_AGAIN}",
        )
    try:
        check_pages(data, unpacked_bytes, limit_bytes)  # pyarrow allocates the sizes in page headers
    except PagesError as error:
        raise fatal("too_large" if error.is_large else "undecodable", str(error)) from error
    rows = sorted((request.member_lengths[index], index) for index in indices)
    contents = _contents(
        _ColumnFile(data, span), footer, group, column, rows_at_a_time, [row for row, _ in rows]
    )
    kept_bytes = 0
    for (_, index), content in zip(rows, contents, strict=False):
        kept_bytes += len(content) if isinstance(content, bytes) else 0
        result.contents[index] = content
        if kept_bytes > limit_bytes:  # each row may fit in a smaller request
            message = f"the rows of this request exceed {limit_bytes} bytes when uncompressed"
            result.contents[index] = SampleFailedError(Outcome.SOURCE_ERROR, message)
    for row, index in rows[len(result.contents) :]:
        result.contents[index] = SampleFailedError(
            Outcome.CHANGED, f"row group {group} has no row {row}: {_LIST_AGAIN}"
        )
    return result


def _contents(
    column_file: _ColumnFile, footer: Any, group: int, column: str, rows_at_a_time: int, rows: Sequence[int]
) -> Iterator[bytes | SampleFailedError]:
    """Yield the bytes or failure of each row. ``rows`` must be in ascending order."""
    import pyarrow as pa
    from pyarrow import parquet

    begin, remaining = 0, deque(rows)
    try:
        # Without read_dictionary, values that many rows share would be copied for each row. With pre_buffer,
        # pyarrow's threads could still hold the file when Python exits, and abort it with SIGABRT.
        file = parquet.ParquetFile(
            column_file,
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
        raise fatal("undecodable", f"row group {group} is not valid Parquet: {error}") from error


def _leaf(array: Any, row: int) -> bytes | SampleFailedError:
    """Return the bytes of a row, which may be nested in structs with a single field."""
    value = array[row].as_py()
    while isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    if value is None:
        return fatal("empty", "the row contains no bytes (does it refer to a file instead?)")
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        return fatal("undecodable", f"the row contains a {type(value).__name__} instead of bytes")
    return value


class _ColumnFile(io.BytesIO):
    """A file for pyarrow that contains only one span, at its original offset."""

    def __init__(self, data: bytes | bytearray, span: Span) -> None:
        super().__init__(data)
        self._begin = span.begin

    def tell(self) -> int:
        return super().tell() + self._begin

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        # A negative position raises ValueError: a column is not at the location in the footer.
        return super().seek(offset - self._begin if whence == io.SEEK_SET else offset, whence) + self._begin


# Parsed footers and their lengths, by bucket, key and version, most recently used last.
_footers: OrderedDict[tuple[str, str, str], tuple[int, Any]] = OrderedDict()
_footers_lock = threading.Lock()
# A lock for each footer that is being read, for which other threads wait. Weak values drop a lock with the
# last thread that uses it.
_reading: WeakValueDictionary[tuple[str, str, str], threading.Lock] = WeakValueDictionary()


def _footer(file: tuple[str, str, str], bucket: Bucket, counts: Rows) -> Any:
    with _footers_lock:
        reading = _reading.setdefault(file, threading.Lock())
    with reading:
        with _footers_lock:
            if file in _footers:
                _footers.move_to_end(file)
                return _footers[file][1]
        size_bytes, footer = _read_footer(file, bucket, counts)
        with _footers_lock:
            _footers[file] = size_bytes, footer
            # Keep at least the latest footer, however long it is.
            while len(_footers) > 1 and sum(size for size, _ in _footers.values()) > _FOOTER_CACHE_BYTES:
                _footers.popitem(last=False)
    return footer


def _read_footer(file: tuple[str, str, str], bucket: Bucket, counts: Rows) -> tuple[int, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    end = _read_end(file, _FOOTER_READ_BYTES, bucket, counts)
    size_bytes = int.from_bytes(end[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
    if len(end) < _END_BYTES or not end.endswith(_MAGIC):
        raise fatal("undecodable", "the object is not a Parquet file, or was truncated")
    if size_bytes > _MAX_FOOTER_BYTES:
        raise fatal(
            "too_large",
            f"the file's footer takes {size_bytes} bytes, over the limit of {_MAX_FOOTER_BYTES}",
        )
    # A shorter response is the whole object, so there is nothing more to read.
    if size_bytes > len(end) == _FOOTER_READ_BYTES:
        end = _read_end(file, size_bytes, bucket, counts)
    try:
        return size_bytes, parquet.read_metadata(pa.BufferReader(end[-size_bytes:]))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise fatal("undecodable", f"the file's footer is corrupt: {error}") from error


def _read_end(file: tuple[str, str, str], size_bytes: int, bucket: Bucket, counts: Rows) -> bytes | bytearray:
    _, key, version = file
    span = Span(-size_bytes, 0)
    data = read_object(bucket, key, version, limit_bytes=size_bytes, reserve=lambda _: None, span=span)
    counts.requests += 1
    counts.read_bytes += len(data)
    return data


def _locate(footer: Any, group: int, column: str, limit_bytes: int) -> tuple[Span, int, int]:
    """Return a column chunk's span, its uncompressed size in bytes, and the number of rows per batch."""
    if group >= footer.num_row_groups:
        raise SampleFailedError(
            Outcome.CHANGED,
            f"the object has {footer.num_row_groups} row groups, so row group {group} does not exist: "
            f"{_LIST_AGAIN}",
        )
    schema = footer.schema
    at = next((at for at in range(len(schema)) if schema.column(at).path == column), None)
    if at is None:
        raise SampleFailedError(Outcome.CHANGED, f"the object has no column {column[:200]!r}: {_LIST_AGAIN}")
    leaf, chunk = schema.column(at), footer.row_group(group).column(at)
    if leaf.max_repetition_level:  # a few bytes could declare billions of items
        raise fatal("undecodable", "the row contains a list instead of bytes")
    begin = chunk.data_page_offset
    if chunk.dictionary_page_offset:  # a dictionary page precedes the data pages
        begin = min(begin, chunk.dictionary_page_offset)
    size_bytes, unpacked_bytes = chunk.total_compressed_size, chunk.total_uncompressed_size
    if begin < 0 or size_bytes < 1 or unpacked_bytes < 0:
        raise fatal("undecodable", f"the file's footer is corrupt: row group {group} has no valid position")
    if max(size_bytes, unpacked_bytes) > limit_bytes:
        raise fatal(
            "too_large",
            f"column {column[:200]!r} of row group {group} takes {size_bytes} bytes ({unpacked_bytes} "
            f"uncompressed), over the limit of {limit_bytes}: write smaller row groups, because each is read "
            "as a whole",
        )
    if leaf.length > limit_bytes:
        raise fatal("too_large", f"the rows take {leaf.length} bytes each, over the limit of {limit_bytes}")
    # Null values of a fixed length occupy that length, too.
    rows_at_a_time = min(_ROWS_AT_A_TIME, limit_bytes // max(leaf.length, 1))
    return Span(begin, begin + size_bytes), unpacked_bytes, rows_at_a_time
