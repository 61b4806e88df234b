"""How a batch goes from a DataLoader worker to the trainer: in memory that both map and that is used again.

torch gives every batch new shared memory: its pages are made, faulted in and given back once for each batch,
which costs a worker more than receiving the batch, and a file descriptor travels over a connection of its
own. Here a worker owns a few blocks (:mod:`superdl.super_dataset.memory.blocks`). A message names one; the
trainer opens it under ``/proc/<worker>/fd``, maps it, and marks it free when the last tensor in it is gone.
Then the worker receives another batch into it. Where blocks run short, since batches are kept, or where the
system has no such files, torch's own way is taken: nothing is refused.

To this end multiprocessing's pickler learns, in the worker and in each receiver, what to send for a
tensor of ours; for all others torch's own way stays.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import threading
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from superdl.super_dataset.memory.blocks import (
    FLAGS,
    HELD,
    TOKEN_BYTES,
    UNDER_WAY,
    Block,
    file_path,
    files_can_be_opened,
    flag_after,
    forks,
    mapped_bytes,
)
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["WorkerMemory", "send_by_value", "shared_bytes"]

_MAX_BLOCKS = 16
"""A worker's blocks, at most; a trainer that keeps more batches than that gets the others by torch's way."""
_IDLE_BLOCKS = 5
"""More free blocks than that go back to the system, one with each batch."""
_MIN_BYTES = 64 * 1024  # below that, torch's way costs no more
_DYING_S = 5.0  # a killed process closes its files some milliseconds before its parent can see it dead
_BY_VALUE = "_super_by_value"

_Place: TypeAlias = tuple[int, int, bytes, int, int]
"""Where a message's tensor lies: process, file descriptor, token, size of the block, flag."""


def shared_bytes(size: int) -> torch.Tensor:
    """Uint8 memory of shape (size,) that other processes can map, as torch's own collate allocates it."""
    new_shared: Callable[[int], torch.UntypedStorage] = torch.UntypedStorage._new_shared  # noqa: SLF001 # no public name
    memory = torch.empty(0, dtype=torch.uint8)
    memory.set_(new_shared(max(size, 1)), 0, (size,), (1,))
    return memory


def send_by_value(tensor: torch.Tensor) -> torch.Tensor:
    """Let a tensor travel inside the message if it is small: shared memory would cost more than it holds."""
    if tensor.nbytes < _MIN_BYTES:
        setattr(tensor, _BY_VALUE, True)
    return tensor


class WorkerMemory:
    """A worker's blocks, made in the process that first takes one; threads may share it."""

    shared = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._blocks: list[Block] = []
        self._usable = True

    def take(self, size: int) -> torch.Tensor:
        """Uint8 of shape (size,), in a block that is free, or else as torch allocates it."""
        if self._pid != os.getpid():  # also in a fork of a process that had blocks: they are not ours
            self._lock, self._pid, self._blocks = threading.Lock(), os.getpid(), []
            self._usable = files_can_be_opened()
            ForkingPickler.register(torch.Tensor, self._reduce)
        if not self._usable or size < _MIN_BYTES:
            return shared_bytes(size)
        with self._lock:
            block = self._free_block(size)
            return shared_bytes(size) if block is None else block.lend(size)

    def _free_block(self, size: int) -> Block | None:
        for block in [block for block in self._blocks if block.retired]:
            self._close(block)
        free = sorted((block for block in self._blocks if block.free), key=lambda block: block.size)
        if len(free) > _IDLE_BLOCKS:  # a loop that once kept many batches does so no more
            self._close(free.pop(0))
        for block in free:
            if size <= block.size:
                return block
        if len(self._blocks) >= _MAX_BLOCKS:
            if not free:
                return None
            self._close(free[0])
        try:
            block = Block(size)
        except OSError:  # no memory or no file descriptor left: torch finds another way, or says so
            return None
        self._blocks.append(block)
        return block

    def _close(self, block: Block) -> None:
        self._blocks.remove(block)
        block.close()

    def _reduce(self, tensor: torch.Tensor) -> Any:
        """What multiprocessing's pickler is to send for a tensor, in a worker."""
        if not _is_plain(tensor):
            return reduce_tensor(tensor)  # type: ignore[no-untyped-call]  # torch's own, without annotations
        if getattr(tensor, _BY_VALUE, False) and tensor.dtype != torch.bfloat16:  # which numpy lacks
            return _rebuild_value, (tensor.numpy(),)
        place = self._place(tensor) if self._pid == os.getpid() else None
        if place is None:
            return _reduce_received(tensor)
        layout = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        return _rebuild, (place, layout)

    def _place(self, tensor: torch.Tensor) -> _Place | None:
        start = tensor.untyped_storage().data_ptr()
        with self._lock:
            for block in self._blocks:
                if block.start == start and (flag := block.send()) is not None:
                    return os.getpid(), block.fd, block.token, block.size, flag
        return None


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )


def _rebuild_value(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array)


# What this process has mapped, by token, as long as a tensor lies in it; and the arrays that keep the memory
# of these tensors, by address.
_mapped: weakref.WeakValueDictionary[bytes, mmap.mmap] = weakref.WeakValueDictionary()
_received: weakref.WeakValueDictionary[int, NDArray[np.uint8]] = weakref.WeakValueDictionary()
_registered_in = 0


def _rebuild(place: _Place, layout: tuple[Any, ...]) -> torch.Tensor:
    """In the trainer: the tensor that a worker sent."""
    global _registered_in  # noqa: PLW0603 # a process registers once
    if _registered_in != os.getpid():
        _registered_in = os.getpid()
        ForkingPickler.register(torch.Tensor, _reduce_received)
    pid, fd, token, size, flag = place
    memory = _open(pid, fd, token, size)
    flags = np.frombuffer(memory, dtype=np.uint8, offset=size + TOKEN_BYTES, count=FLAGS)
    if flags[flag] != UNDER_WAY:
        msg = f"a batch of DataLoader worker {pid} was received twice: a message can be unpickled once"
        raise SuperError(msg)
    flags[flag] = HELD
    array = np.frombuffer(memory, dtype=np.uint8, count=size)
    weakref.finalize(array, _give_back, flags, flag, os.getpid(), forks()).atexit = False
    _received[array.ctypes.data] = array
    dtype, offset, shape, stride = layout
    return torch.empty(0, dtype=dtype).set_(torch.from_numpy(array).untyped_storage(), offset, shape, stride)


def _reduce_received(tensor: torch.Tensor) -> Any:
    """What to send for a tensor that may lie in a worker's block: then a copy of it.

    torch would move the tensor itself to other memory and so give the block back, though an array made of it
    may still be in use.
    """
    if _is_plain(tensor) and tensor.untyped_storage().data_ptr() in _received:
        tensor = tensor.clone()
    return reduce_tensor(tensor)  # type: ignore[no-untyped-call]  # as above


def _open(pid: int, fd: int, token: bytes, size: int) -> mmap.mmap:
    known = _mapped.get(token)
    if known is not None:
        return known
    reason = ""
    try:
        opened = os.open(file_path(pid, fd), os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(opened, mapped_bytes(size))
        finally:
            os.close(opened)
        if memory[size : size + TOKEN_BYTES] == token:
            return _mapped.setdefault(token, memory)
    except (OSError, ValueError) as error:
        reason = f" ({error})"
        # Where this error meets a dead worker, torch tells of that; where none is yet, it passes this on.
        for worker in multiprocessing.active_children():
            if worker.pid == pid:
                worker.join(_DYING_S)
    msg = (
        f"a batch of DataLoader worker {pid} cannot be had any more: the worker ended before its batch was "
        f"received, or its memory may not be opened{reason}"
    )
    raise SuperError(msg)


def _give_back(flags: NDArray[np.uint8], flag: int, pid: int, forks_then: int) -> None:
    if os.getpid() == pid:  # a fork's copy of the tensor ends without the tensor's end
        flags[flag] = flag_after(forks_then)
