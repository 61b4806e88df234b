"""Makes the catalog of a source: lists it, finds classes by folders or by a key list, sorts and packs.

Blocking, with threads of its own: the coordinator runs it beside its event loop.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.key_list import KEY_LIST_HELP, KeyList, read_key_list
from superdl.coordinator.catalog.listing import EXTENSIONS, Folder, Tally
from superdl.coordinator.catalog.listing_file import list_directory, probe_directory
from superdl.coordinator.catalog.listing_s3 import list_bucket, probe_bucket
from superdl.coordinator.catalog.source import Allowed, Source, parse_source
from superdl.coordinator.catalog.strings import PackedStrings
from superdl.super_wire.errors import SourceEmptyError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["list_objects", "list_source"]

_SHOWN = 5

_log = logging.getLogger(__name__)


def list_source(
    source: str,
    key_list: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
    cancelled: threading.Event | None = None,
    *,
    allowed: Allowed = Allowed(),  # noqa: B008  # frozen
) -> Catalog:
    """List a source.

    Without a key list, samples are the images (by extension) below the source's first-level folders, which
    are the classes, sorted by name; images that lie in the source itself belong to no class and are passed
    over, as ImageFolder does. Folders without an image are passed over too, with a warning. With a key list,
    samples are what it names.

    Args:
        source: ``s3://bucket/prefix``, ``file:///directory`` or a plain path.
        key_list: URL of a CSV, JSONL or Parquet file; ``None`` or empty: class folders.
        progress: told how many samples were found so far, never fewer than before, from any thread, one at
            a time.
        cancelled: set it to end the listing.
        allowed: what may be read and how much.

    Raises:
        SourceError: there is no such place (``SourceNotFoundError``) or no sample in it
            (``SourceEmptyError``), it may not be read (``SourceForbiddenError``), labels are missing, or the
            source cannot be reached.
        ListingCancelledError: ``cancelled`` was set.
    """
    place = parse_source(source)
    if place.is_file:
        allowed.check_path(place.directory, f"the source {source}")
    tally = Tally(progress, cancelled or threading.Event(), allowed)
    if not key_list:
        catalog = _by_folders(place, _list(place, tally, images_only=True), tally.warnings)
        for warning in tally.warnings:
            _log.warning("%s", warning)
        return catalog
    rows = read_key_list(key_list, tally, of_files=place.is_file)
    versions = rows.versions
    if versions is None:
        versions = _look_up_versions(place, rows, _list(place, tally, images_only=False))
    elif place.is_file:  # see that it exists: else functions would find out
        probe_directory(place.directory)
    else:
        probe_bucket(place)
    prefix = place.prefix.encode()
    keys = PackedStrings.pack(prefix + key for key in rows.keys) if prefix else rows.keys
    return Catalog.build(place.bucket, keys, versions, rows.labels, rows.classes)


def list_objects(
    source: str, progress: Callable[[int], None] = lambda _: None
) -> tuple[PackedStrings, PackedStrings]:
    """Keys and versions of all that lies below a source, whatever its name, in any order.

    Raises:
        SourceError: as :func:`list_source`.
    """
    found = _list(parse_source(source), Tally(progress, threading.Event()), images_only=False)
    return (
        PackedStrings.concatenate([folder.keys for folder in found]),
        PackedStrings.concatenate([folder.versions for folder in found]),
    )


def _list(place: Source, tally: Tally, *, images_only: bool) -> list[Folder]:
    if place.is_file:
        return list_directory(place.directory, tally, images_only=images_only)
    return list_bucket(place, tally, images_only=images_only)


def _by_folders(place: Source, found: list[Folder], warnings: list[str]) -> Catalog:
    if not found:
        raise SourceEmptyError(
            f"{place.url} holds no image ({', '.join(EXTENSIONS)}); "
            f"for objects of other names, {KEY_LIST_HELP}"
        )
    folders = sorted((folder for folder in found if folder.name), key=lambda folder: folder.name)
    if not folders:
        count = sum(len(folder.keys) for folder in found)
        raise SourceError(
            f"{place.url} holds {count} images and no class folders, so their labels are unknown: put each "
            f"image into a folder named after its class, or {KEY_LIST_HELP}"
        )
    labels = np.repeat(np.arange(len(folders)), [len(folder.keys) for folder in folders])
    keys = PackedStrings.concatenate([folder.keys for folder in folders])
    versions = PackedStrings.concatenate([folder.versions for folder in folders])
    classes = [folder.name for folder in folders]
    return Catalog.build(place.bucket, keys, versions, labels, classes, warnings)


def _look_up_versions(place: Source, rows: KeyList, found: list[Folder]) -> PackedStrings:
    """The listed version of every row, by sorting rows and listing together: equal keys become neighbours."""
    prefix = place.prefix.encode()
    wanted = PackedStrings.pack(prefix + key for key in rows.keys)
    listed = PackedStrings.concatenate([folder.keys for folder in found])
    both = PackedStrings.concatenate([wanted, listed])
    order = both.sort_order()
    # Rows and listing each hold a key once, and the sort is stable: a listed key stands right behind its row.
    is_pair = both.reorder(order).equals_next()
    places = np.full(len(wanted), -1, dtype=np.int64)
    places[order[:-1][is_pair]] = order[1:][is_pair] - len(wanted)
    missing = np.flatnonzero(places < 0)
    if len(missing):
        names = ", ".join(repr(key.decode()) for key in rows.keys.take(missing[:_SHOWN]))
        raise SourceError(
            f"key_list {rows.url}: {len(missing)} of its {len(rows.keys)} keys are not in {place.url} "
            f"(keys are relative to it): {names}{', ...' if len(missing) > _SHOWN else ''}"
        )
    return PackedStrings.concatenate([folder.versions for folder in found]).reorder(places)
