"""The memory that batches are received into: fresh, recycled, pinned or shared.

A page of fresh memory costs a fault, which is more than receiving into it; so memory is used again, as soon
as the batch that lay in it and everything that shares its memory are gone, and never before.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch.utils.data import get_worker_info

from superdl.super_dataset.memory.handover import WorkerMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = [
    "FreshMemory",
    "Memory",
    "PinnedMemory",
    "RecycledMemory",
    "cut_up",
    "empty_batch",
    "finished_elsewhere_here",
    "in_one_block",
    "memory_here",
    "receiving_into",
]

_ALIGNMENT = 64  # bytes; a multiple of every dtype's size


class Memory(Protocol):
    """Gives memory for batches; where it is ``shared`` with other processes, one piece is best."""

    shared: bool

    def take(self, size: int) -> torch.Tensor:
        """Uint8 of shape (size,), not initialised; it belongs to the caller and to all who share it."""


class FreshMemory:
    """New memory for each batch."""

    shared = False

    def take(self, size: int) -> torch.Tensor:
        """See :class:`Memory`."""
        # numpy asks for huge pages where torch does not.
        return torch.from_numpy(np.empty(size, dtype=np.uint8)) if size else _nothing()


class PinnedMemory:
    """Page-locked memory from torch's own allocator, which keeps it until copies to the device are done."""

    shared = False

    def take(self, size: int) -> torch.Tensor:
        """See :class:`Memory`; ``RuntimeError`` of torch's where there is no accelerator."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class RecycledMemory:
    """Memory that comes back when nobody holds it any more. Threads may share it.

    The tensor's storage keeps an array alive, and every tensor, view and array made of it keeps the storage:
    the array's end is the end of all of them. At most ``idle_blocks`` are kept for later.
    """

    shared = False

    def __init__(self, idle_blocks: int = 4) -> None:
        # A deque appends and pops in one step: memory comes back wherever the last reference ends, also in a
        # garbage collection within take(), where a lock would be held already.
        self._idle: deque[NDArray[np.uint8]] = deque(maxlen=idle_blocks)

    def take(self, size: int) -> torch.Tensor:
        """See :class:`Memory`."""
        if not size:
            return _nothing()
        block = self._idle_block(size)
        lent = np.frombuffer(block.data, dtype=np.uint8, count=size)
        weakref.finalize(lent, self._idle.append, block).atexit = False
        return torch.from_numpy(lent)

    def _idle_block(self, size: int) -> NDArray[np.uint8]:
        while True:
            try:
                block = self._idle.pop()  # the latest, which the processor's caches may still hold
            except IndexError:
                return np.empty(size, dtype=np.uint8)
            if size <= block.nbytes:
                return block


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


_RECYCLED = RecycledMemory()
_SHARED = WorkerMemory()
_chosen = threading.local()


def memory_here() -> Memory:
    """This thread's memory: what :func:`receiving_into` chose, else shared in a worker, else recycled."""
    chosen: Memory | None = getattr(_chosen, "memory", None)
    if chosen is not None:
        return chosen
    return _RECYCLED if get_worker_info() is None else _SHARED


@contextmanager
def receiving_into(memory: Memory, *, finished_elsewhere: bool = False) -> Iterator[None]:
    """Let batches that this thread reads be received into ``memory``; what is ``finished_elsewhere`` may be
    handed on as an ``Unfinished``.
    """
    before = getattr(_chosen, "memory", None), finished_elsewhere_here()
    _chosen.memory, _chosen.elsewhere = memory, finished_elsewhere
    try:
        yield
    finally:
        _chosen.memory, _chosen.elsewhere = before


def finished_elsewhere_here() -> bool:
    """What :func:`receiving_into` chose for this thread."""
    return bool(getattr(_chosen, "elsewhere", False))


def empty_batch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor to be filled; on the CPU where batches are received: used again, shared in a worker, pinned on
    the way to a device.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    flat = memory_here().take(math.prod(shape) * dtype.itemsize)
    return flat.view(dtype).view(shape)


def in_one_block(tensors: Sequence[torch.Tensor], memory: Memory) -> list[torch.Tensor]:
    """Tensors of any sizes; in shared memory as one piece, or each would cost a file descriptor."""
    if not memory.shared:
        return list(tensors)
    flats = cut_up(memory, [tensor.nbytes for tensor in tensors])
    parts = [flat.view(tensor.dtype).view(tensor.shape) for flat, tensor in zip(flats, tensors, strict=True)]
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor)
    return parts


def cut_up(memory: Memory, sizes: Sequence[int]) -> list[torch.Tensor]:
    """One block, cut into tensors of so many bytes, each where any dtype may begin."""
    rounded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    starts = list(accumulate(rounded, initial=0))
    block = memory.take(starts.pop())
    return [block[start : start + size] for start, size in zip(starts, sizes, strict=True)]
