"""Writes a key list, as CSV, JSONL or Parquet: whole or not at all, to a file or an S3 object."""

from __future__ import annotations

import csv
import json
import os
import secrets
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, cast

from superdl.super_wire.errors import ConfigError, SourceError, SourceNotFoundError
from superdl.super_wire.source_url import split_url
from superdl.super_wire.temporary import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from superdl.index.shard import Label

__all__ = ["Row", "RowSink", "check_out", "writing_to"]

_NOT_IN_CSV = "CSV cannot tell the text from a number: write .jsonl or .parquet"


class Row(NamedTuple):
    """A row of the list; the fields are its columns."""

    key: str
    member: str
    offset: int
    length: int
    encoding: str
    label: Label | None
    version: str
    fields: Mapping[str, Any] = {}  # none is changed, and rows are pickled


def _columns(row: Any) -> dict[str, Any]:
    """A row's columns, of its fields too."""
    columns: dict[str, Any] = row._asdict()
    fields: dict[str, Any] = columns.pop("fields")
    return {**columns, **fields}


class RowSink(Protocol):
    """What takes rows, in their order."""

    def write(self, rows: Sequence[Any]) -> None:
        """Take some more."""

    def close(self) -> None:
        """Write what was held back."""


class _Jsonl:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, rows: Sequence[Any]) -> None:
        lines = (json.dumps(_columns(row), ensure_ascii=False) for row in rows)
        self._stream.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        """Nothing is held back."""


class _Text:
    """The text face that ``csv`` wants of a binary stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.encode())


class _Csv:
    def __init__(self, stream: BinaryIO) -> None:
        from superdl.coordinator.catalog.key_list_labels import number_or_text

        self._read_back = number_or_text
        self._writer = csv.writer(_Text(stream), lineterminator="\n")
        self._begun = False

    def write(self, rows: Sequence[Any]) -> None:
        if rows and not self._begun:
            self._begun = True
            self._writer.writerow(_columns(rows[0]))
        for row in rows:
            if isinstance(row.label, str) and not isinstance(self._read_back(row.label), str):
                raise ConfigError(f"the label {row.label!r} of {row.key} names a class; {_NOT_IN_CSV}")
        self._writer.writerows(_columns(row).values() for row in rows)

    def close(self) -> None:
        """Nothing is held back."""


class _Parquet:
    def __init__(self, stream: BinaryIO) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise ConfigError(
                "writing Parquet needs pyarrow: pip install superdl[parquet], or write .jsonl"
            ) from error
        self._pa, self._parquet, self._stream = pa, parquet, stream
        self._writer: Any = None

    def write(self, rows: Sequence[Any]) -> None:
        if not rows:
            return
        pa = self._pa
        if self._writer is None:
            label = {int: pa.int64(), float: pa.float64()}.get(type(rows[0].label), pa.string())
            fields = {
                name: pa.int64() if name.rpartition(".")[2] in {"offset", "length"} else pa.string()
                for name in _columns(rows[0])
            }
            self._schema = pa.schema({**fields, "label": label})
            self._writer = self._parquet.ParquetWriter(self._stream, self._schema)
        if self._schema.field("label").type == pa.int64():  # into which Arrow would round
            for row in rows:
                if not isinstance(row.label, int):
                    raise ConfigError(
                        f"the label {row.label} of {row.key} is no integer, those before it are, and a "
                        "column of Parquet has one type: write .jsonl"
                    )
        every = [_columns(row) for row in rows]
        columns = {name: [columns[name] for columns in every] for name in every[0]}
        try:
            self._writer.write_table(pa.table(columns, self._schema))
        except OverflowError as error:
            raise ConfigError(f"a label of {rows[0].key} does not fit into 64 bits") from error

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


_FORMATS: dict[str, Any] = {".csv": _Csv, ".jsonl": _Jsonl, ".parquet": _Parquet}


def check_out(out: str, *, force: bool) -> None:
    """See, before anything is read, that a list may be written there.

    Raises:
        ConfigError: the name says no format, or something is there and may not be replaced.
        SourceError: there is no such directory or bucket, or it may not be looked at.
    """
    if PurePosixPath(out).suffix.lower() not in _FORMATS:
        raise ConfigError(f"-o {out!r} ends in one of {', '.join(_FORMATS)}, by which its format is chosen")
    bucket, place = split_url(out, "-o")
    if bucket and not bucket.startswith("s3://"):
        raise ConfigError(f"-o {out!r}: lists are written to S3 or to this machine: name s3:// or a path")
    if bucket:
        there = _is_object(bucket.removeprefix("s3://"), place)
    else:
        path = Path(place)
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"-o {out!r}: there is no directory {path.absolute().parent}: make it")
        if path.is_dir():
            raise ConfigError(f"-o {out!r} is a directory: name a file in it")
        there = path.exists()
    if there and not force:
        raise ConfigError(f"-o {out!r} is there: --force replaces it")


@contextmanager
def writing_to(out: str) -> Iterator[RowSink]:
    """What takes the rows: they appear at ``out`` once the block has ended well, else nothing does."""
    bucket, place = split_url(out, "-o")
    make = _FORMATS[PurePosixPath(out).suffix.lower()]
    if bucket:
        with tempfile.TemporaryFile(dir=temporary_directory()) as stream:
            with closing(make(cast("BinaryIO", stream))) as sink:
                yield sink
            stream.seek(0)
            _put(bucket.removeprefix("s3://"), place, stream)
        return
    path = Path(place).absolute()
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as stream:
            with closing(make(stream)) as sink:
                yield sink
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except OSError as error:
        raise SourceError(f"-o {path} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def _is_object(bucket: str, key: str) -> bool:
    from superdl.coordinator.catalog.s3_client import make_s3_client, s3_failures

    try:
        with s3_failures(f"s3://{bucket}/{key}"), closing(make_s3_client()) as client:
            client.head_object(Bucket=bucket, Key=key)
    except SourceNotFoundError:
        return False
    return True


def _put(bucket: str, key: str, stream: Any) -> None:
    from superdl.coordinator.catalog.s3_client import make_s3_client, s3_failures

    with s3_failures(f"s3://{bucket}/{key}"), closing(make_s3_client()) as client:
        client.put_object(Bucket=bucket, Key=key, Body=stream)
