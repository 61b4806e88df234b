"""Memory of batches: recycled, shared and pinned, and the transfer to a device."""

from __future__ import annotations

__all__: list[str] = []
