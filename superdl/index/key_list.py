"""Build the rows of a key list, label them, and write them as JSONL or Parquet."""

from __future__ import annotations

import json
import os
import posixpath
import re
import secrets
import tempfile
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from superdl.index.choices import EVERY_SPLIT, LABELS, SPLITS, folders_of, star_of
from superdl.index.shard import ShardError
from superdl.super_wire.errors import ConfigError, SourceError, SourceNotFoundError
from superdl.super_wire.objects import open_bucket, source_failures
from superdl.super_wire.request import Limits, is_row
from superdl.super_wire.run_directory import temporary_directory
from superdl.super_wire.source_url import split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from superdl.index.choices import Choices
    from superdl.index.shard import Label, Member, Shard

    Row = dict[str, Any]  # keyed by column names, which are the same in all
    Rows = list[Row]

# Maximum number of labels that are counted: captions have as many as samples.
MOST_CLASSES = 100_000

_NAME_BYTES = 4096
_ODD = re.compile("[\0\ud800-\udfff]")  # in names: NUL, and the substitute for bytes that are not UTF-8
_MEMBER_BYTES = Limits().object_bytes


def rows_of(shard: Shard, members: Iterable[Member], choices: Choices) -> tuple[Rows, int, int]:
    """Return a shard's rows and the numbers of empty and incomplete samples; may raise ``ShardError``."""
    members = sorted(members, key=lambda member: (member.offset, member.length))
    if choices.split not in {None, EVERY_SPLIT}:
        members = [member for member in members if choices.split in folders_of(member.name)]
    _check(shard, members)
    filled = [member for member in members if member.length or is_row(member.encoding)]
    by_star = [
        {star: member for member in filled if (star := star_of(pattern, member.name)) is not None}
        for _, pattern in choices.fields
    ] or [{member.name: member for member in filled}]
    rows = []
    for star, member in by_star[0].items():
        fields = [members_of[star] for members_of in by_star if star in members_of]
        if len(fields) == len(by_star):
            label = _label(shard, member, choices)
            row = {"key": shard.key, **_location(member), "label": label, "version": shard.version}
            for (name, _), field in zip(choices.fields[1:], fields[1:], strict=True):
                row |= {f"{name}.{column}": value for column, value in _location(field).items()}
            rows.append(row)
    return rows, len(members) - len(filled), len(by_star[0]) - len(rows)


def _check(shard: Shard, members: Sequence[Member]) -> None:
    end, before, names = 0, "", Counter(member.name for member in members)
    for name, offset, length, _, encoding in members:
        if _ODD.search(name) or not 0 < len(name.encode(errors="replace")) <= _NAME_BYTES:
            why = f"name is not UTF-8, is empty, contains a NUL, or exceeds {_NAME_BYTES} bytes: rename it"
            raise shard.error(why, name)
        if names[name] > 1:
            raise shard.error("duplicate name", name)
        if not is_row(encoding):
            shard.check(offset, length, name)
            if length > _MEMBER_BYTES:
                raise shard.error(f"takes up {length:,} bytes, more than {_MEMBER_BYTES:,}", name)
            if offset < end:
                raise shard.error(f"overlaps member {before!r}", name)
            end, before = offset + length, name


def _location(member: Member) -> Row:
    values = member.name, member.offset, member.length, member.encoding
    return dict(zip(("member", "offset", "length", "encoding"), values, strict=True))


def _label(shard: Shard, member: Member, choices: Choices) -> Label | None:
    """Return a member's label, or ``None`` if its folder will determine it."""
    folders = folders_of(member.name)
    fixed: dict[str, Label] = {"none": 0, "folder": "".join(folders[-1:])}
    label = fixed.get(choices.labels, member.label)
    if label is None and folders and choices.label_field is None:
        return None
    if label is None or label == "":
        options = f"--label-field NAME or --labels ({', '.join(LABELS)})"
        raise shard.error(f"no label: select the source of labels with {options}", member.name)
    return label


class Labelling:
    """Collects rows, labels them once all are known, and counts the samples of each class."""

    def __init__(self, url: str, buffer: IO[bytes]) -> None:
        # Until all are read, rows wait in a temporary file.
        self._url, self._buffer = url, buffer
        # Rows without a label are labelled by the first folder level that differs between samples.
        self._common: list[str] | None = None
        self._deepest = 0
        self.counts: Counter[Any] = Counter()

    def take(self, rows: Rows) -> None:
        """Store more rows."""
        for row in rows:
            if row["label"] is None:
                folders = folders_of(row["member"])
                self._deepest = max(self._deepest, len(folders))
                folder_lists = [folders if self._common is None else self._common, folders]
                self._common = list(posixpath.commonprefix(folder_lists))
        if rows:
            self._buffer.write(json.dumps(rows).encode() + b"\n")

    def labelled(self) -> Iterator[Rows]:
        """Yield all rows with labels; raise ``SourceError`` if folders are splits, or label types differ."""
        first: Row = {}
        self._buffer.seek(0)
        for rows in map(json.loads, self._buffer):
            for row in rows:
                if row["label"] is None:
                    row["label"] = self._folder_of(row)
                first, label = first or row, row["label"]
                if isinstance(label, str) is not isinstance(first["label"], str):
                    difference = (
                        f"its label is {label!r:.60}, but that of {_where(first)} is {first['label']!r:.60}"
                    )
                    remedy = "labels must be all numbers or all strings (--label-field, --labels)"
                    raise ShardError(f"{_where(row)}: {difference}: {remedy}")
                if isinstance(label, int | str) and (label in self.counts or len(self.counts) < MOST_CLASSES):
                    self.counts[label] += 1
            yield rows
        names = sorted(name for name in self.counts if isinstance(name, str))
        if self._common is not None and len(names) > 1 and all(name.lower() in SPLITS for name in names):
            why = f"the first folders of its samples are {', '.join(names)}, which are splits, not classes"
            raise SourceError(f"{self._url}: {why}: choose one with --split NAME")

    def _folder_of(self, row: Row) -> str:
        folders, common = folders_of(row["member"]), self._common or []
        # If all are in one folder, it is the only class, which the table of classes shows.
        depth = len(common) - (len(common) == self._deepest)
        if len(folders) > depth:
            return folders[depth]
        why = f"all samples are below {'/'.join(common)!r}, but this one has no class folder there"
        remedy = "use --labels folder to label each by its own folder, or --labels none for label 0"
        raise SourceError(f"{_where(row)}: {why}: {remedy}")


def _where(row: Row) -> str:
    return f"{row['key']}: member {row['member']!r}" if "member" in row else row["key"]


def _write_jsonl(stream: IO[bytes], batches: Iterable[Rows]) -> None:
    for rows in batches:
        stream.writelines(f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in rows)


def _write_parquet(stream: IO[bytes], batches: Iterable[Rows]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with ExitStack() as stack:
        writer: Any = None
        for rows in batches:
            try:
                table = pa.Table.from_pylist(rows)
                table = table if writer is None else table.cast(writer.schema)
            except (pa.ArrowInvalid, OverflowError) as error:
                why = f"a Parquet column must have one type, but labels from {_where(rows[0])} on differ"
                raise ConfigError(f"{why} ({error}): use .jsonl") from error
            writer = writer or stack.enter_context(parquet.ParquetWriter(stream, table.schema))
            writer.write_table(table)


_WRITERS = {".jsonl": _write_jsonl, ".parquet": _write_parquet}


@contextmanager
def key_list_at(out: str, *, force: bool) -> Iterator[Callable[[Iterable[Rows]], None]]:
    """Yield a function that writes rows. The key list is written completely or not at all."""
    bucket, path = split_url(out, "-o")
    write = _WRITERS.get(Path(out).suffix.lower())
    if write is None:
        raise ConfigError(f"-o {out!r} must end in {' or '.join(_WRITERS)}")
    if bucket and not bucket.startswith("s3://"):
        raise ConfigError(
            f"-o {out!r}: lists can only be written to S3 or to this machine, so pass s3:// or a path"
        )
    with _object(bucket, path, force=force) if bucket else _file(Path(path), force=force) as stream:

        def write_rows(batches: Iterable[Rows]) -> None:
            try:
                write(stream, batches)
                stream.flush()
                # Before the rename, or a crash could leave an empty list under the final name.
                os.fsync(stream.fileno())
            except OSError as error:
                raise SourceError(f"-o {out} cannot be written: {error.strerror or error}") from error

        yield write_rows


@contextmanager
def _file(path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    if path.is_dir():
        raise ConfigError(f"-o {path} is a directory: add the name of a file")
    if path.exists() and not force:
        raise ConfigError(f"-o {path} already exists: use --force to replace it")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        stream = temporary.open("xb")
    except OSError as error:
        raise ConfigError(f"-o {path} cannot be written: {error.strerror or error}") from error
    try:
        with stream:
            yield stream
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _object(bucket: str, key: str, *, force: bool) -> Iterator[IO[bytes]]:
    url, client = f"{bucket}/{key}", open_bucket(bucket)
    with tempfile.TemporaryFile(dir=temporary_directory()) as stream:
        try:
            with source_failures(url):
                client.head(key)
        except SourceNotFoundError:
            force = True
        if not force:
            raise ConfigError(f"-o {url} already exists: use --force to replace it")
        yield stream
        with source_failures(url):
            client.put(key, cast("BinaryIO", stream))
