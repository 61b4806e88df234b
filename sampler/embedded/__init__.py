"""The embedded default: a coordinator, a cache and a worker on this host, started on first use."""

from __future__ import annotations

__all__: list[str] = []
