"""Catalogs: what a source holds, listed once, sorted and packed.

:func:`~superdl.coordinator.catalog.lister.list_source` is the way in: it reads a source
(:mod:`~superdl.coordinator.catalog.source`) from a directory or an object store, with class folders or a key
list, and gives a :class:`~superdl.coordinator.catalog.catalog.Catalog`. When to list again, and on which
thread, is the coordinator's.
"""

from __future__ import annotations

from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.lister import list_objects, list_source
from superdl.coordinator.catalog.listing import ListingCancelledError
from superdl.coordinator.catalog.listing_bucket import pinned
from superdl.coordinator.catalog.source import Source, parse_source
from superdl.coordinator.catalog.strings import PackedStrings

__all__ = [
    "Catalog",
    "ListingCancelledError",
    "PackedStrings",
    "Source",
    "list_objects",
    "list_source",
    "parse_source",
    "pinned",
]
