"""Catalogs: the samples of a source, listed once, sorted and packed.

:func:`~superdl.coordinator.catalog.lister.list_source` is the entry point. It reads a source
(:mod:`~superdl.coordinator.catalog.source`) from a directory or an object store, with class folders or a key
list, and returns a :class:`~superdl.coordinator.catalog.catalog.Catalog`. The coordinator decides when to
list again, and on which thread.
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
