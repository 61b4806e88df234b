"""The store below the cache: packs of records and their index, in a directory or under an S3 prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.super_wire.store.base import Store
from superdl.super_wire.store.bucket import BucketStore
from superdl.super_wire.store.directory import DirectoryStore
from superdl.super_wire.store.layout import (
    IN_USE_S,
    PACKS,
    bucket_and_prefix,
    checked_name,
    default_directory,
    is_bucket,
    parse_store,
)
from superdl.super_wire.store.pack import (
    DATA_KINDS,
    ENTRY_DTYPE,
    PackIndex,
    PackInProgress,
    PackMeta,
    check_entries,
    check_record,
    collection_of,
)

if TYPE_CHECKING:
    from superdl.super_wire.objects.s3_connection import Patience

__all__ = [
    "DATA_KINDS",
    "ENTRY_DTYPE",
    "IN_USE_S",
    "PACKS",
    "DirectoryStore",
    "PackInProgress",
    "PackIndex",
    "PackMeta",
    "Store",
    "bucket_and_prefix",
    "check_entries",
    "check_record",
    "checked_name",
    "collection_of",
    "default_directory",
    "is_bucket",
    "open_store",
    "parse_store",
]


def open_store(
    address: str, *, create: bool, read_only: bool = False, patience: Patience | None = None
) -> Store:
    """Open the store at an address from :func:`parse_store`. ``patience`` applies to S3."""
    if not is_bucket(address):
        return DirectoryStore.open(address, create=create, read_only=read_only)
    from superdl.super_wire.objects.s3 import open_s3
    from superdl.super_wire.objects.s3_connection import Patience

    name, prefix = bucket_and_prefix(address)
    bucket = open_s3(name, patience or Patience())
    return BucketStore.open(bucket, prefix, create=create, read_only=read_only)
