"""Catalogs of samples. A source is listed once (:mod:`.lister`), then sorted and packed (:mod:`.catalog`)."""

from __future__ import annotations

from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.lister import list_objects, list_source
from superdl.coordinator.catalog.listing import ListingCancelledError, is_image
from superdl.coordinator.catalog.listing_bucket import pinned
from superdl.coordinator.catalog.source import Source, parse_source
from superdl.coordinator.catalog.strings import PackedStrings

__all__ = [
    "Catalog",
    "ListingCancelledError",
    "PackedStrings",
    "Source",
    "is_image",
    "list_objects",
    "list_source",
    "parse_source",
    "pinned",
]
