"""``superdl top``: views of a coordinator, in a terminal or as a page on loopback."""

from __future__ import annotations

from superdl.top.looks import Looks

__all__ = ["Looks"]
