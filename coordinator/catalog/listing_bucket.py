"""List sources of any kind: first the folders, then the contents of each folder in a thread."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.catalog.listing import Noted, Tally, is_sample, on_threads
from superdl.coordinator.catalog.listing_file import Tree, check_directory
from superdl.coordinator.catalog.source import Source
from superdl.coordinator.catalog.strings import PackedStrings, PackedStringsBuilder
from superdl.super_wire.errors import SourceError, SourceForbiddenError
from superdl.super_wire.objects import Span, open_bucket, pinned_bucket, source_failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

    from numpy.typing import NDArray

    from superdl.super_wire.objects import Bucket, Page
    from superdl.super_wire.objects.base import Listed

_THREADS = 16
_KEYS_PER_TASK = 200
_CHUNK_BYTES = 2**26


class ListedSamples(NamedTuple):
    """The samples of a source, in any order."""

    # Full object keys.
    keys: PackedStrings
    versions: PackedStrings
    # Names of the first-level folders, including those without samples. The root's name is empty.
    names: tuple[str, ...]
    # Each sample's folder, as an index into names.
    folders: NDArray[np.uint32]


class _Collector:
    """Collects samples from several threads."""

    def __init__(self, tally: Tally) -> None:
        self._tally, self._lock = tally, threading.Lock()
        self._keys, self._versions = PackedStringsBuilder(), PackedStringsBuilder()
        self._numbers: dict[str, int] = {}
        self._folders = [np.empty(0, dtype=np.uint32)]

    def add(self, folder: str, samples: list[tuple[bytes, bytes]]) -> None:
        """Add and count the samples of a folder."""
        keys = PackedStrings.pack(key for key, _ in samples)
        versions = PackedStrings.pack(version for _, version in samples)
        with self._lock:
            number = self._numbers.setdefault(folder, len(self._numbers))
            self._keys.extend(keys)
            self._versions.extend(versions)
            self._folders.append(np.full(len(samples), number, dtype=np.uint32))
        self._tally.add(len(samples))

    def add_page(self, page: Page, source: Source, folder: str | None = None, *, images_only: bool) -> None:
        """Add the samples on a page. Without ``folder``, each sample's folder is derived from its key."""
        self._tally.check()
        below = len(source.prefix)
        groups: Iterable[tuple[str, Iterable[Listed]]] = [(folder or "", page.objects)]
        if folder is None:
            # By first-level folder, with an empty name for the root.
            groups = groupby(page.objects, lambda item: item.key[below:].rpartition("/")[0].partition("/")[0])
        for name, objects in groups:
            listed = [
                item
                for item in objects
                if is_sample(item.key, source.prefix, self._tally, images_only=images_only)
                and _is_utf8(item.key, self._tally)
            ]
            if name or not images_only:
                self.add(name, [(item.key.encode(), _version_of(item, source)) for item in listed])
                continue
            # ImageFolder ignores images in the root too.
            for item in listed:
                what = Noted.NAMELESS if item.key.startswith("/", below) else Noted.LOOSE
                self._tally.note(what, item.key)
            self._tally.add(len(listed))

    def all(self) -> ListedSamples:
        """Return all collected samples. No more may be added afterwards."""
        folders = np.concatenate(self._folders)
        return ListedSamples(self._keys.build(), self._versions.build(), tuple(self._numbers), folders)


def pinned(source: Source) -> Source:
    """Replace a source's branch or tag with its commit. Raises the same errors as :func:`list_samples`."""
    with source_failures(source.url):
        return Source(pinned_bucket(source.bucket), source.prefix)


def list_samples(source: Source, tally: Tally, *, images_only: bool, digests: bool = False) -> ListedSamples:
    """List the images in the class folders of a source, or all of its objects.

    Args:
        source: the source to list.
        tally: counts the samples, and the images in the source's root, which are not samples.
        images_only: skip objects without an image extension.
        digests: read every file in a directory to derive versions from the contents
            (:func:`superdl.super_wire.ids.digest_version`).

    Raises:
        ConfigError: the package that reads this kind of bucket is not installed.
        SourceError: the source does not exist (``SourceNotFoundError``), it may not be
            listed or a link in it may not be followed (``SourceForbiddenError``), there are
            no credentials, or the server does not respond.
        ListingCancelledError: the listing was cancelled.
    """
    collector = _Collector(tally)
    with source_failures(source.url):
        bucket: Tree | Bucket
        turns: AbstractContextManager[object] = nullcontext()
        if source.is_file:
            bucket = Tree(source.directory, tally, images_only=images_only, digests=digests)
            turns = bucket.turns
        else:
            bucket = open_bucket(source.bucket, tally.allowed.http_hosts)

        def list_folder(prefix: str) -> None:
            with turns:
                for page in bucket.pages(prefix):
                    # More threads would parse no faster and block the interpreter.
                    with bucket.page_lock:
                        folder = prefix[len(source.prefix) : -1]
                        collector.add_page(page, source, folder, images_only=images_only)

        prefixes: list[str] = []
        for page in bucket.pages(source.prefix, folders=bucket.lists_folders):
            collector.add_page(page, source, images_only=images_only)
            prefixes += [name for name in page.folders if _is_utf8(name, tally)]
        for prefix in prefixes:
            collector.add(prefix[len(source.prefix) : -1], [])
        on_threads(list_folder, prefixes, tally, threads=_THREADS)
    # Nothing that ImageFolder would find may be skipped silently. All forbidden links are known only now.
    if forbidden := tally.noted(Noted.FORBIDDEN):
        raise SourceForbiddenError(
            f"{source.url}: {forbidden}. Replace the links by the files, or set SUPER_FILE_ROOTS to the "
            "source and the directories that its links lead to, for the coordinator and its functions"
        )
    return collector.all()


def _is_utf8(name: str, tally: Tally) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        tally.note(Noted.NOT_UTF8, name)
        return False
    return True


def look_up_versions(source: Source, keys: PackedStrings, tally: Tally) -> ListedSamples:
    """Look up the versions of keys in a source that cannot be listed, using one request per key.

    Keys are relative to the source. Raises the same errors as :func:`list_samples`.
    """
    collector = _Collector(tally)
    with source_failures(source.url):
        bucket = open_bucket(source.bucket, tally.allowed.http_hosts)

    def look_up(begin: int) -> None:
        samples = []
        for key in keys.take(range(begin, min(begin + _KEYS_PER_TASK, len(keys)))):
            tally.check()
            full_key = f"{source.prefix}{key.decode()}"
            with source_failures(f"{source.bucket}/{full_key}"):
                samples.append((full_key.encode(), bucket.head(full_key)[0].encode()))
        collector.add("", samples)

    on_threads(look_up, range(0, len(keys), _KEYS_PER_TASK), tally, threads=_THREADS)
    return collector.all()


def check_exists(source: Source, key: bytes, tally: Tally) -> None:
    """Check that a source may be listed or, for a web server, that ``key`` exists.

    Raises the same errors as :func:`list_samples`.
    """
    if source.is_file:
        check_directory(source.directory)
        return
    with source_failures(source.url):
        bucket = open_bucket(source.bucket, tally.allowed.http_hosts)
        if source.is_web:
            bucket.head(f"{source.prefix}{key.decode()}")
        else:
            next(iter(bucket.pages(source.prefix)), None)


def download(
    bucket: str, key: str, what: str, check_size: Callable[[int], None], stream: BinaryIO, tally: Tally
) -> None:
    """Write an object to a stream. ``what`` identifies the object in messages.

    Raises the same errors as :func:`list_samples`, and any error that ``check_size`` raises.
    """

    def check(size_bytes: int) -> None:
        check_size(size_bytes)
        if size_bytes > _CHUNK_BYTES:
            raise _LargeError

    tally.check()
    with source_failures(what):
        client = open_bucket(bucket, tally.allowed.http_hosts)
        try:
            stream.write(client.read(key, before=check))
        except _LargeError:
            version, size_bytes = client.head(key)
            for begin in range(0, size_bytes, _CHUNK_BYTES):
                tally.check()
                span = Span(begin, min(begin + _CHUNK_BYTES, size_bytes))
                stream.write(client.read(key, version=version, span=span))


class _LargeError(Exception):
    """The object is too large to download in one piece."""


def bucket_region(bucket: str) -> str:
    """Return an S3 bucket's region, or an empty string. Raises ``SourceError`` if S3 does not respond."""
    from superdl.super_wire.objects.s3 import open_s3

    with source_failures(f"s3://{bucket}"):
        return open_s3(bucket).region()


def _version_of(item: Listed, source: Source) -> bytes:
    if not item.version:
        raise SourceError(
            f"the object store returns no ETag for {source.bucket}/{item.key}, so SUPER cannot tell its "
            "versions apart: list the samples in a key_list with a version column"
        )
    return item.version.encode()
