"""Transfer of batches from a DataLoader worker to the trainer, in reusable memory that both map.

A worker owns a few blocks, which are in-memory files. Each message names a block. The trainer opens it under
``/proc/<worker>/fd``, maps it, and marks it free once its last tensor is gone. If blocks run out, or the
system has no such files, torch's own method is used. Small tensors are sent inside the message.
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
_MIN_BYTES = 64 * 1024  # below this, torch's method costs no more
# Tensors up to this size are sent inside the message. Larger ones could fill the pipe, on which the workers
# of a killed trainer would block forever.
_VALUE_BYTES = 8 * 1024
_DYING_S = 5.0  # a killed process closes its files before its parent sees it dead

# A tensor's process, file descriptor, token, block size and flag.
_Location: TypeAlias = tuple[int, int, bytes, int, int]

_TOKEN_BYTES = 16
# A block's last page has a token, by which another process verifies that it opened the right file, and a
# flag byte per tensor in transit. Single bytes need no lock.
_TRAILER_BYTES = mmap.PAGESIZE
_FLAGS = _TRAILER_BYTES - _TOKEN_BYTES  # maximum number of a block's tensors in use
_FREE = 0
_IN_TRANSIT = 1  # sent but not received yet
_HELD = 2  # received and in use
_RETIRED = 3  # gone, but a fork may still read it

_forks = 0  # counts this process's forks


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 # one count per process
    _forks += 1


# A fork shares its parent's mappings without the worker's knowledge. Count before and after, so that
# tensors that other threads receive meanwhile also count as visible to the fork.
os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)


class Block:
    """An in-memory file of ``size`` bytes, rounded up to pages, plus a trailer. May raise ``OSError``."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.fd = open_file()
        try:
            # Reserve pages now, since a page missing later would cause a SIGBUS.
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
        """Return whether the block is unused in this and all other processes."""
        # Tensors are only sent while the array exists, so once it is gone, flags are only cleared.
        return self._returned() and not self._flags.any()

    @property
    def retired(self) -> bool:
        """Return whether only a forked process, which could read at any time, may still use the block."""
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
        """Reserve a flag for a tensor to send. Return the flag's index, or ``None`` if no flag is free."""
        flag = int(self._flags.argmin())
        if self._flags[flag] != _FREE:
            return None
        self._flags[flag] = _IN_TRANSIT
        return flag

    def close(self) -> None:
        """Close the file. Processes that map it keep their mappings."""
        os.close(self.fd)

    def _returned(self) -> bool:
        return self._lent is None or self._lent() is None


def files_can_be_opened() -> bool:
    """Return whether the trainer can open this process's in-memory files by descriptor."""
    try:
        # In /proc, a process that others may not inspect belongs to root. If this process may inspect its
        # parent, the reverse probably holds too.
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
    """Return the path under which other processes can open a file of process ``pid``."""
    return f"/proc/{pid}/fd/{fd}"


def open_file() -> int:
    """Create and open an unnamed in-memory file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("super-batch", os.MFD_CLOEXEC)
    return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: S108 # nameless


def shared_bytes(size: int) -> torch.Tensor:
    """Return uint8 memory of shape (size,) that other processes can map, allocated by torch's own method."""
    new_shared: Callable[[int], torch.UntypedStorage] = torch.UntypedStorage._new_shared  # noqa: SLF001 # no public name
    memory = torch.empty(0, dtype=torch.uint8)
    memory.set_(new_shared(max(size, 1)), 0, (size,), (1,))
    return memory


class WorkerMemory:
    """A worker's blocks, owned by the process that allocates from them. Thread-safe."""

    shared = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._blocks: list[Block] = []
        self._usable = True

    def take(self, size: int) -> torch.Tensor:
        """Return uint8 memory of shape (size,), in a free block if possible."""
        if self._pid != os.getpid():  # a fork does not own its parent's blocks
            self._lock, self._pid, self._blocks = threading.Lock(), os.getpid(), []
            self._usable = files_can_be_opened()
            ForkingPickler.register(torch.Tensor, self._reduce)
        # torch's method creates, faults in and frees pages for every batch, which costs a worker more than
        # receiving the batch.
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
        except OSError:  # out of memory or descriptors, which torch handles or reports
            return None
        self._blocks.append(block)
        return block

    def _close(self, block: Block) -> None:
        self._blocks.remove(block)
        block.close()

    def _reduce(self, tensor: torch.Tensor) -> Any:
        if not _is_plain(tensor):
            return reduce_tensor(tensor)  # type: ignore[no-untyped-call]  # torch's own, without annotations
        storage = tensor.untyped_storage()
        is_small = 0 < storage.nbytes() <= _VALUE_BYTES
        if is_small and tensor.nbytes < storage.nbytes():  # or each of many views would contain all bytes
            tensor = tensor.clone()
            storage = tensor.untyped_storage()
        layout = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if is_small:
            content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()
            return _rebuild_small, (content, layout)
        location = self._locate(tensor) if self._pid == os.getpid() else None
        if location is None:
            return _reduce_received(tensor)
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


def _rebuild_small(content: bytes, layout: tuple[Any, ...]) -> torch.Tensor:
    memory = bytearray(content or b"\0")  # torch rejects empty buffers
    return _view(torch.frombuffer(memory, dtype=torch.uint8), layout)


def _view(memory: torch.Tensor, layout: tuple[Any, ...]) -> torch.Tensor:
    dtype, offset, shape, stride = layout
    return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), offset, shape, stride)


# This process's mappings by token, while a tensor uses them, and by address the arrays that keep these
# tensors' memory alive.
_mapped: weakref.WeakValueDictionary[bytes, mmap.mmap] = weakref.WeakValueDictionary()
_received: weakref.WeakValueDictionary[int, NDArray[np.uint8]] = weakref.WeakValueDictionary()


def _rebuild(location: _Location, layout: tuple[Any, ...]) -> torch.Tensor:
    # For batches that this process passes on.
    ForkingPickler.register(torch.Tensor, _reduce_received)
    pid, fd, token, size, flag = location
    memory = _open(pid, fd, token, size)
    flags = np.frombuffer(memory, dtype=np.uint8, offset=size + _TOKEN_BYTES, count=_FLAGS)
    if flags[flag] != _IN_TRANSIT:
        raise SuperError(
            f"a batch from DataLoader worker {pid} was received twice. Unpickle each message only once"
        )
    flags[flag] = _HELD
    array = np.frombuffer(memory, dtype=np.uint8, count=size)
    weakref.finalize(array, _give_back, flags, flag, os.getpid(), _forks).atexit = False
    _received[array.ctypes.data] = array
    return _view(torch.from_numpy(array), layout)


def _reduce_received(tensor: torch.Tensor) -> Any:
    # torch would move the tensor to other memory, which releases the block while arrays derived from the
    # tensor may still be in use.
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
        # If the worker died, torch reports that. Otherwise it propagates this error.
        for worker in multiprocessing.active_children():
            if worker.pid == pid:
                worker.join(_DYING_S)
    raise SuperError(
        f"a batch from DataLoader worker {pid} is lost, because the worker exited before it was received or "
        f"its memory cannot be opened{reason}"
    )


def _give_back(flags: NDArray[np.uint8], flag: int, pid: int, forks_then: int) -> None:
    if os.getpid() == pid:  # a fork only drops its copy of the tensor
        flags[flag] = _FREE if forks_then == _forks else _RETIRED
