"""Recycled, shared and pinned memory for batches, and their transfer to a device."""

from __future__ import annotations

__all__: list[str] = []
