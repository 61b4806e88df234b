"""Read the rows of CSV, JSONL and Parquet key lists in batches."""

from __future__ import annotations

import csv
import json
import re
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from superdl.coordinator.catalog.key_list_columns import (
    LABELS,
    MIXED,
    BadRowError,
    Rows,
    check_columns,
    is_text,
    kind_of,
    labelled_by,
    names_of,
    other_fields,
    parts_of,
)
from superdl.super_wire.parquet_pages import check_pages
from superdl.super_wire.user_text import once_each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from numpy.typing import NDArray

_T = TypeVar("_T")

_MAX_LINE_BYTES = 2**18  # the longest label has 8192 numbers
_ROWS_AT_A_TIME, _BATCH_BYTES = 8192, 2**20
# A few bytes of a Parquet file can expand to gigabytes, so these are limited:
_MAX_BATCH_BYTES = 2**28  # of _ROWS_AT_A_TIME rows
_MAX_PAGE_BYTES = 2**29
_MAX_LISTED = 2**27  # values in a row group's lists, all of which may be in one row
_PIECE_BYTES = 2**14  # more than a page's header
_FIELD = "label."
_SHOWN = 80
_MAX_DIGITS = 60  # nobody writes longer numbers
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")


def _csv_rows(stream: BinaryIO) -> Iterator[Rows]:
    """Read CSV rows in the form of JSONL rows. In label and number columns, numeric cells become numbers."""
    import pyarrow as pa

    records = _csv_records(stream)
    line, first = next(records, (0, []))
    if not first:
        return
    header = [name.strip() for name in first]
    # Columns label.NAME are an object's fields, which CSV cannot express otherwise.
    fields = [name for name in header if name.startswith(_FIELD)]
    # A plain label column takes precedence. If a label.NAME repeats, the check below finds no label.
    if "label" in header or len(set(fields)) < len(fields):
        fields = []
    check_columns(header, line, "key", *() if fields else ["label"])
    parts_of(header, line)
    numeric = {name for name in header if name in {"label", *fields} or kind_of(name) == pa.int64()}

    def row_of(cells: list[str]) -> dict[str, Any]:
        row: dict[str, Any] = {
            name: _number(cell) if name in numeric else cell
            for name, cell in zip(header, cells, strict=True)
            if name != LABELS[1]  # CSV has no lists
        }
        return row | {"label": {name.removeprefix(_FIELD): row[name] for name in fields}} if fields else row

    yield from _rows_of(stream, ((number, row_of(cells)) for number, cells in records))


def _csv_records(stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield non-blank rows with their line numbers. All rows must have as many cells as the first."""
    rows, width = csv.reader((line for _, line in _lines(stream)), strict=True), 0
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise BadRowError(rows.line_num, f"invalid CSV: {error}") from error
        if row is None:
            return
        if row and len(row) != (width := width or len(row)):
            raise BadRowError(rows.line_num, f"the row has {len(row)} fields, but the header has {width}")
        if row:
            yield rows.line_num, row


def _number(cell: str) -> float | str:
    """Parse a cell as a number, or return it unchanged if it is not numeric."""
    text = cell.strip()
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return cell
    return int(text) if _INTEGER.fullmatch(text) else float(text)


def _rows_of(stream: BinaryIO, records: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[Rows]:
    for numbers, rows in _batches(stream, records):
        parts, labelled = parts_of(rows[0], int(numbers[0])), labelled_by(rows[0], int(numbers[0]))
        # A row need not have an encoding.
        names = {*names_of(parts), labelled, *(["encoding"] if "member" in parts[""] else [])}
        columns = {name: _column([row.get(name) for row in rows], numbers, name) for name in names}
        yield Rows(numbers, columns, labelled, parts)


def _json_records(stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield all rows with their line numbers. Every row must have the same columns as the first."""
    decoder = json.JSONDecoder(object_pairs_hook=once_each)
    names: tuple[str, ...] = ()
    first: set[str] = set()
    labelled = ""
    fields: set[str] | None = None
    for number, line in _lines(stream):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise BadRowError(number, f"invalid JSON: {error}") from error
        labelled = labelled or labelled_by(row if isinstance(row, dict) else (), number)
        if not isinstance(row, dict) or "key" not in row or labelled not in row:
            raise BadRowError(number, f'a row must contain {{"key": ..., "{labelled}": ...}}')
        if isinstance(label := row[labelled], dict):
            fields = fields or {*label}
            if label.keys() != fields:  # otherwise Arrow would fill in nulls
                raise BadRowError(number, other_fields(fields))
        # Arrow converts true to 1.0 among floats.
        if ("true" in line or "false" in line) and _holds_bool(label):
            raise BadRowError(number, f"cannot use the label {str(label)[:_SHOWN]!r}: {MIXED}")
        # Most rows have the columns of the one before.
        if tuple(row) != names:
            names, columns = tuple(row), {*names_of(parts_of(row, number))} - {"encoding"}
            first = first or columns
            if other := first ^ columns:
                raise BadRowError(number, f"either all rows or none must have {', '.join(sorted(other))}")
        yield number, row


def _holds_bool(label: object) -> bool:
    items = label.values() if isinstance(label, dict) else label if isinstance(label, list) else ()
    return isinstance(label, bool) or any(map(_holds_bool, items))


def _column(values: list[Any], numbers: NDArray[np.int64], name: str) -> Any:
    """Return a column of the type that its name requires. Labels may have any type that fits all of them.

    Raises :class:`BadRowError` for the first value that does not fit.
    """
    import pyarrow as pa

    kind = None if name in LABELS else kind_of(name)
    unfit = pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError

    def convert(count: int) -> Any:
        # Arrow would truncate 1.5 to 1.
        if kind == pa.int64() and any(isinstance(value, float) for value in values[:count]):
            raise TypeError("an integer is required")
        return pa.array(values[:count], kind)

    def misfit(count: int) -> str:
        try:
            convert(count)
        except unfit as error:
            return str(error) or type(error).__name__
        return ""

    try:
        return convert(len(values))
    except unfit as error:
        # A value fits or not depending on those before it, so find the first misfit by bisection.
        at = bisect_left(range(1, len(values)), True, key=lambda count: bool(misfit(count)))
        shown, why = str(values[at])[:_SHOWN], misfit(at + 1)[:400]
        if name in LABELS:
            reason = f"the label {shown!r} has a different type from those before it ({why}): {MIXED}"
        else:
            required = "an integer" if kind == pa.int64() else "a string"
            reason = f"the {name} {shown!r} is not {required} ({why})"
        raise BadRowError(int(numbers[at]), reason) from error


def _parquet_rows(stream: BinaryIO) -> Iterator[Rows]:
    import pyarrow as pa
    from pyarrow import parquet

    done = 0
    try:
        footer = parquet.read_metadata(stream)
        # Without dictionaries, a string that many rows share would be copied for each of them.
        texts = [leaf.path for leaf in footer.schema if leaf.physical_type == "BYTE_ARRAY"]
        table = parquet.ParquetFile(stream, metadata=footer, read_dictionary=texts, pre_buffer=False)
        names = list(table.schema_arrow.names)
        labelled = labelled_by(names, 0)
        check_columns(names, 0, "key", labelled)
        parts = parts_of(names, 0)
        column_names = [labelled, *names_of(parts)]
        _check_chunks(stream, footer, column_names)
        for batch in table.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=column_names):
            if not batch.num_rows:
                continue
            _check_size(batch, done + 1)
            numbers = np.arange(done + 1, done + 1 + batch.num_rows)
            columns = {name: _typed(batch.column(name), name, done + 1) for name in column_names}
            yield Rows(numbers, columns, labelled, parts)
            done += batch.num_rows
    except BadRowError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadRowError(done, f"not a readable Parquet file: {error}") from error


def _lines(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield lines, numbered from 1. Raises ``BadRowError`` if a line is too long or not UTF-8."""
    number = 0
    while line := stream.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise BadRowError(number, f"the line is longer than {_MAX_LINE_BYTES} bytes")
        try:
            # Spreadsheets write a byte order mark before the first line.
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadRowError(number, f"not UTF-8: {error}") from error


def _batches(
    stream: BinaryIO, records: Iterator[tuple[int, _T]]
) -> Iterator[tuple[NDArray[np.int64], list[_T]]]:
    """Yield batches of line numbers and records. Batches are smaller if lines are long."""
    numbers, batch, begin = list[int](), list[_T](), stream.tell()
    for number, record in records:
        numbers.append(number)
        batch.append(record)
        if len(batch) == _ROWS_AT_A_TIME or stream.tell() - begin > _BATCH_BYTES:
            yield np.array(numbers), batch
            numbers, batch, begin = [], [], stream.tell()
    if batch:
        yield np.array(numbers), batch


def _typed(column: Any, name: str, number: int) -> Any:
    """Validate a Parquet column and cast it to the type that its name requires. Labels keep their type."""
    import pyarrow as pa

    column.validate(full=True)
    # A tensor's storage is a list of numbers.
    column = column.storage if isinstance(column.type, pa.BaseExtensionType) else column
    if name in LABELS:
        return column
    kind, types = kind_of(name), pa.types
    dense = column.dictionary_decode() if types.is_dictionary(column.type) else column
    fits = types.is_integer(dense.type) if types.is_integer(kind) else is_text(dense.type)
    if not (fits or types.is_null(dense.type)):
        raise BadRowError(number, f"a {name} must be of type {kind}, not {str(dense.type)[:_SHOWN]}")
    return dense.cast(kind)


class _Chunk:
    def __init__(self, stream: BinaryIO, begin: int, size_bytes: int) -> None:
        self._stream, self._begin, self._size_bytes = stream, begin, size_bytes
        self._at, self._piece = 0, b""

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, index: int) -> int:
        if not self._at <= index < self._at + len(self._piece):
            self._stream.seek(self._begin + index)
            self._at, self._piece = index, self._stream.read(_PIECE_BYTES)
        return self._piece[index - self._at]


def _check_chunks(stream: BinaryIO, footer: Any, names: Collection[str]) -> None:
    leaves = [at for at, leaf in enumerate(footer.schema) if leaf.path.partition(".")[0] in names]
    leaves += [at for at, leaf in enumerate(footer.schema) if leaf.path in names and at not in leaves]
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for leaf in leaves:
            chunk, column = group.column(leaf), footer.schema.column(leaf)
            begin = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
            pages = _Chunk(stream, begin, chunk.total_compressed_size)
            values = check_pages(pages, chunk.total_uncompressed_size, _MAX_PAGE_BYTES)
            if column.max_repetition_level and values > _MAX_LISTED:
                raise ValueError(
                    f"a row group has too many values ({values}) in the lists of {column.path[:_SHOWN]!r}"
                )
            if column.length * _ROWS_AT_A_TIME > _MAX_BATCH_BYTES:
                raise ValueError(
                    f"a value in column {column.path[:_SHOWN]!r} is too long ({column.length} bytes)"
                )


def _check_size(batch: Any, number: int) -> None:
    size_bytes = sum(map(_dense_bytes, batch.columns))
    if size_bytes > _MAX_BATCH_BYTES:
        reason = f"{batch.num_rows} rows from here on take {size_bytes} bytes, more than {_MAX_BATCH_BYTES}"
        raise BadRowError(number, reason)


def _dense_bytes(column: Any) -> int:
    """Return a column's size in bytes, counting a shared string once per row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    # Strings in nested columns are in child arrays.
    if pa.types.is_struct(kind):
        return sum(map(_dense_bytes, column.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _dense_bytes(column.flatten()) + int(column.nbytes)
    if not pa.types.is_dictionary(kind) or pa.types.is_primitive(kind.value_type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return (pc.sum(pc.take(lengths, column.indices)).as_py() or 0) + int(column.indices.nbytes)


# Readers by file extension. They raise BadRowError.
FORMATS: Mapping[str, Callable[[BinaryIO], Iterator[Rows]]] = {
    ".csv": _csv_rows,
    ".jsonl": lambda stream: _rows_of(stream, _json_records(stream)),
    ".parquet": _parquet_rows,
}
