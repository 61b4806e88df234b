"""``RequestKind``: the work that a function does on a request's samples.

The coordinator's core chooses it, by what executor and readers can access: a function without access to the
store decodes, and another with access later saves its records. If all readers have access to the store, the
cache only needs pointers.
"""

from __future__ import annotations

import enum


class RequestKind(enum.StrEnum):
    """The kinds of requests, by their names on the wire."""

    DECODE = "decode"
    """Fetch and decode the samples, and push records into the cache."""
    DECODE_TO_STORE = "decode_to_store"
    """The same, and write a pack of the records that the cache accepted."""
    DECODE_TO_POINTERS = "decode_to_pointers"
    """Decode into a pack; the cache may get pointers into it instead of records."""
    RESTORE = "restore"
    """Push records from packs into the cache."""
    SAVE = "save"
    """Write a pack of cached records."""

    decodes: bool
    """Whether samples are fetched from their source and decoded."""
    fills_cache: bool
    """Whether readers may wait for the records that it pushes."""
    writes_pack: bool

    def __init__(self, name: str) -> None:
        self.decodes = name.startswith("decode")
        self.fills_cache = name != "save"
        self.writes_pack = name not in {"decode", "restore"}
