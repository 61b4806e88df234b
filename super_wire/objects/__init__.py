"""The object client that functions, listings, stores and commands use."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.objects.base import (
    Bucket,
    Fault,
    ObjectError,
    Page,
    Pending,
    Span,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Bucket",
    "Fault",
    "ObjectError",
    "Page",
    "Pending",
    "Span",
    "open_bucket",
    "pinned_bucket",
    "source_failures",
]


def open_bucket(bucket: str, hosts: tuple[str, ...] | None = None, roots: tuple[str, ...] = ()) -> Bucket:
    """Return this process's client for a bucket such as ``s3://name``, configured by its environment.

    ``hosts`` lists the allowed web servers, each as ``https://host``. For ``None``, see
    :func:`superdl.super_wire.objects.web.may_read`. ``roots`` lists the directories that links in a
    ``file://`` bucket may point into, by default only the bucket itself.

    Raises:
        ConfigError: the scheme is unknown, a package is missing, or a directory is outside all ``roots``.
        ObjectError: the environment lacks a setting that the client needs.
    """
    # Import clients on demand: their packages may be missing, or slow to import.
    if bucket.startswith("s3://") and bucket != "s3://":
        from superdl.super_wire.objects.s3 import open_s3

        return open_s3(bucket.removeprefix("s3://"))
    if bucket.startswith("file://"):
        from superdl.super_wire.objects.directory import Directory

        return Directory(bucket.removeprefix("file://"), roots)
    if bucket.startswith(("gs://", "az://")):
        from superdl.super_wire.objects.clouds import open_cloud

        return open_cloud(bucket)
    if bucket.startswith("hf://"):
        from superdl.super_wire.objects.hub import open_dataset

        return open_dataset(bucket)
    if bucket.startswith(("https://", "http://")):
        from superdl.super_wire.objects.web import Site

        return Site(bucket, hosts)
    raise ConfigError(
        "a bucket must be s3://name, gs://name, az://container, hf://datasets/OWNER/NAME, https://host or "
        f"file:///directory, not {bucket!r}"
    )


def pinned_bucket(bucket: str) -> str:
    """Return the bucket with a branch or tag on the Hub replaced by its current commit."""
    if not bucket.startswith("hf://"):
        return bucket
    from superdl.super_wire.objects.hub import open_dataset

    return open_dataset(bucket).pinned()


@contextmanager
def source_failures(what: str) -> Iterator[None]:
    """Convert ``ObjectError`` to a ``SourceError`` that names the object or bucket ``what``."""
    try:
        yield
    except ObjectError as error:
        raise error.of_source(what) from error
