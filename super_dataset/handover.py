"""How a batch goes from a DataLoader worker to the trainer: in memory that both map and that is used again.

torch gives every batch new shared memory: its pages are made, faulted in and given back once for each batch,
which costs a worker more than receiving the batch, and a file descriptor travels over a connection of its
own. Here a worker owns a few blocks (``memfd_create``). A message names one; the trainer opens it under
``/proc/<worker>/fd``, maps it, and marks it free when the last tensor in it is gone. Then the worker receives
another batch into it. Where blocks run short, since batches are kept, or where the system has no such files,
torch's own way is taken: nothing is refused.

A block's last page holds a token, by which the trainer knows that it opened the right file, and flags: one
byte for each tensor under way, set by the worker, cleared by whoever got it. Single bytes need no lock.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import threading
import weakref
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["WorkerMemory", "send_by_value", "shared_bytes"]

_MAX_BLOCKS = 16
"""A worker's blocks, at most; a trainer that keeps more batches than that gets the others by torch's way."""
_MIN_BYTES = 64 * 1024  # below that, torch's way costs no more
_TOKEN_BYTES = 16
_TRAILER_BYTES = mmap.PAGESIZE
_FLAGS = _TRAILER_BYTES - _TOKEN_BYTES  # tensors in one block that may be under way or held at once
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
        self._blocks: list[_Block] = []
        self._usable = True

    def take(self, size: int) -> torch.Tensor:
        """Uint8 of shape (size,), in a block that is free, or else as torch allocates it."""
        if self._pid != os.getpid():  # also in a fork of a process that had blocks: they are not ours
            self._lock, self._pid, self._blocks = threading.Lock(), os.getpid(), []
            self._usable = _files_can_be_opened()
            ForkingPickler.register(torch.Tensor, self._reduce)
        if not self._usable or size < _MIN_BYTES:
            return shared_bytes(size)
        with self._lock:
            block = self._free_block(size)
            return shared_bytes(size) if block is None else block.lend(size)

    def _free_block(self, size: int) -> _Block | None:
        free = sorted((block for block in self._blocks if block.free), key=lambda block: block.size)
        for block in free:
            if size <= block.size:
                return block
        if len(self._blocks) >= _MAX_BLOCKS:
            if not free:
                return None
            self._blocks.remove(free[0])
            free[0].close()
        try:
            block = _Block(size)
        except OSError:  # no memory or no file descriptor left: torch finds another way, or says so
            return None
        self._blocks.append(block)
        return block

    def _reduce(self, tensor: torch.Tensor) -> Any:
        """What multiprocessing's pickler is to send for a tensor."""
        if getattr(tensor, _BY_VALUE, False):
            return _rebuild_value, (tensor.numpy(),)
        place = self._place(tensor) if self._pid == os.getpid() and _is_plain(tensor) else None
        if place is None:
            return reduce_tensor(tensor)  # type: ignore[no-untyped-call]  # torch's own, without annotations
        layout = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        return _rebuild, (place, layout)

    def _place(self, tensor: torch.Tensor) -> _Place | None:
        start = tensor.untyped_storage().data_ptr()
        with self._lock:
            for block in self._blocks:
                if block.start == start and (flag := block.send()) is not None:
                    return os.getpid(), block.fd, block.token, block.size, flag
        return None


class _Block:
    """A file in memory, mapped: room for a batch, then the trailer."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.fd = os.memfd_create("super-batch", os.MFD_CLOEXEC)
        try:
            # Reserved now: a page that cannot be had later would be a SIGBUS in the middle of a receive.
            os.posix_fallocate(self.fd, 0, self.size + _TRAILER_BYTES)
            memory = mmap.mmap(self.fd, self.size + _TRAILER_BYTES)
        except OSError:
            os.close(self.fd)
            raise
        self._bytes: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
        self._bytes[self.size : self.size + _TOKEN_BYTES] = np.frombuffer(self.token, dtype=np.uint8)
        self._flags = self._bytes[self.size + _TOKEN_BYTES :][:_FLAGS]
        self.start = self._bytes.ctypes.data
        self._lent: weakref.ref[NDArray[np.uint8]] | None = None

    @property
    def free(self) -> bool:
        """Whether nobody holds what lies in it, here or elsewhere."""
        # In this order: a message is made while the array lives, so after its end flags are only cleared.
        return (self._lent is None or self._lent() is None) and not self._flags.any()

    def lend(self, size: int) -> torch.Tensor:
        """Its first ``size`` bytes."""
        lent = np.frombuffer(self._bytes.data, dtype=np.uint8, count=size)
        self._lent = weakref.ref(lent)
        return torch.from_numpy(lent)

    def send(self) -> int | None:
        """Raise a flag for one more tensor; ``None`` if too many are under way."""
        flag = int(self._flags.argmin())
        if self._flags[flag]:
            return None
        self._flags[flag] = 1
        return flag

    def close(self) -> None:
        """Close the file; whoever maps it keeps it."""
        os.close(self.fd)


def _files_can_be_opened() -> bool:
    """Whether there are such files, and another process of this user can open them by their number."""
    if sys.platform != "linux":
        return False
    try:
        # A process that others may not look into belongs to root there.
        if Path(f"/proc/{os.getpid()}").stat().st_uid != os.geteuid():
            return False
        fd = os.memfd_create("super-probe", os.MFD_CLOEXEC)
        try:
            os.close(os.open(_path(os.getpid(), fd), os.O_RDWR | os.O_CLOEXEC))
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def _path(pid: int, fd: int) -> str:
    return f"/proc/{pid}/fd/{fd}"


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    )


def _rebuild_value(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array)


def _rebuild(place: _Place, layout: tuple[Any, ...]) -> torch.Tensor:
    """In the trainer: the tensor that a worker sent."""
    pid, fd, token, size, flag = place
    memory = _open(pid, fd, token, size)
    array = np.frombuffer(memory, dtype=np.uint8, count=size)
    flags = np.frombuffer(memory, dtype=np.uint8, offset=size + _TOKEN_BYTES, count=_FLAGS)
    weakref.finalize(array, _give_back, flags, flag, os.getpid()).atexit = False
    dtype, offset, shape, stride = layout
    return torch.empty(0, dtype=dtype).set_(torch.from_numpy(array).untyped_storage(), offset, shape, stride)


# What this process has mapped, by token, as long as a tensor lies in it.
_mapped: weakref.WeakValueDictionary[bytes, mmap.mmap] = weakref.WeakValueDictionary()


def _open(pid: int, fd: int, token: bytes, size: int) -> mmap.mmap:
    known = _mapped.get(token)
    if known is not None:
        return known
    reason = ""
    try:
        opened = os.open(_path(pid, fd), os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(opened, size + _TRAILER_BYTES)
        finally:
            os.close(opened)
        if memory[size : size + _TOKEN_BYTES] == token:
            return _mapped.setdefault(token, memory)
    except (OSError, ValueError) as error:
        reason = f" ({error})"
    msg = (
        f"a batch of DataLoader worker {pid} cannot be had any more: the worker ended before its batch was "
        f"received, or its memory may not be opened{reason}"
    )
    raise SuperError(msg)


def _give_back(flags: NDArray[np.uint8], flag: int, pid: int) -> None:
    if os.getpid() == pid:  # a fork's copy of the tensor ends without the tensor's end
        flags[flag] = 0
