"""The embedded default: a coordinator, a cache and a worker on this host."""

from __future__ import annotations

__all__: list[str] = []
