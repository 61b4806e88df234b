"""How a batch goes from a DataLoader worker to the trainer: in memory that both map and that is used again.

torch gives every batch new shared memory: its pages are made, faulted in and given back once for each batch,
which costs a worker more than receiving the batch. Here a worker owns a few blocks, files in memory. A
message names one; the trainer opens it under ``/proc/<worker>/fd``, maps it, and marks it free when the last
tensor in it is gone. Where blocks run short, or where the system has no such files, torch's own way is taken.
To this end multiprocessing's pickler learns, in the worker and in each receiver, what to send for a tensor of
ours.

A block's last page holds a token, by which another process knows that it opened the right file, and flags:
one byte for each tensor under way, set by the worker, changed by the receiver. Single bytes need no lock. A
process that forks shares what it maps with its child, of which the worker knows nothing: what was held during
a fork is never received into again, its flag says retired, and the worker closes the block.
"""

from __future__ import annotations

import mmap
import multiprocessing
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

from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "WorkerMemory",
    "file_path",
    "files_can_be_opened",
    "open_file",
    "send_by_value",
    "shared_bytes",
]

_MAX_BLOCKS = 16
"""A worker's blocks, at most; a trainer that keeps more batches than that gets the others by torch's way."""
_IDLE_BLOCKS = 5
"""More free blocks than that go back to the system, one with each batch."""
_MIN_BYTES = 64 * 1024  # below that, torch's way costs no more
_DYING_S = 5.0  # a killed process closes its files some milliseconds before its parent can see it dead
_BY_VALUE = "_super_by_value"

_Place: TypeAlias = tuple[int, int, bytes, int, int]
"""Where a message's tensor lies: process, file descriptor, token, size of the block, flag."""

_TOKEN_BYTES = 16
_TRAILER_BYTES = mmap.PAGESIZE
_FLAGS = _TRAILER_BYTES - _TOKEN_BYTES  # tensors in one block that may be under way or held at once
_FREE = 0
_UNDER_WAY = 1  # sent and not received yet
_HELD = 2  # somebody received it and has it
_RETIRED = 3  # gone, but a fork may still look at it

_forks = 0  # changes when this process forks


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 # it is of the process
    _forks += 1


# Before and after: also what another thread receives or drops meanwhile is known to have seen the fork.
os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)


class Block:
    """A file in memory: room for a batch of ``size`` bytes, in whole pages, then the trailer.

    Raises:
        OSError: there is no memory or no file descriptor for it.
    """

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.fd = open_file()
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
        self._lent_forks = _forks

    @property
    def free(self) -> bool:
        """Whether nobody holds what lies in it, here or elsewhere."""
        # In this order: a message is made while the array lives, so after its end flags only fall.
        return self._returned() and not self._flags.any()

    @property
    def retired(self) -> bool:
        """Whether nobody holds it but a fork, perhaps, that may look at it at any time."""
        if not self._returned():
            return False
        forked_here = self._lent is not None and self._lent_forks != _forks
        if not self._flags.any():
            return forked_here
        live = (self._flags == _UNDER_WAY) | (self._flags == _HELD)
        return (forked_here or bool((self._flags == _RETIRED).any())) and not live.any()

    def lend(self, size: int) -> torch.Tensor:
        """Its first ``size`` bytes."""
        lent = np.frombuffer(self._bytes.data, dtype=np.uint8, count=size)
        self._lent, self._lent_forks = weakref.ref(lent), _forks
        return torch.from_numpy(lent)

    def send(self) -> int | None:
        """Raise a flag for one more tensor; ``None`` if too many are under way."""
        flag = int(self._flags.argmin())
        if self._flags[flag] != _FREE:
            return None
        self._flags[flag] = _UNDER_WAY
        return flag

    def close(self) -> None:
        """Close the file; processes that map it keep it."""
        os.close(self.fd)

    def _returned(self) -> bool:
        return self._lent is None or self._lent() is None


def files_can_be_opened() -> bool:
    """Whether there are such files, and the trainer can open this process's by their number."""
    if sys.platform != "linux":
        return False
    try:
        # A process that others may not look into belongs to root there. That we may look into the one that
        # started us is a sign that it may look into us.
        if Path(f"/proc/{os.getpid()}").stat().st_uid != os.geteuid():
            return False
        os.listdir(f"/proc/{os.getppid()}/fd")  # noqa: PTH208 # the error is what is asked for
        fd = open_file()
        try:
            os.close(os.open(file_path(os.getpid(), fd), os.O_RDWR | os.O_CLOEXEC))
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def file_path(pid: int, fd: int) -> str:
    """The path by which other processes open a file that this one holds open."""
    return f"/proc/{pid}/fd/{fd}"


def open_file() -> int:
    """A new file in memory, without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("super-batch", os.MFD_CLOEXEC)
    return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: S108 # nameless, so unguessable


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
    flags = np.frombuffer(memory, dtype=np.uint8, offset=size + _TOKEN_BYTES, count=_FLAGS)
    if flags[flag] != _UNDER_WAY:
        msg = f"a batch of DataLoader worker {pid} was received twice: a message can be unpickled once"
        raise SuperError(msg)
    flags[flag] = _HELD
    array = np.frombuffer(memory, dtype=np.uint8, count=size)
    weakref.finalize(array, _give_back, flags, flag, os.getpid(), _forks).atexit = False
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
            memory = mmap.mmap(opened, size + _TRAILER_BYTES)
        finally:
            os.close(opened)
        if memory[size : size + _TOKEN_BYTES] == token:
            return _mapped.setdefault(token, memory)
    except (OSError, ValueError) as error:
        reason = f" ({error})"
        # Where this error meets a dead worker, torch tells of that; where none is yet, it passes this on.
        for worker in multiprocessing.active_children():
            if worker.pid == pid:
                worker.join(_DYING_S)
    raise SuperError(
        f"a batch of DataLoader worker {pid} cannot be had any more: the worker ended before its batch was "
        f"received, or its memory may not be opened{reason}"
    )


def _give_back(flags: NDArray[np.uint8], flag: int, pid: int, forks_then: int) -> None:
    if os.getpid() == pid:  # a fork's copy of the tensor ends without the tensor's end
        flags[flag] = _FREE if forks_then == _forks else _RETIRED
