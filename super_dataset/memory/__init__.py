"""Memory of batches: recycled, shared and pinned, and the transfer to a device."""

from __future__ import annotations

from superdl.super_dataset.memory.batch_memory import Memory, Mover, memory_here, mover_to

__all__ = ["Memory", "Mover", "memory_here", "mover_to"]
