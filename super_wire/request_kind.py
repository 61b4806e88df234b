"""``RequestKind``: what a function is asked to do with the samples of a request.

The coordinator's core chooses it, by what executor and readers see: a function that does not see the store
decodes, and what it decodes is saved later by another that does. Where all readers see the store, the cache
needs no more than pointers.
"""

from __future__ import annotations

import enum

__all__ = ["RequestKind"]


class RequestKind(enum.StrEnum):
    """The kinds of requests, by their names on the wire."""

    DECODE = "decode"
    """Fetch and decode the samples, and push records into the cache."""
    DECODE_TO_STORE = "decode_to_store"
    """The same, and write a pack of what the cache has taken."""
    DECODE_TO_POINTERS = "decode_to_pointers"
    """Decode into a pack; the cache may get pointers into it in place of records."""
    RESTORE = "restore"
    """Push records out of packs into the cache."""
    SAVE = "save"
    """Write a pack of records that are in the cache."""

    decodes: bool
    """Whether samples are fetched from their source and decoded."""
    fills_cache: bool
    """Whether readers may wait for what it brings into the cache."""
    writes_pack: bool

    def __init__(self, name: str) -> None:
        self.decodes = name.startswith("decode")
        self.fills_cache = name != "save"
        self.writes_pack = name not in {"decode", "restore"}
