"""The embedded default: coordinator, cache and worker on this host."""

from __future__ import annotations

__all__: list[str] = []
