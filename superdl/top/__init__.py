"""``superdl top``: a live view of a coordinator, in a terminal or as a page on loopback."""

from __future__ import annotations

__all__: list[str] = []
