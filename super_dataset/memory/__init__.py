"""Memory of batches: recycled, shared and pinned, and the transfer to a device."""

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
from superdl.super_dataset.memory.device import Mover, Unfinished, as_type_of, map_tensors, mover_to
from superdl.super_dataset.memory.handover import file_path, open_file, send_by_value

__all__ = [
    "FreshMemory",
    "Memory",
    "Mover",
    "RecycledMemory",
    "Unfinished",
    "as_type_of",
    "cut_up",
    "empty_batch",
    "file_path",
    "finished_elsewhere_here",
    "in_one_block",
    "map_tensors",
    "memory_here",
    "mover_to",
    "open_file",
    "receiving_into",
    "send_by_value",
]
