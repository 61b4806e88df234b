"""Blocks of shared memory that a DataLoader worker receives batches into, again and again.

A block is a file in memory (``memfd_create``, or a file without a name in ``/dev/shm`` where Python was built
without that call). Its last page holds a token, by which another process knows that it opened the right file,
and flags: one byte for each tensor under way, set by the worker, changed by the receiver. Single bytes need
no lock. What is sent, and how it is received, is :mod:`superdl.super_dataset.memory.handover`'s.

A process that forks shares what it maps with its child, of which the worker knows nothing. So what was held
during a fork is never received into again: its flag says retired, and the worker closes the block.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "FLAGS",
    "HELD",
    "TOKEN_BYTES",
    "UNDER_WAY",
    "Block",
    "file_path",
    "files_can_be_opened",
    "flag_after",
    "forks",
    "mapped_bytes",
]

TOKEN_BYTES = 16
_TRAILER_BYTES = mmap.PAGESIZE
FLAGS = _TRAILER_BYTES - TOKEN_BYTES
"""Tensors in one block that may be under way or held at once."""

_FREE = 0
UNDER_WAY = 1
"""A flag of a tensor that was sent and not received yet."""
HELD = 2
"""A flag of a tensor that somebody received and has."""
_RETIRED = 3

_forks = 0


def forks() -> int:
    """A number that changes when this process forks."""
    return _forks


def flag_after(forks_then: int) -> int:
    """The flag of a tensor that is gone, received when :func:`forks` gave ``forks_then``."""
    return _FREE if forks_then == _forks else _RETIRED


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 # it is of the process
    _forks += 1


# Before and after: also what another thread receives or drops meanwhile is known to have seen the fork.
os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)


def mapped_bytes(size: int) -> int:
    """Length of the file of a block with ``size`` bytes."""
    return size + _TRAILER_BYTES


class Block:
    """Room for a batch, then the trailer.

    Args:
        size: bytes wanted; a block has whole pages.

    Raises:
        OSError: there is no memory or no file descriptor for it.
    """

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.fd = _open_file()
        try:
            # Reserved now: a page that cannot be had later would be a SIGBUS in the middle of a receive.
            os.posix_fallocate(self.fd, 0, mapped_bytes(self.size))
            memory = mmap.mmap(self.fd, mapped_bytes(self.size))
        except OSError:
            os.close(self.fd)
            raise
        self._bytes: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
        self._bytes[self.size : self.size + TOKEN_BYTES] = np.frombuffer(self.token, dtype=np.uint8)
        self._flags = self._bytes[self.size + TOKEN_BYTES :][:FLAGS]
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
        live = (self._flags == UNDER_WAY) | (self._flags == HELD)
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
        self._flags[flag] = UNDER_WAY
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
        fd = _open_file()
        try:
            os.close(os.open(file_path(os.getpid(), fd), os.O_RDWR | os.O_CLOEXEC))
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def file_path(pid: int, fd: int) -> str:
    """Where a process's open file is to be found by others."""
    return f"/proc/{pid}/fd/{fd}"


def _open_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("super-batch", os.MFD_CLOEXEC)
    return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: S108 # nameless, so unguessable
