"""Transfer of batches from a DataLoader worker to the trainer, in reusable memory that both map.

A worker owns a few blocks, which are files in memory. A message refers to one; the trainer opens it under
``/proc/<worker>/fd``, maps it, and marks it free when the last tensor in it is gone. If there are too few
blocks, or the system lacks such files, torch's own method is used.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import secrets
import threading
import weakref
from multiprocessing.reduction import ForkingPickler  # noqa: TID251  # torch's queues use it
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Maximum blocks per worker. Further batches use torch's method.
_MAX_BLOCKS = 16
# Free blocks beyond this number are returned to the system, one per batch.
_IDLE_BLOCKS = 5
_MIN_BYTES = 64 * 1024  # below that, torch's method costs no more
_DYING_S = 5.0  # a killed process closes its files before its parent sees it dead
_BY_VALUE = "_super_by_value"

# A tensor's location: process, file descriptor, token, size of the block, flag.
_Location: TypeAlias = tuple[int, int, bytes, int, int]

_TOKEN_BYTES = 16
# A block's last page: a token, by which another process checks that it opened the right file,
# and a byte for each tensor in transit. Single bytes need no lock.
_TRAILER_BYTES = mmap.PAGESIZE
_FLAGS = _TRAILER_BYTES - _TOKEN_BYTES  # tensors of a block in use at once
_FREE = 0
_IN_TRANSIT = 1  # sent and not received yet
_HELD = 2  # received and in use
_RETIRED = 3  # gone, but a fork may still read it

_forks = 0  # changes when this process forks


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 # one count per process
    _forks += 1


# A fork shares its parent's mappings, which the worker cannot know. Count before and after,
# so that tensors received meanwhile by other threads also count as seen by the fork.
os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)


class Block:
    """An in-memory file of ``size`` bytes, in whole pages, plus the trailer. May raise ``OSError``."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.fd = open_file()
        try:
            # Reserve pages now: a page missing later would cause a SIGBUS.
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
        """Return whether the contents of the block are unused, here and elsewhere."""
        # In this order: tensors are only sent while the array exists, so later flags are only cleared.
        return self._returned() and not self._flags.any()

    @property
    def retired(self) -> bool:
        """Return whether only a fork, which could read the block at any time, may still use it."""
        if not self._returned():
            return False
        forked_here = self._lent is not None and self._lent_forks != _forks
        if not self._flags.any():
            return forked_here
        live = (self._flags == _IN_TRANSIT) | (self._flags == _HELD)
        return (forked_here or bool((self._flags == _RETIRED).any())) and not live.any()

    def lend(self, size: int) -> torch.Tensor:
        """Return the first ``size`` bytes of the block."""
        lent = np.frombuffer(self._bytes.data, dtype=np.uint8, count=size)
        self._lent, self._lent_forks = weakref.ref(lent), _forks
        return torch.from_numpy(lent)

    def send(self) -> int | None:
        """Set a flag for another tensor and return its index, or ``None`` if none is free."""
        flag = int(self._flags.argmin())
        if self._flags[flag] != _FREE:
            return None
        self._flags[flag] = _IN_TRANSIT
        return flag

    def close(self) -> None:
        """Close the file. Processes that map it keep their mapping."""
        os.close(self.fd)

    def _returned(self) -> bool:
        return self._lent is None or self._lent() is None


def files_can_be_opened() -> bool:
    """Return whether this system has memory files that the trainer can open by number."""
    try:
        # A process that others may not inspect belongs to root in /proc. If we may inspect our parent,
        # it can probably inspect us.
        if Path(f"/proc/{os.getpid()}").stat().st_uid != os.geteuid():
            return False
        os.listdir(f"/proc/{os.getppid()}/fd")  # noqa: PTH208 # only the error matters
        fd = open_file()
        try:
            os.close(os.open(file_path(os.getpid(), fd), os.O_RDWR | os.O_CLOEXEC))
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def file_path(pid: int, fd: int) -> str:
    """Return the path by which other processes can open a file of process ``pid``."""
    return f"/proc/{pid}/fd/{fd}"


def open_file() -> int:
    """Open a new, unnamed in-memory file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("super-batch", os.MFD_CLOEXEC)
    return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: S108 # nameless


def shared_bytes(size: int) -> torch.Tensor:
    """Return uint8 memory of shape (size,) that other processes can map, allocated as torch does."""
    new_shared: Callable[[int], torch.UntypedStorage] = torch.UntypedStorage._new_shared  # noqa: SLF001 # no public name
    memory = torch.empty(0, dtype=torch.uint8)
    memory.set_(new_shared(max(size, 1)), 0, (size,), (1,))
    return memory


def send_by_value(tensor: torch.Tensor) -> torch.Tensor:
    """Mark a small tensor to be sent inside the message."""
    # Shared memory would cost more than its contents.
    if tensor.nbytes < _MIN_BYTES:
        setattr(tensor, _BY_VALUE, True)
    return tensor


class WorkerMemory:
    """The blocks of a worker, which belong to the process that first takes one. Thread-safe."""

    shared = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._blocks: list[Block] = []
        self._usable = True

    def take(self, size: int) -> torch.Tensor:
        """Return uint8 memory of shape (size,), in a free block if there is one, else torch's."""
        if self._pid != os.getpid():  # in a fork, blocks are not ours
            self._lock, self._pid, self._blocks = threading.Lock(), os.getpid(), []
            self._usable = files_can_be_opened()
            ForkingPickler.register(torch.Tensor, self._reduce)
        # torch's method creates, faults in and frees pages for every batch, which costs a worker
        # more than receiving it.
        if not self._usable or size < _MIN_BYTES:
            return shared_bytes(size)
        with self._lock:
            block = self._free_block(size)
            return shared_bytes(size) if block is None else block.lend(size)

    def _free_block(self, size: int) -> Block | None:
        for block in [block for block in self._blocks if block.retired]:
            self._close(block)
        free = sorted((block for block in self._blocks if block.free), key=lambda block: block.size)
        if len(free) > _IDLE_BLOCKS:  # the loop once kept many batches and no longer does
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
        except OSError:  # out of memory or descriptors: torch copes or reports
            return None
        self._blocks.append(block)
        return block

    def _close(self, block: Block) -> None:
        self._blocks.remove(block)
        block.close()

    def _reduce(self, tensor: torch.Tensor) -> Any:
        if not _is_plain(tensor):
            return reduce_tensor(tensor)  # type: ignore[no-untyped-call]  # torch's own, without annotations
        if getattr(tensor, _BY_VALUE, False) and tensor.dtype != torch.bfloat16:  # which numpy lacks
            return _rebuild_value, (tensor.numpy(),)
        location = self._locate(tensor) if self._pid == os.getpid() else None
        if location is None:
            return _reduce_received(tensor)
        layout = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        return _rebuild, (location, layout)

    def _locate(self, tensor: torch.Tensor) -> _Location | None:
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


# This process's mappings by token, kept while a tensor uses them, and the arrays that keep the memory of
# these tensors alive, by address.
_mapped: weakref.WeakValueDictionary[bytes, mmap.mmap] = weakref.WeakValueDictionary()
_received: weakref.WeakValueDictionary[int, NDArray[np.uint8]] = weakref.WeakValueDictionary()


def _rebuild(location: _Location, layout: tuple[Any, ...]) -> torch.Tensor:
    # In each receiver, for batches that it passes on.
    ForkingPickler.register(torch.Tensor, _reduce_received)
    pid, fd, token, size, flag = location
    memory = _open(pid, fd, token, size)
    flags = np.frombuffer(memory, dtype=np.uint8, offset=size + _TOKEN_BYTES, count=_FLAGS)
    if flags[flag] != _IN_TRANSIT:
        msg = f"a batch from DataLoader worker {pid} was received twice: unpickle each message only once"
        raise SuperError(msg)
    flags[flag] = _HELD
    array = np.frombuffer(memory, dtype=np.uint8, count=size)
    weakref.finalize(array, _give_back, flags, flag, os.getpid(), _forks).atexit = False
    _received[array.ctypes.data] = array
    dtype, offset, shape, stride = layout
    return torch.empty(0, dtype=dtype).set_(torch.from_numpy(array).untyped_storage(), offset, shape, stride)


def _reduce_received(tensor: torch.Tensor) -> Any:
    # torch would move the tensor itself to other memory and so release the block, though an array derived
    # from it may still be in use.
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
        # If a worker died, torch reports that; else it propagates this error.
        for worker in multiprocessing.active_children():
            if worker.pid == pid:
                worker.join(_DYING_S)
    raise SuperError(
        f"a batch from DataLoader worker {pid} is no longer available: the worker exited before it was "
        f"received, or its memory cannot be opened{reason}"
    )


def _give_back(flags: NDArray[np.uint8], flag: int, pid: int, forks_then: int) -> None:
    if os.getpid() == pid:  # in a fork, only a copy of the tensor ended
        flags[flag] = _FREE if forks_then == _forks else _RETIRED
