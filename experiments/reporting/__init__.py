"""Pages of figures with tables and plots, each a single HTML file that works offline and in print."""

from __future__ import annotations

__all__: list[str] = []
