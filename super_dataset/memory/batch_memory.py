"""The memory that batches are received into: fresh, recycled, pinned or shared."""

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

_ALIGNMENT = 64  # bytes; a multiple of every dtype's size


class Memory(Protocol):
    """An allocator for batches; if ``shared`` with other processes, a single block is best."""

    shared: bool

    def take(self, size: int) -> torch.Tensor:
        """Return uninitialised uint8 memory of shape (size,), owned by its users."""


class FreshMemory:
    """An allocator of new memory for each batch."""

    shared = False

    def take(self, size: int) -> torch.Tensor:
        """See :class:`Memory`."""
        # numpy requests huge pages where torch does not.
        return torch.from_numpy(np.empty(size, dtype=np.uint8)) if size else _nothing()


class PinnedMemory:
    """Page-locked memory from torch, which keeps it until copies to the device are done."""

    shared = False

    def take(self, size: int) -> torch.Tensor:
        """See :class:`Memory`; torch raises ``RuntimeError`` if there is no accelerator."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class RecycledMemory:
    """Memory that is reused once unreferenced, up to ``idle_blocks``. Thread-safe."""

    shared = False

    def __init__(self, idle_blocks: int = 4) -> None:
        # A deque appends and pops atomically: memory comes back wherever the last reference ends, also in a
        # garbage collection within take(), where a lock would already be held.
        self._idle: deque[NDArray[np.uint8]] = deque(maxlen=idle_blocks)

    def take(self, size: int) -> torch.Tensor:
        """See :class:`Memory`."""
        if not size:
            return _nothing()
        # A page of fresh memory costs a page fault, more than receiving into it.
        block = self._idle_block(size)
        # The tensor's storage keeps this array alive, and all tensors, views and arrays derived
        # from it keep the storage alive: when the array ends, all of them have.
        lent = np.frombuffer(block.data, dtype=np.uint8, count=size)
        weakref.finalize(lent, self._idle.append, block).atexit = False
        return torch.from_numpy(lent)

    def _idle_block(self, size: int) -> NDArray[np.uint8]:
        while True:
            try:
                block = self._idle.pop()  # the latest may still be in a cache
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
    """Return this thread's memory: as set, else shared in a worker, else recycled."""
    chosen: Memory | None = getattr(_chosen, "memory", None)
    if chosen is not None:
        return chosen
    return _RECYCLED if get_worker_info() is None else _SHARED


@contextmanager
def receiving_into(memory: Memory, *, finished_elsewhere: bool = False) -> Iterator[None]:
    """Receive this thread's batches into ``memory``; they may be handed on ``Unfinished``."""
    before = getattr(_chosen, "memory", None), finished_elsewhere_here()
    _chosen.memory, _chosen.elsewhere = memory, finished_elsewhere
    try:
        yield
    finally:
        _chosen.memory, _chosen.elsewhere = before


def finished_elsewhere_here() -> bool:
    """Return this thread's ``finished_elsewhere`` of :func:`receiving_into`."""
    return bool(getattr(_chosen, "elsewhere", False))


def empty_batch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor to be filled; on the CPU in the memory for receiving batches."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    flat = memory_here().take(math.prod(shape) * dtype.itemsize)
    return flat.view(dtype).view(shape)


def in_one_block(tensors: Sequence[torch.Tensor], memory: Memory) -> list[torch.Tensor]:
    """Return the tensors; in shared memory as copies in one block."""
    if not memory.shared:
        return list(tensors)
    # Each block costs a file descriptor.
    flats = cut_up(memory, [tensor.nbytes for tensor in tensors])
    parts = [flat.view(tensor.dtype).view(tensor.shape) for flat, tensor in zip(flats, tensors, strict=True)]
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor)
    return parts


def cut_up(memory: Memory, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Cut one block into tensors of ``sizes`` bytes, each aligned for any dtype."""
    rounded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    starts = list(accumulate(rounded, initial=0))
    block = memory.take(starts.pop())
    return [block[start : start + size] for start, size in zip(starts, sizes, strict=True)]
