"""``superdl store``: list, verify and drop the packs of a store."""

from __future__ import annotations

__all__: list[str] = []
