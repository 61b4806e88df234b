"""Readers of a key list's rows from CSV, JSONL or Parquet, in batches, with row numbers.

Values are returned as written. :mod:`superdl.coordinator.catalog.key_list` checks keys, and
:mod:`superdl.coordinator.catalog.key_list_labels` checks labels.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

from superdl.coordinator.catalog.key_list_labels import VARIES, number_or_text
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import MAIN_FIELD, MAX_FIELDS, checked_field
from superdl.super_wire.parquet_pages import check_pages
from superdl.super_wire.user_text import once_each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    Parts = dict[str, frozenset[str]]

__all__ = ["FORMATS", "BadRowError", "Rows"]

_T = TypeVar("_T")

_MAX_LINE_BYTES = 2**18  # the longest possible label has 8192 numbers
_LINES_AT_A_TIME, _BATCH_BYTES = 256, 2**20
_ROWS_AT_A_TIME = 8192
# A few bytes of a Parquet file can expand to gigabytes, hence these limits:
_MAX_BATCH_BYTES = 2**28  # of _ROWS_AT_A_TIME rows
_MAX_PAGE_BYTES = 2**29
_MAX_LISTED = 2**27  # values in the lists of a row group; one row may hold them all
_PIECE_BYTES = 2**14  # holds the header of a page
_FIELD = "label."
_LABELS = ("label", f"label{VARIES}")
_MEMBER = ("member", "offset", "length")
_OF_PARTS = frozenset({"key", "version", *_MEMBER, "encoding"})
_SHOWN = 80


class Rows(NamedTuple):
    """A batch of rows. ``numbers`` are their lines in the file (Parquet: rows, from 1).

    ``columns`` hold a value per row, as lists or as Arrow string arrays. ``parts`` maps each part to its
    columns: the samples' own objects under an empty name, and each field under its name. Columns of fields
    have names such as ``mask.key``.
    """

    numbers: Sequence[int]
    labels: Sequence[object]
    columns: Mapping[str, Any]
    parts: Parts


class BadRowError(ValueError):
    """A row that cannot be read, with its number and the reason."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


def _csv_rows(stream: BinaryIO) -> Iterator[Rows]:
    records = _csv_records(stream)
    line, first = next(records, (0, []))
    if not first:
        return
    header = [name.strip() for name in first]
    # CSV has no other way to write an object, so columns label.NAME are its fields.
    fields = {name.removeprefix(_FIELD): name for name in header if name.startswith(_FIELD)}
    # A plain label column wins. If a label.NAME repeats, the check below reports a missing label.
    if "label" in header or len(fields) < sum(name.startswith(_FIELD) for name in header):
        fields = {}
    _check_columns(header, line, needed=("key",) if fields else ("key", "label"))
    parts = _parts(header, line)
    labels = list((fields or {"label": "label"}).values())
    numeric = {*labels, *(name for name in _names_of(parts) if name.endswith(("offset", "length")))}
    used = numeric.union(_names_of(parts))
    for batch in _some(stream, records):
        numbers, rows = zip(*batch, strict=True)
        columns: dict[str, list[Any]] = {}
        for name, values in zip(header, zip(*rows, strict=True), strict=True):
            if name in used:
                columns[name] = list(map(number_or_text, values) if name in numeric else values)
        of_fields = zip(*(columns[name] for name in labels), strict=True)
        named = [dict(zip(fields, row, strict=True)) for row in of_fields] if fields else columns["label"]
        yield Rows(numbers, named, columns, parts)


def _csv_records(stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield all non-blank rows with their lines. Each must have as many fields as the first."""
    rows, width = csv.reader((line for _, line in _lines(stream)), strict=True), 0
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise BadRowError(rows.line_num, f"no CSV: {error}") from error
        if row is None:
            return
        if row and len(row) != (width := width or len(row)):
            raise BadRowError(rows.line_num, f"{len(row)} fields; the header names {width}")
        if row:
            yield rows.line_num, row


def _jsonl_rows(stream: BinaryIO) -> Iterator[Rows]:
    for batch in _some(stream, _json_records(stream)):
        numbers, rows, labels = zip(*batch, strict=True)
        parts = _parts(rows[0], numbers[0])
        names = {*_names_of(parts), "encoding"}  # which rows may lack
        columns = {name: [row.get(name) for row in rows] for name in names}
        yield Rows(numbers, labels, columns, parts)


def _json_records(stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any], object]]:
    """Yield all rows with their lines and labels. All must have the columns of the first."""
    decoder = json.JSONDecoder(object_pairs_hook=once_each)
    names: tuple[str, ...] = ()
    first: Parts = {}
    labelled = ""
    for number, line in _lines(stream):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise BadRowError(number, f"no JSON: {error}") from error
        labelled = labelled or _labelled(row if isinstance(row, dict) else (), number)
        if not isinstance(row, dict) or "key" not in row or labelled not in row:
            reason = f'a row is {{"key": ..., "{labelled}": ...}}, with or without "version"'
            raise BadRowError(number, reason)
        # Most rows have the columns of the row before, so check only changes.
        if tuple(row) != names:
            names, parts = tuple(row), _parts(row, number)
            first = first or parts
            _check_same(first, parts, number)
        yield number, row, _label(row[labelled], labelled)


def _parquet_rows(stream: BinaryIO) -> Iterator[Rows]:
    import pyarrow as pa
    from pyarrow import parquet

    done = 0
    try:
        footer = parquet.read_metadata(stream)
        # As dictionaries: a text of many rows would otherwise fill memory row by row.
        texts = [leaf.path for leaf in footer.schema if leaf.physical_type == "BYTE_ARRAY"]
        table = parquet.ParquetFile(stream, metadata=footer, read_dictionary=texts, pre_buffer=False)
        names = list(table.schema_arrow.names)
        labelled = _labelled(names, 0)
        _check_columns(names, 0, needed=("key", labelled))
        parts = _parts(names, 0)
        column_names = [labelled, *_names_of(parts)]
        _check_chunks(stream, footer, column_names)
        for batch in table.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=column_names):
            if not batch.num_rows:
                continue
            _check_size(batch, done + 1)
            columns = {name: _column(batch.column(name)) for name in column_names}
            labels = [_label(label, labelled) for label in _values(columns[labelled])]
            yield Rows(range(done + 1, done + 1 + batch.num_rows), labels, columns, parts)
            done += batch.num_rows
    except BadRowError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:  # of values Python lacks
        raise BadRowError(done, f"no Parquet that can be read: {error}") from error


FORMATS: Mapping[str, Callable[[BinaryIO], Iterator[Rows]]] = {
    ".csv": _csv_rows,
    ".jsonl": _jsonl_rows,
    ".parquet": _parquet_rows,
}
"""Reader of the rows for each file extension. All raise :class:`BadRowError`."""


def _check_columns(names: Sequence[Any], number: int, needed: Sequence[str] = ("key", "label")) -> None:
    """Check that each column that matters exists exactly once. Other columns are ignored."""
    once = ("version", *_MEMBER, "encoding")
    if any(names.count(name) != 1 for name in needed) or any(names.count(name) > 1 for name in once):
        reason = (
            f"the columns are key, label and, if you have it, version, named in the header; these are {names}"
        )
        raise BadRowError(number, reason[:400])


def _labelled(names: Collection[Any], number: int) -> str:
    """Return which of the names of a label column exists."""
    if set(_LABELS) <= set(names):
        raise BadRowError(number, "there are label and label[]: keep the one that is meant")
    return _LABELS[_LABELS[1] in names]


def _label(value: object, name: str) -> object:
    """Return a row's label; a list whose length varies becomes a field without a name."""
    return {VARIES: value} if name == _LABELS[1] else value


def _names_members(names: Collection[Any], number: int) -> bool:
    """Return whether columns name members. A lone ``offset`` or ``length`` is ignored."""
    if len(set(names)) < len(names):
        raise BadRowError(number, f"a column comes twice: {', '.join(names)}")
    present = [name for name in _MEMBER if name in names]
    if len(present) == len(_MEMBER) - 1 or present == ["member"]:
        missing = ", ".join(name for name in _MEMBER if name not in present)
        reason = (
            f"the columns member, offset and length come together; there is {' and '.join(present)}, and no "
        )
        raise BadRowError(number, reason + missing)
    return len(present) == len(_MEMBER)


def _parts(names: Collection[str], number: int) -> Parts:
    """Return the columns of own objects and of each field (``mask`` in ``mask.key``)."""
    by_field: dict[str, list[str]] = {"": [name for name in names if name in _OF_PARTS]}
    for name in names:
        field, _, column = name.partition(".")
        if column in _OF_PARTS and field not in {"", "label"}:
            by_field.setdefault(field, []).append(column)
    parts = {}
    for field, columns in by_field.items():
        try:
            of_members = _names_members(columns, number)
            if of_members or "key" in columns:
                ignored = () if of_members else (*_MEMBER, "encoding")
                parts[field and checked_field(field)] = frozenset(columns).difference(ignored)
        except (BadRowError, ConfigError) as error:
            reason = error.reason if isinstance(error, BadRowError) else str(error)
            raise BadRowError(number, f"the field {field[:_SHOWN]}: " * bool(field) + reason) from error
    if MAIN_FIELD in parts or len(parts) > MAX_FIELDS:
        raise BadRowError(
            number,
            f"the columns key, member and so on are those of {MAIN_FIELD}, and up to {MAX_FIELDS - 1} fields "
            f"are beside it; not {', '.join(filter(None, parts))}",
        )
    return parts


def _names_of(parts: Parts) -> list[str]:
    """Return the full names of the columns of all parts."""
    return [f"{part}." * bool(part) + name for part, names in parts.items() for name in sorted(names)]


def _check_same(first: Parts, now: Parts, number: int) -> None:
    """Check that a row has the columns of the first, encodings aside."""
    other = first[""] ^ now[""]
    if "version" in other:
        raise BadRowError(number, "either all rows have a version or none")
    if "member" in other:
        raise BadRowError(number, "either all rows have member, offset and length or none")
    if first | {"": now[""]} != now:
        named = ", ".join(sorted(filter(None, {*first, *now})))
        raise BadRowError(number, f"either all rows have the same columns of the fields {named} or none")


class _Chunk:
    """The bytes of a column chunk in a file, read on access."""

    def __init__(self, stream: BinaryIO, begin: int, size_bytes: int) -> None:
        self._stream, self._begin, self._size_bytes = stream, begin, size_bytes
        self._at, self._piece = 0, b""

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, place: int) -> int:
        if not self._at <= place < self._at + len(self._piece):
            self._stream.seek(self._begin + place)
            self._at, self._piece = place, self._stream.read(_PIECE_BYTES)
        return self._piece[place - self._at]


def _check_chunks(stream: BinaryIO, footer: Any, names: Collection[str]) -> None:
    """Check that pyarrow's allocation for each page is bounded; ``ValueError`` if not."""
    leaves = [at for at, leaf in enumerate(footer.schema) if leaf.path.partition(".")[0] in names]
    leaves += [at for at, leaf in enumerate(footer.schema) if leaf.path in names and at not in leaves]
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for leaf in leaves:
            chunk, column = group.column(leaf), footer.schema.column(leaf)
            begin = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
            pages = _Chunk(stream, begin, chunk.total_compressed_size)
            values = check_pages(pages, chunk.total_uncompressed_size, _MAX_PAGE_BYTES)
            if column.max_repetition_level and values > _MAX_LISTED:
                raise ValueError(f"a row group has {values} values in the lists of {column.path[:_SHOWN]!r}")
            if column.length * _ROWS_AT_A_TIME > _MAX_BATCH_BYTES:
                raise ValueError(f"a value of {column.path[:_SHOWN]!r} has {column.length} bytes")


def _check_size(batch: Any, number: int) -> None:
    size_bytes = sum(map(_dense_bytes, batch.columns))
    if size_bytes > _MAX_BATCH_BYTES:
        reason = f"{batch.num_rows} rows from here have {size_bytes} bytes, more than {_MAX_BATCH_BYTES}"
        raise BadRowError(number, reason)


def _column(column: Any) -> Any:
    """Return a text column as a validated array without dictionary, another as a list."""
    import pyarrow as pa

    dense = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
    dense.validate(full=True)
    is_text = pa.types.is_string(dense.type) or pa.types.is_large_string(dense.type)
    return dense if is_text else dense.to_pylist()


def _values(column: Any) -> list[Any]:
    return column if isinstance(column, list) else list(column.to_pylist())


def _some(stream: BinaryIO, records: Iterator[_T]) -> Iterator[list[_T]]:
    """Yield records of a stream in batches, with fewer per batch if lines are long."""
    batch, begin = list[_T](), stream.tell()
    for record in records:
        batch.append(record)
        if len(batch) == _LINES_AT_A_TIME or stream.tell() - begin > _BATCH_BYTES:
            yield batch
            batch, begin = [], stream.tell()
    if batch:
        yield batch


def _dense_bytes(column: Any) -> int:
    """Return the bytes of a column, counting a shared text once per row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    # Nested columns hold their texts in child arrays.
    if pa.types.is_struct(kind):
        return sum(map(_dense_bytes, column.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _dense_bytes(column.flatten()) + int(column.nbytes)
    if not pa.types.is_dictionary(kind) or pa.types.is_primitive(kind.value_type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return (pc.sum(pc.take(lengths, column.indices)).as_py() or 0) + int(column.indices.nbytes)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield lines as text, numbered from 1; ``BadRowError`` if a line is too long."""
    number = 0
    while line := stream.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise BadRowError(number, f"longer than {_MAX_LINE_BYTES} bytes")
        try:
            # Spreadsheets write a byte order mark in front of the first line.
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadRowError(number, f"not UTF-8: {error}") from error
