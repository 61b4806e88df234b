"""Key lists: a file that names the samples of a source and their labels, read by the coordinator.

Keys are relative to the source: of ``s3://bucket/train``, the object ``train/cat/1.jpg`` is ``cat/1.jpg``.
How rows are written in each format is :mod:`superdl.coordinator.catalog.key_list_rows`'s; finding the
versions of a list that has none is :mod:`superdl.coordinator.catalog.lister`'s.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

import numpy as np

from superdl.coordinator.catalog.catalog import check_once
from superdl.coordinator.catalog.key_list_labels import LabelColumn
from superdl.coordinator.catalog.key_list_rows import FORMATS, BadRowError
from superdl.coordinator.catalog.listing import Noted
from superdl.coordinator.catalog.listing_bucket import download
from superdl.coordinator.catalog.members import MemberColumns, distinct
from superdl.coordinator.catalog.strings import PackedStrings, PackedStringsBuilder
from superdl.super_wire.errors import SourceEmptyError, SourceError, SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.redaction import without_credentials
from superdl.super_wire.source_url import split_url
from superdl.super_wire.temporary import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from superdl.coordinator.catalog.key_list_rows import Row
    from superdl.coordinator.catalog.listing import Tally
    from superdl.coordinator.catalog.members import Members
    from superdl.super_wire.labels import Labels

__all__ = ["KEY_LIST_HELP", "MAX_KEY_LIST_BYTES", "KeyList", "read_key_list"]

KEY_LIST_HELP = (
    "give key_list the URL of a CSV, JSONL or Parquet file with the columns key (relative to the source) "
    'and label, for example SuperDataset(source, recipe, key_list="s3://bucket/labels.csv")'
)
"""What to do where a source's folders do not say its labels."""

MAX_KEY_LIST_BYTES = 4 * 2**30
_MAX_KEY_BYTES = 4096  # Linux's longest path; S3 keys have at most 1024
_MAX_VERSION_BYTES = 256
_ROWS_AT_A_TIME = 1000


class Part(NamedTuple):
    """What a key list says of a further field of its samples, as :class:`KeyList` does of their own objects,
    but that a key may come several times.
    """

    keys: PackedStrings
    versions: PackedStrings | None
    members: Members | None
    lines: Sequence[int]


@dataclass(frozen=True, slots=True)
class KeyList:
    """What a key list says, in its order.

    ``keys`` are relative to the source; ``versions`` is ``None`` if the list has no such column; ``labels``
    and ``classes`` are as in :class:`~superdl.coordinator.catalog.catalog.Catalog`.

    Where the rows are ``members`` of objects, these are in their order, ``lines`` are their numbers, and keys
    and versions are of the objects: each once, in the order of its bytes. ``fields`` are by their names.
    """

    url: str
    keys: PackedStrings
    versions: PackedStrings | None
    labels: Labels
    classes: tuple[str, ...]
    members: Members | None = None
    lines: Sequence[int] = ()
    fields: Mapping[str, Part] = field(default_factory=dict)


def read_key_list(url: str, tally: Tally, *, of_files: bool, classes: Sequence[str] = ()) -> KeyList:
    """Read and check a key list.

    Args:
        url: a bucket's, ``file://`` or plain path of a ``.csv``, ``.jsonl`` or ``.parquet`` file.
        tally: checked now and then for whether the list is still needed; counts rows where the list alone
            says what there is, and notes classes without a row.
        of_files: whether the source is a directory or a web server, out of which no key may lead.
        classes: the names of the classes by their labels; empty: those that the list has, sorted.

    Raises:
        ConfigError: the URL is none.
        SourceError: it is not there (``SourceNotFoundError``), may not be read (``SourceForbiddenError``),
            has no row (``SourceEmptyError``), or has a bad one: the message names line and reason. Or its
            labels are no names, and ``classes`` are given.
        ListingCancelledError: nobody wants the list any more.
    """
    read_rows = FORMATS.get(PurePosixPath(url).suffix.lower())
    if read_rows is None:
        shown = without_credentials(url)
        raise SourceError(
            f"key_list {shown!r} is in no known format: name it {', '.join(FORMATS)} by what it holds"
        )
    labels = LabelColumn(classes)
    columns = _Columns(labels, of_files=of_files)
    with _open(url, tally) as stream:
        try:
            for row in read_rows(stream):
                if columns.rows % _ROWS_AT_A_TIME == 0:
                    tally.reach(columns.rows)
                try:
                    columns.append(row)
                except ValueError as error:
                    raise BadRowError(row.number, str(error)) from error
        except BadRowError as error:
            where = f", line {error.number}" if error.number else ""
            raise SourceError(f"key_list {url}{where}: {error.reason}") from error
    if not columns.rows:
        raise SourceEmptyError(
            f"key_list {url} names no sample: it needs one row for each, below the header if it is CSV"
        )
    if len(columns.versions):
        tally.add(columns.rows)
    fields = {
        name: theirs.part(f"{url}, the field {name}", shared=True) for name, theirs in columns.fields.items()
    }
    own, packed = columns.part(url), _finished(labels, url, tally)
    if own.members is not None:
        return KeyList(url, own.keys, own.versions, *packed, own.members, own.lines, fields)
    if own.versions is None:  # which are looked up by keys; else the catalog finds what comes twice
        check_once(own.keys.reorder(own.keys.sort_order()), f"key_list {url}")
    return KeyList(url, own.keys, own.versions, *packed, fields=fields)


def _finished(labels: LabelColumn, url: str, tally: Tally) -> tuple[Labels, tuple[str, ...]]:
    """Return labels and class names, and note the given ones that have no row."""
    packed, classes = labels.finish()
    if labels.unseen and not classes:
        raise SourceError(
            f"key_list {url}: classes= names {len(labels.unseen)} classes, and none of its labels is a name: "
            "leave classes= out, or write labels as names (of digits in JSONL or Parquet: in CSV they are "
            "numbers)"
        )
    for name in labels.unseen:
        tally.note(Noted.UNSEEN, name)
    return packed, classes


class _Columns:
    """What the rows of a key list say, packed."""

    def __init__(self, labels: LabelColumn | None, *, of_files: bool) -> None:
        self._of_files, self._labels = of_files, labels
        self._before = (b"", b"")
        self.keys, self.versions = PackedStringsBuilder(), PackedStringsBuilder()
        self.members = MemberColumns()
        self.rows = 0
        self.fields: dict[str, _Columns] = {}

    def append(self, row: Row) -> None:
        """Add a row; ``ValueError`` says what is wrong with it."""
        self.rows += 1
        key = _key(row.key, of_files=self._of_files)
        version = b"" if row.version is None else _version(row.version)
        # Members of one object mostly stand together: their rows add its key once.
        if row.member is None or (key, version) != self._before:
            self.keys.append(key)
            if row.version is not None:
                self.versions.append(version)
            self._before = key, version
        if row.member is not None:
            self.members.append(row.member, key, place=len(self.keys) - 1, line=row.number)
        if row.fields or self.fields:
            self._append_fields(row.fields)
        if self._labels is not None:
            self._labels.append(row.label)

    def _append_fields(self, fields: Mapping[str, Row]) -> None:
        for name, part in fields.items():
            try:
                self.fields.setdefault(name, _Columns(None, of_files=self._of_files)).append(part)
            except ValueError as error:
                raise ValueError(f"the field {name}: {error}") from error

    def part(self, url: str, *, shared: bool = False) -> Part:
        """The objects or members of all rows, which may be ``shared`` by several."""
        keys, versions = self.keys.build(), self.versions.build() if len(self.versions) else None
        if not len(self.members):
            return Part(keys, versions, None, ())
        first, which = distinct(keys)
        objects = keys.reorder(first)
        if versions is not None:
            version_of = distinct(versions)[1]
            if len(other := np.flatnonzero(version_of != version_of[first][which])):
                key, at = keys[int(other[0])], int(other[0])
                raise SourceError(
                    f"key_list {url}: the members of {key.decode()[:200]!r} are of two versions, "
                    f"{versions[int(first[which[at]])].decode()!r} and {versions[at].decode()!r}: an object "
                    "has one; list its members again"
                )
            versions = versions.reorder(first)
        try:
            members = self.members.finish(objects, which, shared=shared)
        except ValueError as error:
            raise SourceError(f"key_list {url}: {error}") from error
        return Part(objects, versions, members, self.members.lines)


def _key(key: object, *, of_files: bool) -> bytes:
    if not isinstance(key, str) or not key or "\0" in key:
        raise ValueError(f"a key is a text of one character or more, without NUL; not {str(key)[:60]!r}")
    if of_files and not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise ValueError(
            f"the key {key[:200]!r} is not a path below the source: write it without leading /, // , . and .."
        )
    encoded = key.encode()
    if len(encoded) > _MAX_KEY_BYTES:
        raise ValueError(
            f"the key {key[:60]!r}... has {len(encoded)} bytes; at most {_MAX_KEY_BYTES} are possible"
        )
    return encoded


def _version(version: object) -> bytes:
    if not isinstance(version, str) or not version.strip('"') or len(version) > _MAX_VERSION_BYTES:
        raise ValueError(
            f"a version is the object's ETag, or size-mtime_ns of a file; not {str(version)[:60]!r}: "
            "leave the column out to have the versions looked up"
        )
    return version.strip('"').encode()


@contextmanager
def _open(url: str, tally: Tally) -> Iterator[BinaryIO]:
    """The bytes of a key list as a local, seekable file."""
    bucket, place = split_url(url, "key_list")
    if bucket:
        with tempfile.TemporaryFile(dir=temporary_directory()) as stream:
            file = cast("BinaryIO", stream)
            download(bucket, place, f"key_list {url}", partial(_check_size, url), file, tally)
            stream.seek(0)
            yield file
        return
    path = Path(place).absolute()
    tally.allowed.check_path(os.path.realpath(path), f"key_list {url}")
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise SourceError(f"key_list {path} is no file")
        opened = path.open("rb")  # errors of opening are told apart from those of reading
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFoundError(f"key_list {path} does not exist on the coordinator's machine") from error
    except PermissionError as error:
        raise SourceForbiddenError(
            f"the coordinator (user id {os.geteuid()}) may not read key_list {path}: grant it read permission"
        ) from error
    except OSError as error:
        raise SourceError(f"key_list {path} cannot be read: {error.strerror}") from error
    with opened:
        tally.allowed.check_open_file(opened.fileno(), f"key_list {url}")
        _check_size(url, os.fstat(opened.fileno()).st_size)
        yield opened


def _check_size(url: str, size_bytes: int) -> None:
    if size_bytes > MAX_KEY_LIST_BYTES:
        raise SourceError(f"key_list {url} has {size_bytes} bytes; at most {MAX_KEY_LIST_BYTES} are read")
