"""Reads the rows of a key list from CSV, JSONL or Parquet, each with the number by which an error names it.

Rows come as they are written; what a key or a label may be is :mod:`superdl.coordinator.catalog.key_list`'s
and :mod:`superdl.coordinator.catalog.key_list_labels`'s.
"""

from __future__ import annotations

import csv
import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

from superdl.coordinator.catalog.key_list_labels import VARIES, number_or_text
from superdl.coordinator.catalog.members import MemberRow
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import MAIN_FIELD, MAX_FIELDS, checked_field
from superdl.super_wire.parquet_pages import check_pages
from superdl.super_wire.user_text import once_each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

__all__ = ["FORMATS", "BadRowError", "Row"]

_MAX_LINE_BYTES = 2**18  # the longest label that may be has 8192 numbers
_ROWS_AT_A_TIME = 8192
# In a Parquet file a few bytes can stand for gigabytes:
_MAX_BATCH_BYTES = 2**28  # of so many rows
_MAX_PAGE_BYTES = 2**29
_MAX_LISTED = 2**27  # values in the lists of a row group, which may all be those of one row
_PIECE_BYTES = 2**14  # holds the header of a page
_FIELD = "label."
_LABELS = ("label", f"label{VARIES}")
_MEMBER = ("member", "offset", "length")
_OF_FIELDS = frozenset({"key", "version", *_MEMBER, "encoding"})
_SHOWN = 80


class Row(NamedTuple):
    """One row; ``number`` is the line in the file (Parquet: the row, from 1).

    ``version`` is ``None`` if there is no such column, and empty where the column has no value; ``member`` is
    ``None`` where samples are objects. ``fields`` are rows of their own, for the parts that the sample has
    in these.
    """

    number: int
    key: object
    label: object
    version: object
    member: MemberRow | None = None
    fields: Mapping[str, Row] = MappingProxyType({})


# Of all rows: whether there are versions, whether they are of members, and the columns of each field.
_Columns: TypeAlias = "tuple[bool, bool, dict[str, frozenset[str]]]"


class BadRowError(ValueError):
    """A row cannot be read: its number and the reason."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


def _csv_rows(stream: BinaryIO) -> Iterator[Row]:
    rows = csv.reader((line for _, line in _lines(stream)), strict=True)
    header: list[str] = []
    label_of: Callable[[dict[str, str]], object] | None = None
    of_members, fields = False, {}
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise BadRowError(rows.line_num, f"no CSV: {error}") from error
        if row is None:
            return
        if not row:
            continue
        if label_of is None:
            header = [name.strip() for name in row]
            label_of = _csv_labels(header, rows.line_num)
            of_members, fields = _names_members(header, rows.line_num), _fields(header, rows.line_num)
        elif len(row) != len(header):
            raise BadRowError(rows.line_num, f"{len(row)} fields; the header names {len(header)}")
        else:
            values = dict(zip(header, row, strict=True))
            member = _member(values, number_or_text) if of_members else None
            row_of = Row(rows.line_num, values["key"], label_of(values), values.get("version"), member)
            yield _with_fields(row_of, values, fields, number_or_text) if fields else row_of


def _csv_labels(header: list[str], number: int) -> Callable[[dict[str, str]], object]:
    """What gives a row's label. Columns ``label.NAME`` are its fields: CSV has no other way to write them."""
    fields = {name.removeprefix(_FIELD): name for name in header if name.startswith(_FIELD)}
    if "label" in header or len(fields) < sum(name.startswith(_FIELD) for name in header):
        fields = {}
    _check_columns(header, number, needed=("key",) if fields else ("key", "label"))
    if not fields:
        return lambda values: number_or_text(values["label"])
    return lambda values: {field: number_or_text(values[name]) for field, name in fields.items()}


def _jsonl_rows(stream: BinaryIO) -> Iterator[Row]:
    columns: _Columns | None = None
    before: tuple[str, ...] | None = None
    versioned, of_members, fields = False, False, dict[str, frozenset[str]]()
    labelled = ""
    decoder = json.JSONDecoder(object_pairs_hook=once_each)
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
        if (names := tuple(row)) != before:
            before, now = names, ("version" in row, _names_members(row, number), _fields(row, number))
            columns = now if columns is None else columns
            _check_same(columns, now, number)
            versioned, of_members, fields = columns
        version = _or_empty(row["version"]) if versioned else None
        label = _label(row[labelled], labelled)
        row_of = Row(number, row["key"], label, version, _member(row) if of_members else None)
        yield _with_fields(row_of, row, fields) if fields else row_of


def _parquet_rows(stream: BinaryIO) -> Iterator[Row]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        footer = parquet.read_metadata(stream)
        # As dictionaries: a text that many rows share would fill the memory row by row.
        texts = [leaf.path for leaf in footer.schema if leaf.physical_type == "BYTE_ARRAY"]
        table = parquet.ParquetFile(stream, metadata=footer, read_dictionary=texts, pre_buffer=False)
        names = list(table.schema_arrow.names)
        labelled = _labelled(names, 0)
        _check_columns(names, 0, needed=("key", labelled))
        wanted = [name for name in ("key", labelled, "version") if name in names]
        if of_members := _names_members(names, 0):
            wanted += [name for name in (*_MEMBER, "encoding") if name in names]
        fields = _fields(names, 0)
        wanted += [f"{field}.{column}" for field, columns in fields.items() for column in sorted(columns)]
        _check_chunks(stream, footer, wanted)
        for batch in table.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=wanted):
            _check_size(batch, number + 1)
            dense = {name: _decoded(batch.column(name)) for name in wanted}
            columns = {name: column.to_pylist() for name, column in dense.items()}
            versions = map(_or_empty, columns["version"]) if "version" in columns else [None] * batch.num_rows
            for at, (key, label, version) in enumerate(
                zip(columns["key"], columns[labelled], versions, strict=True)
            ):
                number += 1
                row = {name: column[at] for name, column in columns.items()} if of_members or fields else {}
                of_row = _member(row) if of_members else None
                row_of = Row(number, key, _label(label, labelled), version, of_row)
                yield _with_fields(row_of, row, fields) if fields else row_of
    except BadRowError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:  # also of values Python lacks
        raise BadRowError(number, f"no Parquet that can be read: {error}") from error


FORMATS: Mapping[str, Callable[[BinaryIO], Iterator[Row]]] = {
    ".csv": _csv_rows,
    ".jsonl": _jsonl_rows,
    ".parquet": _parquet_rows,
}
"""Extension of a key list -> what reads its rows; all raise :class:`BadRowError`."""


def _check_columns(names: Sequence[Any], number: int, needed: Sequence[str] = ("key", "label")) -> None:
    """See that each column that matters is there once; others are left alone."""
    once = ("version", *_MEMBER, "encoding")
    if any(names.count(name) != 1 for name in needed) or any(names.count(name) > 1 for name in once):
        reason = (
            f"the columns are key, label and, if you have it, version, named in the header; these are {names}"
        )
        raise BadRowError(number, reason[:400])


def _labelled(names: Collection[Any], number: int) -> str:
    """Return which of the names of a label there is."""
    if set(_LABELS) <= set(names):
        raise BadRowError(number, "there are label and label[]: keep the one that is meant")
    return _LABELS[_LABELS[1] in names]


def _label(value: object, name: str) -> object:
    """A row's label; a list whose length varies is a field without a name."""
    return {VARIES: value} if name == _LABELS[1] else value


def _names_members(names: Collection[Any], number: int) -> bool:
    """Whether the columns name members of objects. A lone ``offset`` or ``length`` is somebody else's."""
    found = [name for name in _MEMBER if name in names]
    if len(found) == len(_MEMBER) - 1 or found == ["member"]:
        missing = ", ".join(name for name in _MEMBER if name not in found)
        reason = (
            f"the columns member, offset and length come together; there is {' and '.join(found)}, and no "
        )
        raise BadRowError(number, reason + missing)
    return len(found) == len(_MEMBER)


def _member(
    row: Mapping[str, Any], read: Callable[[Any], object] = lambda value: value, prefix: str = ""
) -> MemberRow:
    numbers = read(row[f"{prefix}offset"]), read(row[f"{prefix}length"])
    return MemberRow(row[f"{prefix}member"], *numbers, _or_empty(row.get(f"{prefix}encoding")))


def _fields(names: Collection[str], number: int) -> dict[str, frozenset[str]]:
    """The fields that columns such as ``mask.key`` are of, and which columns each has."""
    found: dict[str, list[str]] = {}
    for name in names:
        field, _, column = name.partition(".")
        if column in _OF_FIELDS and field not in {"", "label"}:
            found.setdefault(field, []).append(column)
    fields = {}
    for field, columns in found.items():
        if len(set(columns)) < len(columns):
            raise BadRowError(number, f"the field {field} has a column twice: {columns}")
        try:
            if _names_members(columns, number) or "key" in columns:
                fields[checked_field(field)] = frozenset(columns)
        except (BadRowError, ConfigError) as error:
            reason = error.reason if isinstance(error, BadRowError) else str(error)
            raise BadRowError(number, f"the field {field[:_SHOWN]}: {reason}") from error
    if MAIN_FIELD in fields or len(fields) >= MAX_FIELDS:
        raise BadRowError(
            number,
            f"the columns key, member and so on are those of {MAIN_FIELD}, and up to {MAX_FIELDS - 1} fields "
            f"are beside it; not {', '.join(fields)}",
        )
    return fields


def _check_same(columns: _Columns, now: _Columns, number: int) -> None:
    """See that a row has the columns of those before it."""
    if columns[0] is not now[0]:
        raise BadRowError(number, "either all rows have a version or none")
    if columns[1] is not now[1]:
        raise BadRowError(number, "either all rows have member, offset and length or none")
    if columns[2] != now[2]:
        named = ", ".join(sorted({*columns[2], *now[2]}))
        raise BadRowError(number, f"either all rows have the same columns of the fields {named} or none")


def _with_fields(
    row: Row,
    values: Mapping[str, Any],
    fields: Mapping[str, frozenset[str]],
    read: Callable[[Any], object] = lambda value: value,
) -> Row:
    """A row with its fields; one without a key of its own lies in the object of the row."""
    parts = {}
    for field, columns in fields.items():
        key, version = row.key, row.version
        if "key" in columns:
            key, version = values[f"{field}.key"], None
        if "version" in columns:
            version = _or_empty(values[f"{field}.version"])
        member = _member(values, read, f"{field}.") if "member" in columns else None
        parts[field] = Row(row.number, key, None, version, member)
    return row._replace(fields=parts)


class _Chunk:
    """The bytes of a column chunk in a file, read where they are looked at."""

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
    """See that what pyarrow allocates for a page is bounded; ``ValueError`` if not."""
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


def _decoded(column: Any) -> Any:
    """The same without a dictionary, which is slow to make Python's values of."""
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def _dense_bytes(column: Any) -> int:
    """Bytes of a column in which a text that several rows share counts for each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_struct(kind):
        return sum(map(_dense_bytes, column.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _dense_bytes(column.flatten()) + int(column.nbytes)
    if not pa.types.is_dictionary(kind) or pa.types.is_primitive(kind.value_type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return (pc.sum(pc.take(lengths, column.indices)).as_py() or 0) + int(column.indices.nbytes)


def _or_empty(version: Any) -> Any:
    return "" if version is None else version


def _lines(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """Lines as text, numbered from 1, of a bounded length."""
    number = 0
    while line := stream.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise BadRowError(number, f"longer than {_MAX_LINE_BYTES} bytes")
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadRowError(number, f"not UTF-8: {error}") from error
