"""The coordinator, which plans every job, requests samples ahead of time and manages the cache."""

from __future__ import annotations

__all__: list[str] = []
