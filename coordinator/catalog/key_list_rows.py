"""Reads the rows of a key list from CSV, JSONL or Parquet, each with the number by which an error names it.

Rows come as they are written; what a key or a label may be is :mod:`superdl.coordinator.catalog.key_list`'s
and :mod:`superdl.coordinator.catalog.key_list_labels`'s.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from superdl.coordinator.catalog.key_list_labels import number_or_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["FORMATS", "BadRowError", "Row"]

MAX_LINE_BYTES = 2**16
_ROWS_AT_A_TIME = 8192
_MAX_BATCH_BYTES = 2**28  # of so many rows; in a Parquet file a few bytes can stand for gigabytes
_FIELD = "label."


class Row(NamedTuple):
    """One row; ``number`` is the line in the file (Parquet: the row, from 1).

    ``version`` is ``None`` if there is no such column.
    """

    number: int
    key: object
    label: object
    version: object


class BadRowError(ValueError):
    """A row cannot be read: its number and the reason."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


def _csv_rows(stream: BinaryIO) -> Iterator[Row]:
    rows = csv.reader((line for _, line in _lines(stream)), strict=True)
    header: list[str] = []
    columns: _Columns | None = None
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise BadRowError(rows.line_num, f"no CSV: {error}") from error
        if row is None:
            return
        if not row:
            continue
        if columns is None:
            header = [name.strip() for name in row]
            columns = _columns(header, rows.line_num, fields=_fields(header))
        elif len(row) != len(header):
            raise BadRowError(rows.line_num, f"{len(row)} fields; the header names {len(header)}")
        else:
            key, version = (None if at is None else row[at] for at in (columns.key, columns.version))
            yield Row(rows.line_num, key, _csv_label(row, columns), version)


def _jsonl_rows(stream: BinaryIO) -> Iterator[Row]:
    versioned: bool | None = None
    for number, line in _lines(stream):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadRowError(number, f"no JSON: {error}") from error
        if not isinstance(row, dict) or "key" not in row or "label" not in row:
            raise BadRowError(number, 'a row is {"key": ..., "label": ...}, with or without "version"')
        if versioned is None:
            versioned = "version" in row
        if versioned is not ("version" in row):
            raise BadRowError(number, "either all rows have a version or none")
        version = (row["version"] if row["version"] is not None else "") if versioned else None
        yield Row(number, row["key"], row["label"], version)


def _parquet_rows(stream: BinaryIO) -> Iterator[Row]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        reason = "reading Parquet needs pyarrow on the coordinator: pip install superdl[parquet]"
        raise BadRowError(0, reason) from error
    number = 0
    try:
        table = parquet.ParquetFile(stream)
        names = [*table.schema_arrow.names]
        found = _columns(names, 0)
        wanted = [names[at] for at in (found.key, found.label, found.version) if at is not None]
        for batch in table.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=wanted):
            _check_size(batch, number + 1)
            columns = {name: batch.column(name).to_pylist() for name in wanted}
            versions = columns.get("version", [None] * batch.num_rows)
            for key, label, version in zip(columns["key"], columns["label"], versions, strict=True):
                number += 1
                yield Row(number, key, label, "" if version is None and "version" in columns else version)
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


def _check_size(batch: Any, number: int) -> None:
    if batch.nbytes > _MAX_BATCH_BYTES:
        reason = f"{batch.num_rows} rows from here have {batch.nbytes} bytes, more than {_MAX_BATCH_BYTES}"
        raise BadRowError(number, reason)


class _Columns(NamedTuple):
    """Where key, label and version stand; ``fields`` of a label that has no column of its own."""

    key: int
    label: int | None
    version: int | None
    fields: dict[str, int]


def _columns(names: list[Any], number: int, *, fields: dict[str, int] | None = None) -> _Columns:
    """Find the columns; others are left alone."""
    found = [names.index(name) if names.count(name) == 1 else None for name in ("key", "label", "version")]
    key, label, version = found
    fields = {} if fields is None or "label" in names else fields
    if key is None or (label is None and not fields) or names.count("version") > 1:
        reason = (
            f"the columns are key, label and, if you have it, version, named in the header; these are {names}"
        )
        raise BadRowError(number, reason[:400])
    return _Columns(key, label, version, fields)


def _fields(header: list[str]) -> dict[str, int]:
    """Columns ``label.NAME``: the fields of a label in CSV, which has no other way to write them."""
    names = [name.removeprefix(_FIELD) for name in header]
    fields = {name: at for at, name in enumerate(names) if header[at] != name}
    return fields if len(fields) == sum(name.startswith(_FIELD) for name in header) else {}


def _csv_label(row: list[str], columns: _Columns) -> object:
    if columns.label is not None:
        return number_or_text(row[columns.label])
    return {name: number_or_text(row[at]) for name, at in columns.fields.items()}


def _lines(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """Lines as text, numbered from 1, none longer than :data:`MAX_LINE_BYTES`."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise BadRowError(number, f"longer than {MAX_LINE_BYTES} bytes")
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadRowError(number, f"not UTF-8: {error}") from error
