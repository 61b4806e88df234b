"""Rows of Parquet files: a row group with requested rows is read once, one column, and decoded whole.

A file's *footer* locates its row groups. It takes a GET of its own, two if it is long, and is kept for later
requests. pyarrow decodes; it is imported for the first row, so that functions which read no Parquet do
without it.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from superdl.lambda_prefetch.sources import SampleFailedError, read_object, spoiled
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.objects import Span
from superdl.super_wire.parquet_pages import PagesError, check_pages
from superdl.super_wire.request import ROW_ENCODING, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from superdl.super_wire.objects import Bucket
    from superdl.super_wire.request import PrefetchRequest

__all__ = ["MAX_FOOTER_BYTES", "Rows", "need_pyarrow", "read_rows"]

MAX_FOOTER_BYTES = 16 * 2**20
_FOOTER_READ_BYTES = 64 * 1024  # most footers are shorter
_KEPT_BYTES = 16 * 2**20  # of all footers together; parsed they take a multiple
_END_BYTES = 8  # behind the footer: its length in four bytes, and the magic
_MAGIC = b"PAR1"
_ROWS_AT_A_TIME = 32

_LIST_AGAIN = "the object was cut off, or the key list is of another; list its members again"


@dataclass(slots=True)
class Rows:
    """Contents or failures of rows, by index in the request, and the reads for them."""

    contents: dict[int, bytes | SampleFailedError] = field(default_factory=dict)
    requests: int = 0
    read_bytes: int = 0


def need_pyarrow() -> None:
    """Check that Parquet can be read; ``ConfigError`` names the missing package."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "the samples are rows of Parquet files, and this function has no pyarrow: pack it by "
            f"infra/function/parquet-requirements.txt, as docs/data.md says ({error})"
        ) from error


def read_rows(
    request: PrefetchRequest, indices: Sequence[int], bucket: Bucket, reserve: Callable[[int], None]
) -> Rows:
    """Read the rows at ``indices`` of a request, all of one row group and column.

    ``reserve`` is called once, with the sum of the column's compressed and uncompressed bytes.

    Raises:
        SampleFailedError: none of them can be read; a single row's failure is returned in its place.
    """
    first, result = indices[0], Rows()
    key, version, group = request.keys[first], request.versions[first], request.member_offsets[first]
    column = request.encodings[first].removeprefix(ROW_ENCODING)
    limit_bytes = request.limits.object_bytes
    footer = _footer((request.bucket, key, version), bucket, result)
    span, unpacked_bytes, rows_at_a_time = _place_of(footer, group, column, limit_bytes)
    data = read_object(
        bucket,
        key,
        version,
        limit_bytes=limit_bytes,
        reserve=lambda size_bytes: reserve(size_bytes + unpacked_bytes),
        span=span,
    )
    result.requests += 1
    result.read_bytes += len(data)
    if len(data) < span.size_bytes:
        raise SampleFailedError(
            Outcome.CHANGED,
            f"its row group {group} lies at {span.begin} to {span.end} of its object, which ends at "
            f"{span.begin + len(data)}: {_LIST_AGAIN}",
        )
    try:
        check_pages(data, unpacked_bytes, limit_bytes)  # pyarrow allocates what page headers declare
    except PagesError as error:
        raise spoiled("too_large" if error.is_large else "undecodable", str(error)) from error
    rows = [(request.member_lengths[index], index) for index in indices]
    file = _Piece(data, span), footer
    _decode(file, (group, column), rows_at_a_time, sorted(rows), limit_bytes, result.contents)
    for row, index in rows:
        if index not in result.contents:
            result.contents[index] = SampleFailedError(
                Outcome.CHANGED, f"its row group {group} has no row {row}: {_LIST_AGAIN}"
            )
    return result


def _decode(
    piece_and_footer: tuple[_Piece, Any],
    place: tuple[int, str],
    rows_at_a_time: int,
    rows: list[tuple[int, int]],
    limit_bytes: int,
    contents: dict[int, bytes | SampleFailedError],
) -> None:
    """Fill in the contents of ``rows``: pairs of row number and index, sorted by number."""
    import pyarrow as pa
    from pyarrow import parquet

    piece, footer = piece_and_footer
    (group, column), remaining, begin, kept_bytes = place, iter(rows), 0, 0
    row, index = next(remaining)
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
            while row < begin + batch.num_rows:
                value = _leaf(batch.column(0), row - begin)
                kept_bytes += len(value) if isinstance(value, bytes) else 0
                if kept_bytes > limit_bytes:  # each may fit in another request
                    why = f"rows of one request unpack to more than {limit_bytes} bytes"
                    value = SampleFailedError(Outcome.SOURCE_ERROR, why)
                contents[index] = value
                row, index = next(remaining, (-1, -1))
                if index < 0:
                    return
            begin += batch.num_rows
    except MemoryError:  # ArrowMemoryError is one
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, TypeError) as error:
        raise spoiled("undecodable", f"its row group {group} is no Parquet, or broken: {error}") from error


def _leaf(array: Any, row: int) -> bytes | SampleFailedError:
    """Return a row's bytes, out of nested structs of one field."""
    value = array[row].as_py()
    while isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    if value is None:
        return spoiled("empty", "its row has no bytes (does it name a file instead?)")
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        return spoiled("undecodable", f"its row holds no bytes, but a {type(value).__name__}")
    return value


class _Piece(io.RawIOBase):
    """A seekable file for pyarrow, with only one span of its bytes."""

    def __init__(self, data: bytes | bytearray, span: Span) -> None:
        super().__init__()
        self._data, self._span, self._at = memoryview(data), span, 0

    def readable(self) -> bool:
        """Return ``True``."""
        return True

    def seekable(self) -> bool:
        """Return ``True``."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position; the file ends with the span."""
        self._at = offset + (0, self._at, self._span.end)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return bytes of the span; ``OSError`` for a place before it."""
        begin = self._at - self._span.begin
        if begin < 0:
            raise OSError("a column lies elsewhere than its footer says")
        chunk = bytes(self._data[begin : None if size < 0 else begin + size])
        self._at += len(chunk)
        return chunk


# Parsed footers and their lengths, by bucket, key and version, most recently used last.
_kept: OrderedDict[tuple[str, str, str], tuple[int, Any]] = OrderedDict()
_kept_lock = threading.Lock()
_reading: WeakValueDictionary[tuple[str, str, str], threading.Lock] = WeakValueDictionary()


def _footer(place: tuple[str, str, str], bucket: Bucket, found: Rows) -> Any:
    """Return pyarrow's metadata of an object's footer, and count its reads."""
    with _kept_lock:
        # Weak values: the lock goes with the last thread that holds it.
        reading = _reading.setdefault(place, threading.Lock())
    with reading:
        with _kept_lock:
            if place in _kept:
                _kept.move_to_end(place)
                return _kept[place][1]
        return _read_footer(place, bucket, found)


def _read_footer(place: tuple[str, str, str], bucket: Bucket, found: Rows) -> Any:
    end = _read_end(place, _FOOTER_READ_BYTES, bucket, found)
    size_bytes = int.from_bytes(end[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
    if len(end) < _END_BYTES or not end.endswith(_MAGIC):
        raise spoiled("undecodable", "its object is no Parquet file, or was cut off")
    if size_bytes > MAX_FOOTER_BYTES:
        raise spoiled(
            "too_large", f"its file's footer has {size_bytes} bytes; at most {MAX_FOOTER_BYTES} are read"
        )
    # A shorter answer is the whole object, and reading more of it would not help.
    if size_bytes > len(end) == _FOOTER_READ_BYTES:
        end = _read_end(place, size_bytes, bucket, found)
    footer = _parsed(end[-size_bytes:])
    with _kept_lock:
        _kept[place] = size_bytes, footer
        # Keep at least the newest footer, however long it is.
        while len(_kept) > 1 and sum(size for size, _ in _kept.values()) > _KEPT_BYTES:
            _kept.popitem(last=False)
    return footer


def _read_end(place: tuple[str, str, str], size_bytes: int, bucket: Bucket, found: Rows) -> bytes | bytearray:
    _, key, version = place
    span = Span(-size_bytes, 0)
    data = read_object(bucket, key, version, limit_bytes=size_bytes, reserve=lambda _: None, span=span)
    found.requests += 1
    found.read_bytes += len(data)
    return data


def _parsed(footer: bytes | bytearray) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.read_metadata(pa.BufferReader(footer))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise spoiled("undecodable", f"its file's footer is broken: {error}") from error


def _place_of(footer: Any, group: int, column: str, limit_bytes: int) -> tuple[Span, int, int]:
    """Return a column chunk's span, its bytes unpacked, and rows per batch."""
    if group >= footer.num_row_groups:
        raise SampleFailedError(
            Outcome.CHANGED, f"its object has {footer.num_row_groups} row groups, no {group}: {_LIST_AGAIN}"
        )
    schema = footer.schema
    places = [place for place in range(len(schema)) if schema.column(place).path == column]
    if not places:
        raise SampleFailedError(Outcome.CHANGED, f"its object has no column {column[:200]!r}: {_LIST_AGAIN}")
    leaf = schema.column(places[0])
    if leaf.max_repetition_level:  # a few bytes may declare billions of items
        raise spoiled("undecodable", "its row holds no bytes, but a list")
    chunk = footer.row_group(group).column(places[0])
    # A dictionary page precedes the data pages, if there is one.
    begin = chunk.data_page_offset
    if chunk.dictionary_page_offset:
        begin = min(begin, chunk.dictionary_page_offset)
    size_bytes, unpacked_bytes = chunk.total_compressed_size, chunk.total_uncompressed_size
    if begin < 0 or size_bytes < 1 or unpacked_bytes < 0:
        raise spoiled("undecodable", f"its file's footer is broken: row group {group} lies nowhere")
    if max(size_bytes, unpacked_bytes) > limit_bytes:
        raise spoiled(
            "too_large",
            f"{column[:200]!r} of its row group {group} has {size_bytes} bytes, {unpacked_bytes} unpacked, "
            f"over the limit of {limit_bytes}: row groups are read whole, write smaller ones",
        )
    # Null values of a fixed length take that length, too.
    rows_at_a_time = min(_ROWS_AT_A_TIME, limit_bytes // max(leaf.length, 1))
    if leaf.length > limit_bytes:
        raise spoiled("too_large", f"its rows have {leaf.length} bytes, over the limit of {limit_bytes}")
    return Span(begin, begin + size_bytes), unpacked_bytes, rows_at_a_time
