"""Pages of figures, an HTML file each: tables and plots, also in print and offline."""

from __future__ import annotations

__all__: list[str] = []
