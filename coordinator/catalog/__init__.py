"""Catalogs: what a source holds, listed once, sorted and packed.

:func:`~coordinator.catalog.lister.list_source` is the way in: it reads a source
(:mod:`~coordinator.catalog.source`) from a directory or an object store, with class folders or a key list,
and gives a :class:`~coordinator.catalog.catalog.Catalog`. When to list again, and on which thread, is the
coordinator's.
"""

from __future__ import annotations

from coordinator.catalog.catalog import Catalog
from coordinator.catalog.lister import list_source
from coordinator.catalog.listing import ListingCancelledError
from coordinator.catalog.packed import PackedStrings
from coordinator.catalog.source import Source, parse_source

__all__ = ["Catalog", "ListingCancelledError", "PackedStrings", "Source", "list_source", "parse_source"]
