"""Key lists: files that contain the samples' keys (relative to the source) and labels."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from superdl.coordinator.catalog.catalog import check_unique
from superdl.coordinator.catalog.key_list_columns import VARIES, BadRowError, PartColumns
from superdl.coordinator.catalog.key_list_formats import FORMATS
from superdl.coordinator.catalog.key_list_labels import LabelColumn
from superdl.coordinator.catalog.listing import Noted
from superdl.coordinator.catalog.listing_bucket import download
from superdl.super_wire.display import without_credentials
from superdl.super_wire.errors import SourceEmptyError, SourceError, SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.run_directory import temporary_directory
from superdl.super_wire.source_url import split_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from superdl.coordinator.catalog.key_list_columns import Part, Rows
    from superdl.coordinator.catalog.listing import Tally
    from superdl.super_wire.labels import Labels

# Advice for sources without class folders.
KEY_LIST_HELP = (
    "set key_list to the URL of a CSV, JSONL or Parquet file with the columns key (relative to the source) "
    'and label, for example SuperDataset(source, recipe, key_list="s3://bucket/labels.csv")'
)

MAX_KEY_LIST_BYTES = 4 * 2**30


class KeyList(NamedTuple):
    """The columns of a key list, in file order. Labels and classes have the same form as in ``Catalog``."""

    url: str
    labels: Labels
    classes: tuple[str, ...]
    own: Part
    fields: Mapping[str, Part]


def read_key_list(url: str, tally: Tally, *, of_files: bool, classes: Sequence[str] = ()) -> KeyList:
    """Read and check a key list.

    Args:
        url: URL of a ``.csv``, ``.jsonl`` or ``.parquet`` file in a bucket, a ``file://``
            URL or a plain path.
        tally: checked regularly for cancellation. It records classes without a row, and counts
            the rows if the source does not have to be listed.
        of_files: whether the source is a directory or a web server. Keys must not lead outside it.
        classes: class names in label order. If empty, the names in the list are used, sorted.

    Raises:
        ConfigError: the URL is malformed.
        SourceError: the list does not exist (``SourceNotFoundError``), may not be read
            (``SourceForbiddenError``), has no rows (``SourceEmptyError``) or has an invalid row
            (the message names the line), or ``classes`` are given but labels are not names.
        ListingCancelledError: the listing was cancelled.
    """
    read_rows = FORMATS.get(PurePosixPath(url).suffix.lower())
    if read_rows is None:
        shown = without_credentials(url)
        raise SourceError(f"key_list {shown!r} has an unknown format: use one of {', '.join(FORMATS)}")
    labels = LabelColumn(classes)
    with _open(url, tally) as stream:
        try:
            columns, count = _packed_columns(read_rows(stream), labels, tally, of_files=of_files)
        except BadRowError as error:
            where = f", line {error.number}" if error.number else ""
            raise SourceError(f"key_list {url}{where}: {error.reason}") from error
    if not count:
        raise SourceEmptyError(f"key_list {url} has no rows: add one for each sample (below a CSV's header)")
    # Without versions, the samples are counted when the source is listed.
    if len(columns[""].versions):
        tally.add(count)
    tally.found_all()
    own, (packed, names) = columns.pop("").part(url), labels.finish()
    if labels.unseen and not names:
        raise SourceError(
            f"key_list {url}: classes= contains {len(labels.unseen)} class names, but the labels are not "
            "names: omit classes=, or write names as labels (names of digits need JSONL or Parquet, "
            "because a CSV's are read as numbers)"
        )
    for name in labels.unseen:
        tally.note(Noted.UNSEEN, name)
    fields = {name: column.part(f"{url}, field {name}", shared=True) for name, column in columns.items()}
    if own.members is None and own.versions is None:
        # Versions are looked up by key. In other cases, the catalog detects repeated keys.
        check_unique(own.keys.reorder(own.keys.sort_order()), f"key_list {url}")
    return KeyList(url, packed, names, own, fields)


def _packed_columns(
    batches: Iterable[Rows], labels: LabelColumn, tally: Tally, *, of_files: bool
) -> tuple[dict[str, PartColumns], int]:
    """Pack all rows. Return the columns of each part, keyed by the part's name, and the number of rows."""
    columns, count = dict[str, PartColumns](), 0
    for rows in batches:
        tally.reach(count)
        for part in rows.parts:
            columns.setdefault(part, PartColumns(part, of_files=of_files)).extend(rows)
        labels.extend(rows.columns[rows.labelled], rows.numbers, varies=rows.labelled.endswith(VARIES))
        count += len(rows.numbers)
    return columns, count


@contextmanager
def _open(url: str, tally: Tally) -> Iterator[BinaryIO]:
    bucket, key = split_url(url, "key_list")
    if bucket:
        with tempfile.TemporaryFile(dir=temporary_directory()) as stream:
            file = cast("BinaryIO", stream)
            download(bucket, key, f"key_list {url}", partial(_check_size, url), file, tally)
            stream.seek(0)
            yield file
        return
    path = Path(key).absolute()
    # Check this first, or errors would reveal whether the path exists.
    tally.allowed.check_path(os.path.realpath(path), f"key_list {url}")
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe waits for a writer
            raise SourceError(f"key_list {path} is not a file")
        opened = path.open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFoundError(f"key_list {path} does not exist on the coordinator's machine") from error
    except PermissionError as error:
        raise SourceForbiddenError(
            f"the coordinator (user id {os.geteuid()}) may not read key_list {path}: grant it read permission"
        ) from error
    except OSError as error:
        raise SourceError(f"key_list {path} cannot be read: {error.strerror}") from error
    with opened:
        # Check the opened file again, because a link may have been replaced in the meantime.
        tally.allowed.check_open_file(opened.fileno(), f"key_list {url}")
        _check_size(url, os.fstat(opened.fileno()).st_size)
        yield opened


def _check_size(url: str, size_bytes: int) -> None:
    if size_bytes > MAX_KEY_LIST_BYTES:
        raise SourceError(f"key_list {url} is {size_bytes} bytes long; the maximum is {MAX_KEY_LIST_BYTES}")
