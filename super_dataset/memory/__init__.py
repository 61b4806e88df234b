"""Where batches lie: recycled, shared and pinned memory, and the way to a device."""

from __future__ import annotations

from superdl.super_dataset.memory.batch_memory import (
    FreshMemory,
    Memory,
    RecycledMemory,
    cut_up,
    empty_batch,
    finished_elsewhere_here,
    in_one_block,
    memory_here,
    receiving_into,
)
from superdl.super_dataset.memory.device import Mover, Unfinished, map_tensors, mover_to
from superdl.super_dataset.memory.handover import send_by_value

__all__ = [
    "FreshMemory",
    "Memory",
    "Mover",
    "RecycledMemory",
    "Unfinished",
    "cut_up",
    "empty_batch",
    "finished_elsewhere_here",
    "in_one_block",
    "map_tensors",
    "memory_here",
    "mover_to",
    "receiving_into",
    "send_by_value",
]
