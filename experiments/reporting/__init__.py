"""HTML pages with tables and plots. Each page is a single file that works offline and in print."""

from __future__ import annotations

__all__: list[str] = []
