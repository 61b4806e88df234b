"""Key lists: files that name the samples of a source and their labels. The coordinator reads them.

Keys are relative to the source: in ``s3://bucket/train``, the object ``train/cat/1.jpg`` is ``cat/1.jpg``.
:mod:`superdl.coordinator.catalog.key_list_rows` reads the rows of each format.
:mod:`superdl.coordinator.catalog.lister` looks up versions that a list lacks.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

from superdl.coordinator.catalog.catalog import check_once
from superdl.coordinator.catalog.key_list_labels import LabelColumn
from superdl.coordinator.catalog.key_list_rows import FORMATS, BadRowError
from superdl.coordinator.catalog.listing import Noted
from superdl.coordinator.catalog.listing_bucket import download
from superdl.coordinator.catalog.members import MemberColumns, MemberRow, distinct
from superdl.coordinator.catalog.strings import PackedStrings, PackedStringsBuilder
from superdl.super_wire.errors import SourceEmptyError, SourceError, SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.redaction import without_credentials
from superdl.super_wire.run_directory import temporary_directory
from superdl.super_wire.source_url import split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.key_list_rows import Rows
    from superdl.coordinator.catalog.listing import Tally
    from superdl.coordinator.catalog.members import Members
    from superdl.super_wire.labels import Labels

__all__ = ["KEY_LIST_HELP", "MAX_KEY_LIST_BYTES", "KeyList", "read_key_list"]

KEY_LIST_HELP = (
    "give key_list the URL of a CSV, JSONL or Parquet file with the columns key (relative to the source) "
    'and label, for example SuperDataset(source, recipe, key_list="s3://bucket/labels.csv")'
)
"""Advice for sources whose folders do not determine the labels."""

MAX_KEY_LIST_BYTES = 4 * 2**30
_MAX_KEY_BYTES = 4096  # Linux's longest path; S3 keys have at most 1024
_MAX_VERSION = 256  # characters
_OUTSIDE = r"(\A|/)\.{0,2}(/|\z)"  # a path segment that is empty, . or ..
_HALF = re.compile("[\ud800-\udfff]")


class Part(NamedTuple):
    """The columns of a further field, as in :class:`KeyList`, but a key may repeat."""

    keys: PackedStrings
    versions: PackedStrings | None
    members: Members | None
    lines: Sequence[int]


@dataclass(frozen=True, slots=True)
class KeyList:
    """The columns of a key list, in its order.

    ``keys`` are relative to the source. ``versions`` is ``None`` if the list has no such column. ``labels``
    and ``classes`` are as in :class:`~superdl.coordinator.catalog.catalog.Catalog`.

    If the rows are ``members`` of objects, members are in row order and ``lines`` are the row numbers. Keys
    and versions are those of the objects, each once, in byte order. ``fields`` are by name.
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
        url: of a ``.csv``, ``.jsonl`` or ``.parquet`` file: in a bucket, ``file://`` or a plain path.
        tally: checked regularly for cancellation; counts rows if the list alone determines the samples, and
            notes classes without a row.
        of_files: the source is a directory or a web server; no key may lead outside of it.
        classes: class names by label; empty: the sorted names in the list.

    Raises:
        ConfigError: the URL is malformed.
        SourceError: the list does not exist (``SourceNotFoundError``), may not be read
            (``SourceForbiddenError``), has no row (``SourceEmptyError``), or has a bad row: the message gives
            line and reason. Or its labels are not names although ``classes`` are given.
        ListingCancelledError: the listing was cancelled.
    """
    read_rows = FORMATS.get(PurePosixPath(url).suffix.lower())
    if read_rows is None:
        shown = without_credentials(url)
        raise SourceError(
            f"key_list {shown!r} is in no known format: name it {', '.join(FORMATS)} by what it holds"
        )
    labels = LabelColumn(classes)
    with _open(url, tally) as stream:
        try:
            columns, count = _columns_of(read_rows(stream), labels, tally, of_files=of_files)
        except BadRowError as error:
            where = f", line {error.number}" if error.number else ""
            raise SourceError(f"key_list {url}{where}: {error.reason}") from error
    if not count:
        raise SourceEmptyError(
            f"key_list {url} names no sample: it needs one row for each, below the header if it is CSV"
        )
    # Otherwise, the samples are counted when their versions are looked up.
    if len(columns[""].versions):
        tally.add(count)
    tally.found_all()
    own, packed = columns.pop("").part(url), _finished(labels, url, tally)
    fields = {name: theirs.part(f"{url}, the field {name}", shared=True) for name, theirs in columns.items()}
    if own.members is not None:
        return KeyList(url, own.keys, own.versions, *packed, own.members, own.lines, fields)
    if own.versions is None:  # they are looked up by key; else the catalog finds repeated keys
        check_once(own.keys.reorder(own.keys.sort_order()), f"key_list {url}")
    return KeyList(url, own.keys, own.versions, *packed, fields=fields)


def _columns_of(
    batches: Iterable[Rows], labels: LabelColumn, tally: Tally, *, of_files: bool
) -> tuple[dict[str, _Columns], int]:
    """Pack all rows. Return the columns of each part, by name, and the number of rows."""
    columns, count = dict[str, _Columns](), 0
    for rows in batches:
        tally.reach(count)
        for part in rows.parts:
            columns.setdefault(part, _Columns(part, of_files=of_files)).extend(rows)
        for number, label in zip(rows.numbers, rows.labels, strict=True):
            try:
                labels.append(label)
            except ValueError as error:
                raise BadRowError(number, str(error)) from error
        count += len(rows.numbers)
    return columns, count


def _finished(labels: LabelColumn, url: str, tally: Tally) -> tuple[Labels, tuple[str, ...]]:
    """Return labels and class names, and note the given classes that have no row."""
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
    """The packed columns of one part of the samples."""

    def __init__(self, name: str, *, of_files: bool) -> None:
        self._name, self._of_files = name, of_files
        self.keys, self.versions = PackedStringsBuilder(), PackedStringsBuilder()
        self.members = MemberColumns()

    def extend(self, rows: Rows) -> None:
        """Add rows; :class:`BadRowError` names a wrong one."""
        try:
            self._extend(rows, rows.parts[self._name], f"{self._name}." * bool(self._name))
        except BadRowError as error:
            if not self._name:
                raise
            raise BadRowError(error.number, f"the field {self._name}: {error.reason}") from error

    def _extend(self, rows: Rows, names: Collection[str], prefix: str) -> None:
        # A field without a key of its own is in the sample's object.
        keyed = prefix if "key" in names else ""
        keys = _keys(rows, f"{keyed}key", of_files=self._of_files)
        versions = None
        if "version" in names:
            versions = _versions(rows, f"{prefix}version")
        elif not keyed and "version" in rows.parts[""]:
            versions = _versions(rows, "version")
        if "member" in names:
            # Members of one object are mostly adjacent: add its key once for each run of them.
            is_new = np.ones(len(keys), dtype=np.bool_)
            is_new[1:] = ~keys.equals_next()
            if versions is not None:
                is_new[1:] |= ~versions.equals_next()
            self._add_members(rows, prefix, keys, len(self.keys) - 1 + np.cumsum(is_new))
            keys = keys.reorder(np.flatnonzero(is_new))
            versions = None if versions is None else versions.reorder(np.flatnonzero(is_new))
        self.keys.extend(keys)
        if versions is not None:
            self.versions.extend(versions)

    def _add_members(self, rows: Rows, prefix: str, keys: PackedStrings, places: NDArray[np.int64]) -> None:
        columns = [_values(rows, f"{prefix}{name}") for name in ("member", "offset", "length", "encoding")]
        for at, number in enumerate(rows.numbers):
            name, offset, length, encoding = (column[at] for column in columns)
            member = MemberRow(name, offset, length, "" if encoding is None else encoding)
            try:
                self.members.append(member, keys[at], place=int(places[at]), line=number)
            except ValueError as error:
                raise BadRowError(number, str(error)) from error

    def part(self, url: str, *, shared: bool = False) -> Part:
        """Return the objects or members of all rows. If ``shared``, rows may share one."""
        keys, versions = self.keys.build(), self.versions.build() if len(self.versions) else None
        if not len(self.members):
            return Part(keys, versions, None, ())
        first, which = distinct(keys)
        objects = keys.reorder(first)
        if versions is not None:
            # Members of one object may be scattered: compare the version of each with the first.
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


def _values(rows: Rows, name: str) -> list[Any]:
    """Return a column as Python values: all ``None`` if the column does not exist."""
    column = rows.columns.get(name)
    if column is None:
        return [None] * len(rows.numbers)
    return column if isinstance(column, list) else list(column.to_pylist())


def _texts(rows: Rows, name: str, reason: Callable[[object], str]) -> Any:
    """Return a column as Arrow strings, null as empty; ``reason`` describes a bad value."""
    import pyarrow as pa

    column = rows.columns[name]
    if not isinstance(column, list):
        return column.cast(pa.large_utf8()).fill_null("")
    for number, value in zip(rows.numbers, column, strict=True):
        if not isinstance(value, str) or _HALF.search(value):
            raise BadRowError(number, reason(value))
    return pa.array(column, pa.large_utf8())


def _refuse(rows: Rows, texts: Any, bad: Any, reason: Callable[[object], str]) -> None:
    """Raise for the first bad text, if any."""
    import pyarrow.compute as pc

    if (at := pc.index(bad, value=True).as_py()) >= 0:
        raise BadRowError(rows.numbers[at], reason(texts[at].as_py()))


def _keys(rows: Rows, name: str, *, of_files: bool) -> PackedStrings:
    import pyarrow.compute as pc

    keys = _texts(rows, name, _no_key)
    sizes = pc.binary_length(keys)
    _refuse(rows, keys, pc.or_(pc.equal(sizes, 0), pc.match_substring(keys, "\0")), _no_key)
    if of_files:
        _refuse(rows, keys, pc.match_substring_regex(keys, _OUTSIDE), _leads_out)
    _refuse(rows, keys, pc.greater(sizes, _MAX_KEY_BYTES), _is_long)
    return PackedStrings.of(keys)


def _no_key(key: object) -> str:
    rule = "a key is a text of one character or more, without NUL and surrogates"
    return f"{rule}; not {str(key)[:60]!r}"


def _leads_out(key: object) -> str:
    rule = "is not a path below the source: write it without leading /, // , . and .."
    return f"the key {str(key)[:200]!r} {rule}"


def _is_long(key: object) -> str:
    size_bytes = len(str(key).encode())
    return f"the key {str(key)[:60]!r}... has {size_bytes} bytes; at most {_MAX_KEY_BYTES} are possible"


def _versions(rows: Rows, name: str) -> PackedStrings:
    import pyarrow.compute as pc

    versions = _texts(rows, name, _no_version)
    # S3 quotes ETags, and lists may contain them either way.
    bare = pc.utf8_trim(versions, '"')
    long = pc.greater(pc.utf8_length(versions), _MAX_VERSION)
    _refuse(rows, versions, pc.or_(long, pc.equal(pc.binary_length(bare), 0)), _no_version)
    return PackedStrings.of(bare)


def _no_version(version: object) -> str:
    return (
        f"a version is the object's ETag, or size-mtime_ns of a file; not {str(version)[:60]!r}: "
        "leave the column out to have the versions looked up"
    )


@contextmanager
def _open(url: str, tally: Tally) -> Iterator[BinaryIO]:
    """Open a key list as a local, seekable file."""
    bucket, place = split_url(url, "key_list")
    if bucket:
        with tempfile.TemporaryFile(dir=temporary_directory()) as stream:
            file = cast("BinaryIO", stream)
            download(bucket, place, f"key_list {url}", partial(_check_size, url), file, tally)
            stream.seek(0)
            yield file
        return
    path = Path(place).absolute()
    # Checked before anything reveals whether the path exists.
    tally.allowed.check_path(os.path.realpath(path), f"key_list {url}")
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            raise SourceError(f"key_list {path} is no file")
        opened = path.open("rb")  # separate from reading, whose errors differ
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFoundError(f"key_list {path} does not exist on the coordinator's machine") from error
    except PermissionError as error:
        raise SourceForbiddenError(
            f"the coordinator (user id {os.geteuid()}) may not read key_list {path}: grant it read permission"
        ) from error
    except OSError as error:
        raise SourceError(f"key_list {path} cannot be read: {error.strerror}") from error
    with opened:
        # Check the opened file again, since a link may have been swapped in the meantime.
        tally.allowed.check_open_file(opened.fileno(), f"key_list {url}")
        _check_size(url, os.fstat(opened.fileno()).st_size)
        yield opened


def _check_size(url: str, size_bytes: int) -> None:
    if size_bytes > MAX_KEY_LIST_BYTES:
        raise SourceError(f"key_list {url} has {size_bytes} bytes; at most {MAX_KEY_LIST_BYTES} are read")
