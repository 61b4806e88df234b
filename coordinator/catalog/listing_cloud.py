"""Lists buckets of other clouds than S3: as there, first their folders, then each on a thread of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from superdl.coordinator.catalog.listing import Folder, FolderBuilder, Tally, is_sample, list_folders
from superdl.coordinator.catalog.source import Source
from superdl.super_wire.errors import (
    SourceBusyError,
    SourceError,
    SourceForbiddenError,
    SourceNotFoundError,
)
from superdl.super_wire.objects import ATTEMPTS, Fault, ObjectError, Span, open_bucket, pinned_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.coordinator.catalog.strings import PackedStrings
    from superdl.super_wire.objects import Page

__all__ = [
    "ask_for_versions",
    "list_cloud",
    "pinned",
    "probe_cloud",
    "read_object",
    "small_object",
    "source_failures",
]

_THREADS = 16
_ASKED_AT_A_TIME = 200


def pinned(source: Source) -> Source:
    """The same source as it is now: where a branch or tag names it, by its commit.

    Raises:
        ConfigError: the environment holds what cannot be meant.
        SourceError: no such dataset or revision, no right to read it, or no answer.
    """
    with source_failures(source.url):
        return Source(pinned_bucket(source.bucket), source.prefix)


def list_cloud(source: Source, tally: Tally, *, images_only: bool) -> list[Folder]:
    """List everything below the prefix: a :class:`Folder` for each first-level folder, and one for the rest.

    Args:
        source: of another cloud.
        tally: counts what is found.
        images_only: pass over objects without an image's extension.

    Raises:
        ConfigError: the package that reads it is not installed.
        SourceError: no such bucket, no right to list it, no credentials, or no answer.
        ListingCancelledError: nobody wants the listing any more.
    """
    with source_failures(source.url):
        bucket = open_bucket(source.bucket, tally.allowed.http_hosts)

        def samples(page: Page) -> Iterator[tuple[str, bytes]]:
            tally.check()
            for key, version, *_ in page.objects:
                if is_sample(key, source.prefix, tally, images_only=images_only):
                    yield key, _checked(version, f"{source.bucket}/{key}")

        def folder(prefix: str) -> Folder:
            found = FolderBuilder(prefix[len(source.prefix) : -1], tally)
            for page in bucket.pages(prefix):
                for key, version in samples(page):
                    found.append(key.encode(), version)
            return found.build()

        def name_of(key: str) -> str:
            return key[len(source.prefix) :].rpartition("/")[0].partition("/")[0]

        prefixes: list[str] = []
        found: dict[str, FolderBuilder] = {}
        for page in bucket.pages(source.prefix, folders=bucket.lists_folders):
            prefixes += page.folders
            names = {name_of(item.key) for item in page.objects} - found.keys()
            found |= {name: FolderBuilder(name, tally) for name in names}
            for key, version in samples(page):
                found[name_of(key)].append(key.encode(), version)
        folders = list_folders(folder, prefixes, tally, threads=_THREADS)
    return [*(builder.build() for builder in found.values()), *folders]


def ask_for_versions(source: Source, keys: PackedStrings, tally: Tally) -> list[Folder]:
    """These keys, relative to a source that lists nothing, and their versions, each asked for alone.

    Raises:
        SourceError: one is not there, may not be read, or has no version; or no answer came.
        ListingCancelledError: nobody wants them any more.
    """
    with source_failures(source.url):
        cloud = open_bucket(source.bucket, tally.allowed.http_hosts)

    def some(begin: str) -> Folder:
        found = FolderBuilder("", tally, every=_ASKED_AT_A_TIME)
        for key in keys.slice(int(begin), min(int(begin) + _ASKED_AT_A_TIME, len(keys))):
            tally.check()
            full = f"{source.prefix}{key.decode()}"
            with source_failures(f"{source.bucket}/{full}"):
                found.append(full.encode(), cloud.head(full)[0].encode())
        return found.build()

    return list_folders(
        some, [str(begin) for begin in range(0, len(keys), _ASKED_AT_A_TIME)], tally, threads=_THREADS
    )


def probe_cloud(source: Source, key: bytes, tally: Tally) -> None:
    """See that a source may be listed at all, or where there is no listing, that it has a key; errors as
    :func:`list_cloud`.
    """
    with source_failures(source.url):
        cloud = open_bucket(source.bucket, tally.allowed.http_hosts)
        if source.is_web:
            cloud.head(f"{source.prefix}{key.decode()}")
        else:
            next(iter(cloud.pages(source.prefix)), None)


def small_object(source: Source, name: str, limit_bytes: int) -> bytes | None:
    """At most one byte more than the limit of an object at the source's root; ``None`` if it is not there.

    A web server is not asked: many answer for names that they have not.
    """
    if source.is_web:
        return None
    with source_failures(source.url):
        try:
            found = open_bucket(source.bucket).read(f"{source.prefix}{name}", span=Span(0, limit_bytes + 1))
            return bytes(found)
        except ObjectError as error:
            if error.fault is Fault.MISSING:
                return None
            if error.fault is Fault.CHANGED:  # an empty object has no first byte
                return b""
            raise


def read_object(bucket: str, key: str, what: str, before: Callable[[int], None], tally: Tally) -> bytes:
    """A whole object, which messages call ``what``; ``before`` is told its size first, and may refuse it."""
    tally.check()
    with source_failures(what):
        return bytes(open_bucket(bucket, tally.allowed.http_hosts).read(key, before=before))


@contextmanager
def source_failures(what: str) -> Iterator[None]:
    """Turn errors of clouds into ours, each with the name of the thing, the reason and a remedy."""
    try:
        yield
    except ObjectError as error:
        if error.fault is Fault.MISSING:
            raise SourceNotFoundError(f"{what} does not exist ({error}): check the name") from error
        if error.fault is Fault.REFUSED:
            raise SourceForbiddenError(f"the coordinator may not read {what} ({error})") from error
        kind = SourceBusyError if error.fault is Fault.UNAVAILABLE else SourceError
        raise kind(f"{what} cannot be read, by up to {ATTEMPTS} attempts ({error})") from error


def _checked(version: str, url: str) -> bytes:
    if not version:
        raise SourceError(
            f"{url}: the object store gives no ETag, by which SUPER tells versions of an object apart: name "
            "the samples in a key_list with a version column"
        )
    return version.encode()
