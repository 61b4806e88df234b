"""The store below the cache: packs of records in a directory or S3 prefix, and their index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.super_wire.store.base import Store
from superdl.super_wire.store.bucket import BucketStore
from superdl.super_wire.store.directory import DirectoryStore
from superdl.super_wire.store.layout import (
    IN_USE_S,
    bucket_and_prefix,
    default_directory,
    is_bucket,
    parse_store,
)
from superdl.super_wire.store.pack import (
    PackIndex,
    PackInProgress,
    PackMeta,
    check_record,
    collection_of,
)
from superdl.super_wire.store.segment import (
    SEGMENT_DTYPE,
    Segment,
    SegmentPack,
    pack_segment,
    segment_entries,
    segment_of,
)

if TYPE_CHECKING:
    from superdl.super_wire.objects.s3_connection import Patience

__all__ = [
    "IN_USE_S",
    "SEGMENT_DTYPE",
    "DirectoryStore",
    "PackInProgress",
    "PackIndex",
    "PackMeta",
    "Segment",
    "SegmentPack",
    "Store",
    "bucket_and_prefix",
    "check_record",
    "collection_of",
    "default_directory",
    "is_bucket",
    "open_store",
    "pack_segment",
    "parse_store",
    "segment_entries",
    "segment_of",
]


def open_store(
    address: str, *, create: bool, read_only: bool = False, patience: Patience | None = None
) -> Store:
    """Open the store at a normal address (:func:`parse_store`); ``patience`` is for S3."""
    if not is_bucket(address):
        return DirectoryStore.open(address, create=create, read_only=read_only)
    from superdl.super_wire.objects.s3 import open_s3
    from superdl.super_wire.objects.s3_connection import Patience

    name, prefix = bucket_and_prefix(address)
    bucket = open_s3(name, patience or Patience())
    return BucketStore.open(bucket, prefix, create=create, read_only=read_only)
