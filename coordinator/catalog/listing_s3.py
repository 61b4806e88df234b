"""Lists a prefix of an S3 bucket: its folders first, then each on a thread of its own, page by page."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from superdl.coordinator.catalog.listing import Folder, FolderBuilder, Tally, is_sample, list_folders
from superdl.coordinator.catalog.s3_client import MAX_CONNECTIONS, make_s3_client, s3_failures
from superdl.super_wire.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.coordinator.catalog.source import Source

__all__ = ["list_bucket", "probe_bucket", "read_small_object"]


def list_bucket(source: Source, tally: Tally, *, images_only: bool) -> list[Folder]:
    """List everything below the prefix: a :class:`Folder` for each first-level folder, and one for the rest.

    Args:
        source: an ``s3://`` source.
        tally: counts what is found.
        images_only: pass over objects without an image's extension.

    Raises:
        SourceError: no such bucket, no right to list it, no credentials, or no answer.
        ListingCancelledError: nobody wants the listing any more.
    """
    with s3_failures(source.url):
        pages = make_s3_client().get_paginator("list_objects_v2")

        def collect(objects: Iterable[dict[str, Any]], found: FolderBuilder) -> None:
            for item in objects:
                key: str = item["Key"]
                if is_sample(key, source.prefix, tally, images_only=images_only):
                    found.append(key.encode(), _version(item, source))

        def folder(prefix: str) -> Folder:
            found = FolderBuilder(prefix[len(source.prefix) : -1], tally)
            for page in pages.paginate(Bucket=source.bucket_name, Prefix=prefix):
                tally.check()
                collect(page.get("Contents", ()), found)
            return found.build()

        loose = FolderBuilder("", tally)
        prefixes: list[str] = []
        for page in pages.paginate(Bucket=source.bucket_name, Prefix=source.prefix, Delimiter="/"):
            tally.check()
            prefixes += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
            collect(page.get("Contents", ()), loose)
        return [loose.build(), *list_folders(folder, prefixes, tally, threads=MAX_CONNECTIONS)]


def probe_bucket(source: Source) -> None:
    """See, by one small request, that a bucket exists and may be listed; errors as :func:`list_bucket`."""
    with s3_failures(source.url):
        make_s3_client().list_objects_v2(Bucket=source.bucket_name, Prefix=source.prefix, MaxKeys=1)


def read_small_object(source: Source, name: str, limit_bytes: int) -> bytes | None:
    """What an object at the source's root holds, at most one byte more than the limit; ``None`` if it is not
    there.

    It is listed first: without the right to list, S3 calls an object forbidden that is not there.
    """
    key = f"{source.prefix}{name}"
    with s3_failures(source.url), closing(make_s3_client()) as client:
        found = client.list_objects_v2(Bucket=source.bucket_name, Prefix=key, MaxKeys=1).get("Contents", ())
        if key not in [item["Key"] for item in found]:
            return None
        with closing(client.get_object(Bucket=source.bucket_name, Key=key)["Body"]) as body:
            return bytes(body.read(limit_bytes + 1))


def _version(item: dict[str, Any], source: Source) -> bytes:
    etag = str(item.get("ETag", "")).strip('"')
    if not etag:
        raise SourceError(
            f"{source.bucket}/{item['Key']}: the object store gives no ETag, by which SUPER tells versions "
            "of an object apart: name the samples in a key_list with a version column"
        )
    return etag.encode()
