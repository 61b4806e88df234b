"""A directory that was moved or copied: its samples lie in the store under the ids of the other place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.store.index import read_indexes
from superdl.coordinator.store.places import join
from superdl.super_wire.errors import StoreError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.store import segment_entries

if TYPE_CHECKING:
    from superdl.coordinator.catalog.datasets import Dataset
    from superdl.super_wire.store import Store

__all__ = ["moved_line"]

_LOOKED_AT = 64
_DIRECTORY = "file://"


def moved_line(store: Store, dataset: Dataset) -> str:
    """Return a line for the user if the store has the samples of a directory as another one's; else nothing.

    One pack of each of the newest collections is looked at.

    Raises:
        StoreError: the store does not answer.
    """
    catalog, recipe = dataset.catalog, dataset.recipe
    if not catalog.whole_bucket:
        return ""
    packs = store.packs()
    of_collections = {name.partition("-")[0]: name for name in packs}
    used = store.used()
    newest = sorted(of_collections, key=lambda collection: -used.get(collection, 0.0))[:_LOOKED_AT]
    for _, index in read_indexes(
        store, {of_collections[name]: packs[of_collections[name]] for name in newest}
    ):
        if isinstance(index, StoreError) or index.meta.recipe != recipe.json:
            continue
        there = index.meta.bucket
        if there == catalog.bucket or not there.startswith(_DIRECTORY):
            continue
        ids = replace(catalog, bucket=there).sample_ids(recipe.digest, fields=recipe.beside)
        by_sample = np.frombuffer(ids, dtype=np.uint8).reshape(-1, ID_BYTES)
        if join(by_sample, segment_entries(index, 0), np.ones(1, dtype=np.uint32)).indices.size:
            return (
                f"{dataset.listing.source} has files of {there}, which the store holds decoded: it was moved "
                "or copied, and is decoded again, since samples are known by their directory. "
                'SuperDataset(..., alias="a-name") knows them by a name, wherever they lie (docs/store.md)'
            )
    return ""
