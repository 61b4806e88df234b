"""Lists buckets of other clouds than S3: as there, first their folders, then each on a thread of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from superdl.coordinator.catalog.listing import Folder, FolderBuilder, Tally, is_image, list_folders
from superdl.super_wire.clouds import ATTEMPTS, CloudError, Fault, open_cloud
from superdl.super_wire.errors import SourceError, SourceForbiddenError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.coordinator.catalog.source import Source
    from superdl.super_wire.clouds import Page

__all__ = ["cloud_failures", "list_cloud", "probe_cloud", "read_object", "small_object"]

_THREADS = 16


def list_cloud(source: Source, tally: Tally, *, images_only: bool) -> list[Folder]:
    """Everything below the prefix, as one :class:`Folder` for each first-level folder that holds objects.

    Args:
        source: of another cloud.
        tally: counts what is found.
        images_only: pass over objects without an image's extension.

    Raises:
        ConfigError: the package that reads it is not installed.
        SourceError: no such bucket, no right to list it, no credentials, or no answer.
        ListingCancelledError: nobody wants the listing any more.
    """
    with cloud_failures(source.url):
        cloud = open_cloud(source.bucket)

        def collect(page: Page, found: FolderBuilder) -> None:
            tally.check()
            for key, version in page:
                if not key.endswith("/") and (is_image(key) or not images_only):
                    found.append(key.encode(), _checked(version, f"{source.bucket}/{key}"))

        def folder(prefix: str) -> Folder:
            found = FolderBuilder(prefix[len(source.prefix) : -1], tally)
            for page in cloud.pages(prefix):
                collect(page, found)
            return found.build()

        prefixes, objects = cloud.folder(source.prefix)
        loose = FolderBuilder("", tally)
        collect(objects, loose)
        folders = list_folders(folder, prefixes, tally, threads=_THREADS)
    return [found for found in (loose.build(), *folders) if len(found.keys)]


def probe_cloud(source: Source) -> None:
    """See that a source may be listed at all; errors as :func:`list_cloud`."""
    with cloud_failures(source.url):
        next(iter(open_cloud(source.bucket).pages(source.prefix)), None)


def small_object(source: Source, name: str, limit_bytes: int) -> bytes | None:
    """At most one byte more than the limit of an object at the source's root; ``None`` if it is not there."""
    with cloud_failures(source.url):
        try:
            return open_cloud(source.bucket).read(f"{source.prefix}{name}", end=limit_bytes + 1)
        except CloudError as error:
            if error.fault is Fault.MISSING:
                return None
            if error.fault is Fault.CHANGED:  # an empty object has no first byte
                return b""
            raise


def read_object(bucket: str, key: str, what: str, before: Callable[[int], None]) -> bytes:
    """A whole object, which messages call ``what``; ``before`` is told its size first, and may refuse it."""
    with cloud_failures(what):
        return open_cloud(bucket).read(key, before=before)


@contextmanager
def cloud_failures(what: str) -> Iterator[None]:
    """Turn errors of clouds into ours, each with the name of the thing, the reason and a remedy."""
    try:
        yield
    except CloudError as error:
        if error.fault is Fault.MISSING:
            raise SourceNotFoundError(f"{what} does not exist ({error}): check the name") from error
        if error.fault is Fault.REFUSED:
            raise SourceForbiddenError(f"the coordinator may not read {what} ({error})") from error
        raise SourceError(f"{what} cannot be read, by up to {ATTEMPTS} attempts ({error})") from error


def _checked(version: str, url: str) -> bytes:
    if not version:
        raise SourceError(
            f"{url}: the object store gives no ETag, by which SUPER tells versions of an object apart: name "
            "the samples in a key_list with a version column"
        )
    return version.encode()
