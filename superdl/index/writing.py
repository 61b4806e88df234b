"""Gives rows their labels and writes them as a key list: CSV, JSONL or Parquet, whole or not at all."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import secrets
import tempfile
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from superdl.index.choices import SPLITS, folders_of
from superdl.index.shard import ShardError
from superdl.super_wire.errors import ConfigError, SourceError, SourceNotFoundError
from superdl.super_wire.source_url import split_url
from superdl.super_wire.temporary import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from superdl.index.rows import Row, Rows

__all__ = ["MOST_CLASSES", "Labelling", "check_out", "write_list"]

MOST_CLASSES = 100_000
"""So many labels are counted, at most: of captions there are as many as samples."""


class Labelling:
    """Gives each row its label once all are known, and counts the classes.

    Rows without a label are of the first folder that tells samples apart. Until all are read they lie in a
    temporary file, so that memory is bounded.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._rows = tempfile.TemporaryFile(dir=temporary_directory())  # noqa: SIM115  # closed by close()
        self._common: list[str] | None = None
        self._deepest = 0
        self.counts: Counter[Any] = Counter()

    def take(self, rows: Rows) -> None:
        """Keep some more rows."""
        for row in rows:
            if row["label"] is None:
                folders = folders_of(row["member"])
                self._deepest = max(self._deepest, len(folders))
                common = folders if self._common is None else self._common
                pairs = itertools.takewhile(
                    lambda pair: pair[0] == pair[1], zip(common, folders, strict=False)
                )
                self._common = [folder for folder, _ in pairs]
        if rows:
            self._rows.write(json.dumps(rows).encode() + b"\n")

    def labelled(self) -> Iterator[Rows]:
        """All rows with their labels, as they were taken.

        Raises:
            SourceError: folders tell no classes apart or name splits, or labels are of two kinds.
        """
        first: Row = {}
        for rows in self._taken():
            for row in rows:
                if row["label"] is None:
                    row["label"] = self._folder_of(row)
                first, label = first or row, row["label"]
                if isinstance(label, str) is not isinstance(first["label"], str):
                    raise ShardError(
                        f"{_where(row)}: its label is {label!r:.60}, that of {_where(first)} is "
                        f"{first['label']!r:.60}: labels are all numbers or all texts (--label-field, "
                        "--labels)"
                    )
                if isinstance(label, int | str) and (label in self.counts or len(self.counts) < MOST_CLASSES):
                    self.counts[label] += 1
            yield rows
        names = {name for name in self.counts if isinstance(name, str)}
        if self._common is not None and len(names) > 1 and {name.lower() for name in names} <= SPLITS:
            raise SourceError(
                f"{self._url}: the first folders of its samples are {', '.join(sorted(names))}, which are "
                "splits and no classes: name one by --split NAME"
            )

    def close(self) -> None:
        """Delete the temporary file."""
        self._rows.close()

    def _taken(self) -> Iterator[Rows]:
        self._rows.seek(0)
        yield from map(json.loads, self._rows)

    def _folder_of(self, row: Row) -> str:
        folders, common = folders_of(row["member"]), self._common or []
        # Where all lie in one folder it is the one class, which the table of classes shows.
        depth = len(common) - (len(common) == self._deepest)
        if len(folders) > depth:
            return folders[depth]
        raise SourceError(
            f"{_where(row)}: all samples lie in {'/'.join(common)!r}, and this one in no further folder that "
            "names its class: --labels folder takes the folder in which each lies, --label-field NAME a file "
            "beside it, --labels none the number 0"
        )


def _where(row: Row) -> str:
    return f"{row['key']}: member {row['member']!r}" if "member" in row else row["key"]


# ---------------------------------------------------------------------------------------------------- formats


def _write_jsonl(batches: Iterable[Rows], stream: BinaryIO) -> None:
    for rows in batches:
        stream.writelines(f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in rows)


def _write_csv(batches: Iterable[Rows], stream: BinaryIO) -> None:
    from superdl.coordinator.catalog.key_list_labels import number_or_text

    text = io.TextIOWrapper(stream, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    for number, row in enumerate(itertools.chain.from_iterable(batches)):
        label = row["label"]
        if isinstance(label, str) and not isinstance(number_or_text(label), str):
            raise ConfigError(
                f"the label {label!r} of {row['key']} names a class; CSV cannot tell the text from a number: "
                "write .jsonl or .parquet"
            )
        if not number:
            writer.writerow(row)
        writer.writerow(row.values())
    text.flush()
    text.detach()


def _write_parquet(batches: Iterable[Rows], stream: BinaryIO) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            "writing Parquet needs pyarrow: pip install superdl[parquet], or write .jsonl"
        ) from error
    whole = pa.int64()
    with ExitStack() as stack:
        writer: Any = None
        for rows in batches:
            if writer is None:
                kinds = {
                    name: whole if name.endswith(("offset", "length")) else pa.string() for name in rows[0]
                }
                kinds["label"] = {int: whole, float: pa.float64()}.get(type(rows[0]["label"]), pa.string())
                writer = stack.enter_context(parquet.ParquetWriter(stream, pa.schema(kinds)))
            odd = next((row for row in rows if not isinstance(row["label"], int)), None)
            if odd and writer.schema.field("label").type == whole:  # into which Arrow would round
                raise ConfigError(
                    f"the label {odd['label']} of {odd['key']} is no integer, those before it are, and a "
                    "column of Parquet has one type: write .jsonl"
                )
            try:
                writer.write_table(pa.Table.from_pylist(rows, writer.schema))
            except OverflowError as error:
                raise ConfigError(f"a label of {rows[0]['key']} does not fit into 64 bits") from error


_WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}


# ----------------------------------------------------------------------------------------------------- places


def check_out(out: str, *, force: bool) -> None:
    """See, before anything is read, that a list may be written there.

    Raises:
        ConfigError: the name says no format, or something is there and may not be replaced.
        SourceError: there is no such directory or bucket, or it may not be looked at.
    """
    if PurePosixPath(out).suffix.lower() not in _WRITERS:
        raise ConfigError(f"-o {out!r} ends in one of {', '.join(_WRITERS)}, by which its format is chosen")
    bucket, place = split_url(out, "-o")
    if bucket and not bucket.startswith("s3://"):
        raise ConfigError(f"-o {out!r}: lists are written to S3 or to this machine: name s3:// or a path")
    if bucket:
        try:
            with _s3_client(bucket, place) as client:
                client.head_object(Bucket=bucket.removeprefix("s3://"), Key=place)
                there = True
        except SourceNotFoundError:
            there = False
    else:
        path = Path(place).absolute()
        if not path.parent.is_dir():
            raise ConfigError(f"-o {out!r}: there is no directory {path.parent}: make it")
        if path.is_dir():
            raise ConfigError(f"-o {out!r} is a directory: name a file in it")
        there = path.exists()
    if there and not force:
        raise ConfigError(f"-o {out!r} is there: --force replaces it")


def write_list(out: str, batches: Iterable[Rows]) -> None:
    """Write rows: they appear at ``out`` once all are written, else nothing does."""
    bucket, place = split_url(out, "-o")
    write = _WRITERS[PurePosixPath(out).suffix.lower()]
    if bucket:
        with tempfile.TemporaryFile(dir=temporary_directory()) as spooled:
            write(batches, spooled)
            spooled.seek(0)
            with _s3_client(bucket, place) as client:
                client.put_object(Bucket=bucket.removeprefix("s3://"), Key=place, Body=spooled)
        return
    path = Path(place).absolute()
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as stream:
            write(batches, stream)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except OSError as error:
        raise SourceError(f"-o {path} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _s3_client(bucket: str, key: str) -> Iterator[Any]:
    from superdl.coordinator.catalog.s3_client import make_s3_client, s3_failures

    with s3_failures(f"{bucket}/{key}"), closing(make_s3_client()) as client:
        yield client
