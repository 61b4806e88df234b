"""Reading records directly from a store's packs into the batch buffer."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import resource
import threading
import time
from collections import OrderedDict, deque
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from superdl.super_dataset.reading.buffer import PAYLOAD_BYTES
from superdl.super_wire.cache import MAX_BULK_BYTES
from superdl.super_wire.display import counted
from superdl.super_wire.errors import StoreError
from superdl.super_wire.record import HEADER_BYTES, payload_hash
from superdl.super_wire.store import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.record_kinds import Pointer

_LOG = logging.getLogger("superdl.super_dataset")
_LOG_EVERY_S = 60.0

_AHEAD = 64  # records that the kernel fetches from a disk while others are read
_FAR = 2**62  # no file is that long

_WITHOUT_NOWAIT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
# Read without waiting for a disk. Some filesystems and systems do not support it.
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)

_MIN_OPEN, _MAX_OPEN = 128, 1024
_CHECK_EVERY_S = 60.0
_SHARE_OF_FILES = 4  # use at most a quarter of the files that this process may open


class OpenPack:
    """A pack's file descriptor, closed once nothing refers to this object, so never during a read."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with contextlib.suppress(OSError):  # a network filesystem may report a read error here
            close(self.descriptor)


class OpenPacks:
    """This process's open packs, from all stores. Thread-safe.

    Beyond ``limit``, the least recently used packs are closed. Each reading thread may keep 64 more open. A
    forked process starts without open packs.
    """

    def __init__(self, limit: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._next_check_s = 0.0
        self._lock = threading.Lock()
        self._packs: OrderedDict[tuple[str, str], OpenPack] = OrderedDict()
        self._stores: dict[str, DirectoryStore] = {}
        # Stores whose filesystem cannot read without waiting.
        self.lacks_nowait: set[str] = set()

    def get(self, store: str, pack: str) -> OpenPack:
        """Return a pack that stays open while referenced. Raises ``StoreError`` if it is unreadable."""
        key = (store, pack)
        with self._lock:
            if key in self._packs:
                self._packs.move_to_end(key)
                return self._packs[key]
        if store not in self._stores:
            self._stores[store] = DirectoryStore.open(store, create=False, read_only=True)
        opened = OpenPack(self._stores[store].open_pack(pack))
        with self._lock:
            self._packs[key] = opened
            if self._limit is None:
                soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                allowed = _MAX_OPEN if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_FILES
                self._limit = max(_MIN_OPEN, min(_MAX_OPEN, allowed))
            while len(self._packs) > self._limit:
                self._packs.popitem(last=False)
        return opened

    def forget(self, store: str, pack: str) -> None:
        """Close a pack that a server may have lost. The next read reopens it."""
        with self._lock:
            self._packs.pop((store, pack), None)

    def drop_removed(self) -> None:
        """Close packs whose files were removed, to free disk space. Checks at most once a minute."""
        if self._clock() < self._next_check_s:
            return
        self._next_check_s = self._clock() + _CHECK_EVERY_S
        with self._lock:
            packs = list(self._packs.items())
        for key, pack in packs:  # without the lock, since a network filesystem asks its server
            try:
                is_removed = not os.fstat(pack.descriptor).st_nlink
            except OSError:  # the network filesystem's server lost it
                is_removed = True
            if is_removed:
                self.forget(*key)

    def after_fork(self) -> None:
        """Close the descriptors in a forked child, and replace the lock, which may have been held."""
        self._lock = threading.Lock()
        self._packs.clear()


OPEN_PACKS = OpenPacks()  # shared by all datasets of this process
os.register_at_fork(after_in_child=OPEN_PACKS.after_fork)


class StoreErrorLog:
    """Logs failed reads from stores, at most once a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged_s = -math.inf
        self._count = 0  # samples since then

    def add(self, ref: BatchRef, failed: Mapping[int, str]) -> None:
        """Count the batch's samples that could not be read. Log the count if a minute has passed."""
        self._count += len(failed)
        if self._clock() - self._logged_s < _LOG_EVERY_S:
            return
        count, self._count, self._logged_s = self._count, 0, self._clock()
        first, pack = min(failed), "by a pointer"
        if ref.places is not None and (number := int(np.frombuffer(ref.places.pack_of, dtype="<u4")[first])):
            name = ref.places.packs[number - 1] if number <= len(ref.places.packs) else "unknown"
            pack = f"pack {name}, byte {np.frombuffer(ref.places.offsets, dtype='<u8')[first]}"
        _LOG.warning(
            "%s could not be read from the store at %s and had to be requested from the cache: %s (%s): %s",
            counted(count, "sample"),
            ref.store or "another location",
            ref.name_of(first),
            pack,
            failed[first],
        )


# A sample's offset in the batch, and its record's pack, start and length.
_Entry: TypeAlias = tuple[int, str, int, int]


def read_placed(ref: BatchRef, buffer: BatchBuffer, packs: OpenPacks) -> tuple[list[int], dict[int, str]]:
    """Read the records whose locations are in the plan.

    Returns the offsets of the records that were read but not checked, and the reason for each failure.
    """
    reading = _Reading(ref.store, buffer, packs)
    return reading.run(_entries_of(ref, reading.failed))


def read_pointed(
    store: str, pointers: Mapping[int, Pointer], buffer: BatchBuffer, packs: OpenPacks
) -> tuple[list[int], dict[int, str]]:
    """Read the records that the cache's pointers refer to. Returns the same as :func:`read_placed`.

    ``store`` is empty if no store is accessible.
    """
    reading = _Reading(store, buffer, packs)
    located = [
        (offset, entry.pack, entry.offset, entry.length)
        for offset, entry in pointers.items()
        if store and entry.offset <= _FAR and entry.length <= MAX_BULK_BYTES
    ]
    unlocated = pointers.keys() - {entry[0] for entry in located}
    reading.failed |= dict.fromkeys(unlocated, "invalid location" if store else "no store is accessible")
    return reading.run(sorted(located, key=itemgetter(1, 2)))


def _entries_of(ref: BatchRef, failed: dict[int, str]) -> list[_Entry]:
    """Return the located records in pack order. Add samples with invalid locations to ``failed``."""
    if ref.places is None:
        return []
    names = ("", *ref.places.packs)
    pack_of = np.frombuffer(ref.places.pack_of, dtype="<u4")
    begins = np.frombuffer(ref.places.offsets, dtype="<u8")
    lengths = np.frombuffer(ref.places.lengths, dtype="<u4")
    wrong = (pack_of >= len(names)) | (begins > _FAR) | (lengths < HEADER_BYTES)
    if wrong.any():
        wrong &= pack_of > 0
        pack_of = np.where(wrong, 0, pack_of)
        failed |= dict.fromkeys(np.flatnonzero(wrong).tolist(), "invalid location")
    # Samples without a location have pack 0. They sort first and are cut off.
    offsets = np.lexsort((begins, pack_of))[np.count_nonzero(pack_of == 0) :]
    packs = map(names.__getitem__, pack_of[offsets].tolist())
    return list(
        zip(offsets.tolist(), packs, begins[offsets].tolist(), lengths[offsets].tolist(), strict=True)
    )


class _Reading:
    def __init__(self, store: str, buffer: BatchBuffer, packs: OpenPacks) -> None:
        self.done: list[int] = []
        self.failed: dict[int, str] = {}
        self._store = store
        self._buffer = buffer
        self._packs = packs
        self._reason = ""

    def run(self, located: list[_Entry]) -> tuple[list[int], dict[int, str]]:
        self._packs.drop_removed()
        # Read records of slot size here, without a method call for each.
        buffer, packs, preadv = self._buffer, self._packs, os.preadv
        nowait = 0 if self._store in packs.lacks_nowait else _NOWAIT
        waiting: deque[tuple[_Entry, OpenPack]] = deque()
        done: list[int] = []
        digests: list[int] = []
        headers = np.empty((buffer.size, HEADER_BYTES), dtype=np.uint8)
        rows, row = headers.reshape(-1).data, 0
        slots, slot_bytes = buffer.slots, buffer.item_bytes
        name, pack = "", None
        for entry in located:
            offset, pack_name, begin, length = entry
            if pack_name != name:
                name, pack = pack_name, self._open(pack_name)
            if pack is None:
                self.failed[offset] = self._reason
                continue
            if length - HEADER_BYTES != slot_bytes:
                self._read(entry, pack)
                slots, slot_bytes = buffer.slots, buffer.item_bytes
                continue
            slot = slots[offset * slot_bytes : offset * slot_bytes + slot_bytes]
            buffers = (rows[row : row + HEADER_BYTES], slot)
            try:
                # One call reads header and payload. A short read means that the rest is on a disk.
                size = preadv(pack.descriptor, buffers, begin, nowait) if nowait else 0
            except OSError as error:
                size = 0
                if error.errno in _WITHOUT_NOWAIT:
                    packs.lacks_nowait.add(self._store)
                    nowait = 0
            if size == length:
                # Hash it now, while it is in the CPU cache.
                digests.append(payload_hash(slot))
                done.append(offset)
                row += HEADER_BYTES
                continue
            _announce(pack, begin, length)
            waiting.append((entry, pack))
            if len(waiting) > _AHEAD:
                self._read(*waiting.popleft())
        buffer.note_records(done, headers[: len(done)], digests)
        self.done += done
        for entry, pack in waiting:
            self._read(entry, pack)
        return self.done, self.failed

    def _open(self, name: str) -> OpenPack | None:
        try:
            return self._packs.get(self._store, name)
        except StoreError as error:
            self._reason = str(error)
            return None

    def _read(self, entry: _Entry, pack: OpenPack) -> None:
        """Read one record. The first record of a batch sets the block size."""
        offset, name, begin, length = entry
        buffer, header = self._buffer, bytearray(HEADER_BYTES)
        try:
            _fill(pack, header, begin)
            _check_length(header, length)  # before memory is allocated for it
            record = buffer.place(offset, bytes(header), length - HEADER_BYTES)
            _fill(pack, record.payload, begin + HEADER_BYTES)
        except _MissingDataError as error:
            self.failed[offset] = str(error)
        except OSError as error:
            self._packs.forget(self._store, name)
            self.failed[offset] = error.strerror or str(error)
        else:
            buffer.note_record(record)
            self.done.append(offset)


class _MissingDataError(Exception):
    """A pack does not contain the expected data."""


def _announce(pack: OpenPack, begin: int, length: int) -> None:
    """Ask the kernel to read part of a pack ahead in the background, if it supports that."""
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(pack.descriptor, begin, length, os.POSIX_FADV_WILLNEED)


def _check_length(header: bytearray, length: int) -> None:
    record_bytes = HEADER_BYTES + int.from_bytes(header[PAYLOAD_BYTES], "little")
    if record_bytes != length:
        raise _MissingDataError(f"found a record of {record_bytes} bytes instead of {length}")


def _fill(pack: OpenPack, buffer: bytearray | memoryview, begin: int) -> None:
    view, at = memoryview(buffer), 0
    while at < len(view):
        count = os.preadv(pack.descriptor, (view[at:],), begin + at)
        if not count:
            raise _MissingDataError("the pack ends before the record does")
        at += count
