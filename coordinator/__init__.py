"""The coordinator, which plans every job, has samples produced ahead and accounts for the cache."""

from __future__ import annotations

__all__: list[str] = []
