"""``superdl store``: maintenance of a store of decoded records.

``contents`` lists it, ``removing`` drops packs, ``verifying`` checks indexes and records. ``command`` asks
for confirmation and prints.
"""

from __future__ import annotations

from superdl.store.contents import Collection, Contents, contents_of, store_address
from superdl.store.removing import Removed, clear, prune
from superdl.store.verifying import Verification, verify

__all__ = [
    "Collection",
    "Contents",
    "Removed",
    "Verification",
    "clear",
    "contents_of",
    "prune",
    "store_address",
    "verify",
]
