"""Lists buckets of every kind: first their folders, then each on a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.coordinator.catalog.listing import Folder, FolderBuilder, Noted, Tally, is_sample, list_folders
from superdl.coordinator.catalog.source import Source
from superdl.super_wire.errors import SourceError
from superdl.super_wire.objects import (
    Span,
    open_bucket,
    pinned_bucket,
    source_failures,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from superdl.coordinator.catalog.strings import PackedStrings
    from superdl.super_wire.objects import Page

__all__ = [
    "ask_for_versions",
    "bucket_region",
    "download",
    "list_bucket",
    "pinned",
    "probe_bucket",
]

_THREADS = 16
_ASKED_AT_A_TIME = 200
_CHUNK_BYTES = 2**26


def pinned(source: Source) -> Source:
    """Replace a source's branch or tag by its commit; raise like :func:`list_bucket`."""
    with source_failures(source.url):
        return Source(pinned_bucket(source.bucket), source.prefix)


def list_bucket(source: Source, tally: Tally, *, images_only: bool) -> list[Folder]:
    """List all images, or objects, below the prefix: a :class:`Folder` per
    first-level one, and one for the rest.

    Raises:
        ConfigError: the package that reads this kind of bucket is not installed.
        SourceError: the bucket does not exist or may not be listed, there are no
            credentials, or no answer.
        ListingCancelledError: the listing was cancelled.
    """
    with source_failures(source.url):
        bucket = open_bucket(source.bucket, tally.allowed.http_hosts)

        def folder(prefix: str) -> Folder:
            builder = FolderBuilder(prefix[len(source.prefix) : -1], tally)
            for page in bucket.pages(prefix):
                # One page at a time: more threads would be no faster, and starve the interpreter.
                with bucket.page_lock:
                    for _, key, version in _samples(page, source, tally, images_only=images_only):
                        builder.append(key, version)
            return builder.build()

        def name_of(key: str) -> str:
            return key[len(source.prefix) :].rpartition("/")[0].partition("/")[0]

        prefixes: list[str] = []
        builders: dict[str, FolderBuilder] = {}
        for page in bucket.pages(source.prefix, folders=bucket.lists_folders):
            prefixes += [name for name in page.folders if _is_utf8(name, tally)]
            names = {name_of(item.key) for item in page.objects} - builders.keys()
            builders |= {name: FolderBuilder(name, tally) for name in names}
            for name, key, version in _samples(page, source, tally, images_only=images_only):
                builders[name_of(name)].append(key, version)
        folders = list_folders(folder, prefixes, tally, threads=_THREADS)
    return [*(builder.build() for builder in builders.values()), *folders]


def _samples(
    page: Page, source: Source, tally: Tally, *, images_only: bool
) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the names of a page's samples, as text and as bytes, and their versions."""
    tally.check()
    for key, version, *_ in page.objects:
        if is_sample(key, source.prefix, tally, images_only=images_only) and _is_utf8(key, tally):
            yield key, key.encode(), _checked(version, f"{source.bucket}/{key}")


def _is_utf8(name: str, tally: Tally) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        tally.note(Noted.NOT_UTF8, name)
        return False
    return True


def ask_for_versions(source: Source, keys: PackedStrings, tally: Tally) -> list[Folder]:
    """Return the keys of a source that cannot be listed with their versions, by a request each.

    Keys are relative to the source. Raises like :func:`list_bucket`.
    """
    with source_failures(source.url):
        bucket = open_bucket(source.bucket, tally.allowed.http_hosts)

    def some(begin: str) -> Folder:
        builder = FolderBuilder("", tally, every=_ASKED_AT_A_TIME)
        for key in keys.slice(int(begin), min(int(begin) + _ASKED_AT_A_TIME, len(keys))):
            tally.check()
            full_key = f"{source.prefix}{key.decode()}"
            with source_failures(f"{source.bucket}/{full_key}"):
                builder.append(full_key.encode(), bucket.head(full_key)[0].encode())
        return builder.build()

    return list_folders(
        some, [str(begin) for begin in range(0, len(keys), _ASKED_AT_A_TIME)], tally, threads=_THREADS
    )


def probe_bucket(source: Source, key: bytes, tally: Tally) -> None:
    """Check that a source may be listed, or has a key if it is a web server; raise like list_bucket()."""
    with source_failures(source.url):
        bucket = open_bucket(source.bucket, tally.allowed.http_hosts)
        if source.is_web:
            bucket.head(f"{source.prefix}{key.decode()}")
        else:
            next(iter(bucket.pages(source.prefix)), None)


def download(
    bucket: str, key: str, what: str, check_size: Callable[[int], None], stream: BinaryIO, tally: Tally
) -> None:
    """Write an object, in messages ``what``, to a stream; raise like list_bucket(), or check_size()."""

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
    """An object is too large to be received in one piece."""


def bucket_region(bucket: str) -> str:
    """Return the region of an S3 bucket, empty if it has none; ``SourceError`` without an answer."""
    from superdl.super_wire.objects.s3 import open_s3

    with source_failures(f"s3://{bucket}"):
        return open_s3(bucket).region()


def _checked(version: str, url: str) -> bytes:
    if not version:
        raise SourceError(
            f"{url}: the object store gives no ETag, by which SUPER tells versions of an object apart: name "
            "the samples in a key_list with a version column"
        )
    return version.encode()
