"""List a source, determine its classes, and build a sorted, packed catalog. Blocks and uses threads."""

from __future__ import annotations

import logging
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.key_list import KEY_LIST_HELP, KeyList, read_key_list
from superdl.coordinator.catalog.listing import EXTENSIONS, Noted, Tally
from superdl.coordinator.catalog.listing_bucket import check_exists, list_samples, look_up_versions, pinned
from superdl.coordinator.catalog.listing_file import size_in_version
from superdl.coordinator.catalog.members import Field, distinct
from superdl.coordinator.catalog.source import Allowed, Source, parse_source
from superdl.coordinator.catalog.strings import PackedStrings
from superdl.super_wire.errors import SourceEmptyError, SourceError
from superdl.super_wire.ids import Naming
from superdl.super_wire.source_url import is_hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from superdl.coordinator.catalog.key_list_columns import Part
    from superdl.coordinator.catalog.listing_bucket import ListedSamples
    from superdl.coordinator.catalog.members import Members

_SHOWN = 5
_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})

_log = logging.getLogger(__name__)


def list_source(
    source: str,
    key_list: str | None = None,
    progress: Callable[[int | None], None] = lambda _: None,
    cancelled: threading.Event | None = None,
    naming: Naming = Naming(),  # noqa: B008  # frozen
    classes: Sequence[str] = (),
    *,
    allowed: Allowed = Allowed(),  # noqa: B008  # frozen
) -> Catalog:
    """List a source and build its catalog.

    Without a key list, the samples are the images (by extension) below the source's
    first-level folders. These folders are the classes, sorted by name. The catalog's
    warnings count what was skipped: folders without images, images in the source's root,
    and hidden or unusable names. With a key list, each of its rows is a sample.

    Args:
        source: ``s3://bucket/prefix``, a URL of another kind of bucket, ``file:///directory``
            or a plain path.
        key_list: URL of a CSV, JSONL or Parquet file. ``None`` or empty for class folders.
        progress: called with the number of samples so far, which never decreases, and with
            ``None`` once all samples are listed and only sorting and packing remain. Called from
            any thread, but never concurrently.
        cancelled: set this event to cancel the listing.
        naming: how samples are named.
        classes: class names in label order. If empty, the source's own classes are used, sorted.
        allowed: limits on what may be read and on how much.

    Raises:
        ConfigError: a URL is malformed.
        SourceError: the source does not exist (``SourceNotFoundError``), has no
            samples (``SourceEmptyError``), may not be read (``SourceForbiddenError``)
            or cannot be reached, or labels are missing or are not among the classes.
        ListingCancelledError: ``cancelled`` was set.
    """
    place = parse_source(source)
    if place.is_file:
        allowed.check_path(place.directory, f"the source {source}")
    tally = Tally(progress, cancelled or threading.Event(), allowed)
    place = pinned(place)
    if not key_list:
        listed = list_samples(place, tally, images_only=True, digests=naming.versions == "digests")
        tally.found_all()
        catalog = _by_folders(place, listed, naming, tally, classes)
    else:
        rows = read_key_list(key_list, tally, of_files=place.is_file or place.is_web, classes=classes)
        own, *fields = _fields(place, rows, naming, tally)
        columns = own.keys, own.versions, rows.labels, rows.classes, tally.report(f"key_list {rows.url}")
        named: Any = {"alias": naming.alias, "prefix": place.prefix, "where": f"key_list {rows.url}"}
        catalog = Catalog.build(place.bucket, *columns, **named, members=own.members, fields=fields)
    for warning in catalog.warnings:
        _log.warning("%s", warning)
    return catalog


def _fields(place: Source, rows: KeyList, naming: Naming, tally: Tally) -> list[Field]:
    """Return the samples' main objects and fields with full keys, looking up any missing versions."""
    parts = {"": rows.own, **rows.fields}
    every: ListedSamples | None = None
    if any(part.versions is None for part in parts.values()) and not place.is_web:
        every = list_samples(place, tally, images_only=False, digests=naming.versions == "digests")
    elif rows.own.versions is not None:  # otherwise only functions would notice that it is missing
        check_exists(place, rows.own.keys[0], tally)
    fields, prefix = [], place.prefix.encode()
    for name, part in parts.items():
        versions = part.versions
        if versions is None:
            first, which = distinct(part.keys) if name else (None, None)  # keys of a field may repeat
            unique_keys = part.keys if first is None else part.keys.reorder(first)
            listed = every or look_up_versions(place, unique_keys, tally)
            tally.found_all()
            versions = _look_up_versions(place, rows.url, unique_keys, listed)
            versions = versions if which is None else versions.reorder(which)
        if part.members is not None and place.is_file:  # of objects, functions check this
            _check_ends(rows.url, part, part.members, versions)
        keys = part.keys.with_prefix(prefix) if prefix else part.keys
        fields.append(Field(name, keys, versions, part.members))
    return fields


def list_objects(
    source: str,
    naming: Naming = Naming(),  # noqa: B008  # frozen
) -> tuple[PackedStrings, PackedStrings]:
    """Return the keys and versions of all objects below a source, in any order.

    Raises the same errors as :func:`list_source`.
    """
    tally = Tally(lambda _: None, threading.Event())
    place, digests = pinned(parse_source(source)), naming.versions == "digests"
    listed = list_samples(place, tally, images_only=False, digests=digests)
    for warning in tally.report(source):
        _log.warning("%s", warning)
    return listed.keys, listed.versions


def _by_folders(
    place: Source, listed: ListedSamples, naming: Naming, tally: Tally, classes: Sequence[str]
) -> Catalog:
    label_of = {name: label for label, name in enumerate(classes)}
    counts = np.bincount(listed.folders, minlength=len(listed.names)).tolist()
    images = {name: count for name, count in sorted(zip(listed.names, counts, strict=True)) if count}
    for name in listed.names:
        if name and not (name in images or name in label_of or is_hidden(name)):
            tally.note(Noted.EMPTY, name)
    if not images:
        raise _no_samples(place, tally)
    if label_of:
        _check_classes(place, images, label_of, tally)
    elif _SPLITS.issuperset(map(str.lower, images)):
        # Such names suggest that the source is one level too high.
        for name in images:
            tally.note(Noted.SPLITS, name)
    classes = classes or [*images]
    label_of = label_of or {name: label for label, name in enumerate(images)}
    labels = np.array([label_of.get(name, 0) for name in listed.names])[listed.folders]
    columns = listed.keys, listed.versions, labels, classes, tally.report(place.url)
    like = _as_image_folder(listed.keys, place.prefix.encode(), [*images])
    return Catalog.build(place.bucket, *columns, alias=naming.alias, prefix=place.prefix, sorted_like=like)


def _no_samples(place: Source, tally: Tally) -> SourceError:
    skipped = "".join(f"; {line}" for line in map(tally.noted, Noted) if line)
    if tally.count:
        return SourceError(
            f"{place.url} contains {tally.count} images but no class folders, so their labels are unknown: "
            f"put each image into a folder named after its class, or {KEY_LIST_HELP}{skipped}"
        )
    return SourceEmptyError(
        f"{place.url} contains no images ({', '.join(EXTENSIONS)}); for objects with other names, "
        f"{KEY_LIST_HELP}{skipped}"
    )


def _check_classes(
    place: Source, images: Mapping[str, int], label_of: Mapping[str, int], tally: Tally
) -> None:
    if others := [name for name in images if name not in label_of]:
        names = ", ".join(f"{name!r} ({images[name]:,} images)" for name in others[:_SHOWN])
        raise SourceError(
            f"{len(others)} folders of {place.url} are not among the {len(label_of)} given classes: {names}"
            f"{', ...' if len(others) > _SHOWN else ''}; correct classes=, or move the folders elsewhere"
        )
    for name in label_of.keys() - images.keys():
        tally.note(Noted.UNSEEN, name)


def _as_image_folder(keys: PackedStrings, prefix: bytes, classes: Sequence[str]) -> PackedStrings | None:
    """Return strings that sort in ImageFolder's order (class, folder, name), or ``None`` if the keys do."""
    # In byte order, "hot dog/" sorts before "hot/", and files in "a/b/" before "a/c.jpg".
    joined, ends = keys.parts()
    has_folders = bytes(joined).count(b"/") > len(keys) * (prefix.count(b"/") + 1)
    between = any(
        following.startswith(name) and following[len(name)] < "/" for name, following in pairwise(classes)
    )
    if not (has_folders or between):
        return None
    blob = np.frombuffer(joined, dtype=np.uint8).copy()
    slashes = np.flatnonzero(blob == ord("/"))
    first = slashes[np.searchsorted(slashes, ends[:-1].astype(np.int64) + len(prefix))]
    last = slashes[np.searchsorted(slashes, ends[1:].astype(np.int64)) - 1]
    is_nested = first != last
    # 0 sorts before every character of a name. A class's files come before its folders.
    blob[first], blob[last] = is_nested, 0
    blob[first[is_nested]] = 1
    return PackedStrings.of_parts(blob, ends)


def _look_up_versions(place: Source, url: str, keys: PackedStrings, listed: ListedSamples) -> PackedStrings:
    listed_at = keys.with_prefix(place.prefix.encode()).find_in(listed.keys)
    missing = np.flatnonzero(listed_at < 0)
    if len(missing):
        names = ", ".join(repr(key.decode()) for key in keys.take(missing[:_SHOWN]))
        raise SourceError(
            f"{len(missing)} of the {len(keys)} keys in key_list {url} are not in {place.url}, to which keys "
            f"are relative: {names}{', ...' if len(missing) > _SHOWN else ''}"
        )
    return listed.versions.reorder(listed_at)


def _check_ends(url: str, part: Part, members: Members, versions: PackedStrings) -> None:
    """Check that no member extends beyond its file. The file sizes are part of the versions."""
    sizes = np.array([size_in_version(version) for version in versions], dtype=np.int64)
    for row in np.flatnonzero(members.ends > sizes[members.objects])[:1].tolist():
        file = int(members.objects[row])
        name, key = members.names[row].decode()[:200], part.keys[file].decode()[:200]
        raise SourceError(
            f"key_list {url}, line {part.lines[row]}: the member {name!r} of {key!r} ends at "
            f"{members.ends[row]}, but the file has only {sizes[file]} bytes: list its members again"
        )
