"""Where batches lie: recycled, shared and pinned memory, and the way to a device."""

from __future__ import annotations

__all__: list[str] = []
