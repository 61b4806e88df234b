"""The packs that a process keeps open: a limited number, and closed once they are removed."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from superdl.super_wire.errors import StoreError
from superdl.super_wire.store import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OPEN_PACKS", "OpenPack", "OpenPacks"]

_LEAST_OPEN, _MOST_OPEN = 128, 1024
_LOOK_EVERY_S = 60.0
_SHARE_OF_FILES = 4  # we use at most one in this many of the files that a process may open


class OpenPack:
    """A pack's descriptor, closed when no longer referenced, so never while read."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with contextlib.suppress(OSError):  # a network filesystem's delayed error about a read
            close(self.descriptor)


class OpenPacks:
    """Packs that a process keeps open, of any store; the least recently used is closed first.

    At most ``limit`` are open, plus 64 for each thread that reads from a disk. Removed packs are closed
    within a minute of reading, so that the disk regains their space. Thread-safe. A fork begins with none.
    """

    def __init__(self, limit: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._look_s = 0.0
        self._lock = threading.Lock()
        self._packs: OrderedDict[tuple[str, str], OpenPack] = OrderedDict()
        self._stores: dict[str, DirectoryStore] = {}
        self.cannot_tell: set[str] = set()
        """Stores whose filesystem does not report which data must come from a disk."""
        self.waits_for_disks = False
        """Whether part of the latest batch had to come from a disk."""

    def __len__(self) -> int:
        return len(self._packs)

    def get(self, store: str, pack: str) -> OpenPack:
        """Return the open pack; it stays open while it is referenced.

        Raises:
            StoreError: the store or pack does not exist or cannot be read.
        """
        key = (store, pack)
        with self._lock:
            cached = self._packs.get(key)
            if cached is not None:
                self._packs.move_to_end(key)
                return cached
        opened = OpenPack(self._open(store, pack))
        with self._lock:
            self._packs[key] = opened
            self._packs.move_to_end(key)
            if self._limit is None:
                self._limit = _allowed_files()
            while len(self._packs) > self._limit:
                self._packs.popitem(last=False)
        return opened

    def forget(self, store: str, pack: str) -> None:
        """Close a pack, so that the next read reopens it; a server may have lost it."""
        with self._lock:
            self._packs.pop((store, pack), None)

    def let_go(self) -> None:
        """Close packs that have been removed; checks once a minute."""
        if self._clock() < self._look_s:
            return
        self._look_s = self._clock() + _LOOK_EVERY_S
        with self._lock:
            packs = list(self._packs.items())
        for key, pack in packs:  # outside the lock: a network filesystem queries its server
            if _was_removed(pack):
                self.forget(*key)

    def after_fork(self) -> None:
        """Reset in a child: close its descriptors; the lock may have been held."""
        self._lock = threading.Lock()
        self._packs.clear()

    def _open(self, store: str, pack: str) -> int:
        directory = self._stores.get(store)
        if directory is None:
            directory = self._stores[store] = DirectoryStore.open(store, create=False, read_only=True)
        try:
            return directory.open_pack(pack)
        except StoreError as error:  # naming its cause would keep packs open
            if not _is_of_many_files(error.__cause__):
                raise
        with self._lock:  # other code needs files too
            self._packs.clear()
        return directory.open_pack(pack)


def _was_removed(pack: OpenPack) -> bool:
    try:
        return not os.fstat(pack.descriptor).st_nlink
    except OSError:  # a network filesystem's server lost it
        return True


def _is_of_many_files(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def _allowed_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_OPEN if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_FILES
    return max(_LEAST_OPEN, min(_MOST_OPEN, allowed))


OPEN_PACKS = OpenPacks()  # shared by all datasets of the process
os.register_at_fork(after_in_child=OPEN_PACKS.after_fork)
