"""The coordinator's side of the cache: budget, lock, upkeep and streams."""

from __future__ import annotations

__all__: list[str] = []
