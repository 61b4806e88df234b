"""``superdl store``: ``contents`` lists and drops packs, ``verifying`` checks them, ``command`` prints."""

from __future__ import annotations

__all__: list[str] = []
