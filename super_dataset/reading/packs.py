"""Reading records straight from a store's packs into the batch buffer."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import os
import resource
import threading
import time
from collections import OrderedDict, deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from superdl.super_dataset.reading.buffer import PAYLOAD_BYTES
from superdl.super_wire.cache import MAX_BULK_BYTES
from superdl.super_wire.errors import StoreError
from superdl.super_wire.record import HEADER_BYTES, payload_hash
from superdl.super_wire.redaction import counted
from superdl.super_wire.store import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.record_kinds import Pointer

_LOG = logging.getLogger("superdl.super_dataset")
_LOG_EVERY_S = 60.0

_AHEAD = 64  # records that the kernel fetches while others are read
_FAR = 2**62  # no file is that long

_ANNOUNCED_BYTES = 64 * 2**20  # prefetched within a batch

_WITHOUT_NOWAIT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
# Read without waiting for a disk. Not every filesystem and system supports this.
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)

_LEAST_OPEN, _MOST_OPEN = 128, 1024
_LOOK_EVERY_S = 60.0
_SHARE_OF_FILES = 4  # use at most one in this many of a process's allowed open files


class OpenPack:
    """The file descriptor of a pack. It is closed when unreferenced, so never during a read."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with contextlib.suppress(OSError):  # a network filesystem's delayed error about a read
            close(self.descriptor)


class OpenPacks:
    """A process's open packs, from all stores. The least recently used is closed first. Thread-safe.

    At most ``limit`` are open, plus 128 for each thread that reads. A fork starts with none.
    """

    def __init__(self, limit: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._look_s = 0.0
        self._lock = threading.Lock()
        self._packs: OrderedDict[tuple[str, str], OpenPack] = OrderedDict()
        self._stores: dict[str, DirectoryStore] = {}
        # Stores whose filesystem does not report which data must come from a disk.
        self.lacks_nowait: set[str] = set()
        # Whether part of the latest batch had to come from a disk.
        self.waits_for_disks = False

    def opened(self, store: str, packs: Iterable[str]) -> dict[str, OpenPack]:
        """Return those of the packs that are open, by name. They stay open while referenced."""
        cached = {}
        with self._lock:
            for pack in packs:
                key = (store, pack)
                if key in self._packs:
                    self._packs.move_to_end(key)
                    cached[pack] = self._packs[key]
        return cached

    def get(self, store: str, pack: str) -> OpenPack:
        """Return a pack that stays open while referenced. Raises ``StoreError`` if it is unreadable."""
        key = (store, pack)
        cached = self.opened(store, [pack])
        if cached:
            return cached[pack]
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
        """Close a pack that a server may have lost, so that the next read reopens it."""
        with self._lock:
            self._packs.pop((store, pack), None)

    def drop_removed(self) -> None:
        """Close packs that have been removed. Check at most once a minute."""
        if self._clock() < self._look_s:
            return
        self._look_s = self._clock() + _LOOK_EVERY_S
        with self._lock:
            # While a removed pack is open, the disk does not regain its space.
            packs = list(self._packs.items())
        for key, pack in packs:  # outside the lock: a network filesystem queries its server
            if _was_removed(pack):
                self.forget(*key)

    def after_fork(self) -> None:
        """Close the descriptors in a forked child, and replace the lock, which may have been held."""
        self._lock = threading.Lock()
        self._packs.clear()

    def _open(self, store: str, pack: str) -> int:
        directory = self._stores.get(store)
        if directory is None:
            directory = self._stores[store] = DirectoryStore.open(store, create=False, read_only=True)
        try:
            return directory.open_pack(pack)
        except StoreError as error:  # a variable for its cause would keep packs open
            if not _too_many_files(error.__cause__):
                raise
        with self._lock:  # other code needs files too
            self._packs.clear()
        return directory.open_pack(pack)


def _was_removed(pack: OpenPack) -> bool:
    try:
        return not os.fstat(pack.descriptor).st_nlink
    except OSError:  # a network filesystem's server lost it
        return True


def _too_many_files(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def _allowed_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_OPEN if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_FILES
    return max(_LEAST_OPEN, min(_MOST_OPEN, allowed))


OPEN_PACKS = OpenPacks()  # shared by all datasets of the process
os.register_at_fork(after_in_child=OPEN_PACKS.after_fork)


class StoreTroubleLog:
    """A log of failed reads from a store. A process logs at most once a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged_s = -math.inf
        self._count = 0  # of samples since then

    def add(self, ref: BatchRef, failed: Mapping[int, str]) -> None:
        """Count the samples of a batch that could not be read, and log them if it is time."""
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


# A sample's offset in the batch, and the location of its record: pack, start, length.
_Entry: TypeAlias = tuple[int, str, int, int]


def read_placed(ref: BatchRef, buffer: BatchBuffer, packs: OpenPacks) -> tuple[list[int], dict[int, str]]:
    """Read records at known locations. Return the offsets that were read, unchecked, and the failures."""
    reading = _Reading(ref.store, buffer, packs)
    return reading.run(_entries_of(ref, reading.failed))


def read_pointed(
    store: str, pointers: Mapping[int, Pointer], buffer: BatchBuffer, packs: OpenPacks
) -> tuple[list[int], dict[int, str]]:
    """Read records by the cache's pointers. ``store`` is empty if none is accessible."""
    reading = _Reading(store, buffer, packs)
    located = [
        (offset, entry.pack, entry.offset, entry.length)
        for offset, entry in pointers.items()
        if store and entry.offset <= _FAR and entry.length <= MAX_BULK_BYTES
    ]
    unlocated = pointers.keys() - {entry[0] for entry in located}
    reading.failed |= dict.fromkeys(unlocated, "invalid location" if store else "no store is accessible")
    return reading.run(sorted(located, key=itemgetter(1, 2)))


def announce(ref: Any, packs: OpenPacks = OPEN_PACKS) -> None:
    """Have the kernel fetch a later batch, if batches must be read from a disk."""
    # Ignore anything but a batch in packs, since a sampler may yield any object.
    for _, part in getattr(ref, "parts", ((0, ref),)):
        store = getattr(part, "store", "")
        if store and (packs.waits_for_disks or store in packs.lacks_nowait):
            _announce(store, _entries_of(part, {}), packs)


def _entries_of(ref: BatchRef, failed: dict[int, str]) -> list[_Entry]:
    """Return records with known locations, in pack order. Add those with invalid ones to ``failed``."""
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
    # Index 0 of pack_of means no location; these sort first and are cut off.
    offsets = np.lexsort((begins, pack_of))[np.count_nonzero(pack_of == 0) :]
    packs = map(names.__getitem__, pack_of[offsets].tolist())
    return list(
        zip(offsets.tolist(), packs, begins[offsets].tolist(), lengths[offsets].tolist(), strict=True)
    )


def _announce(store: str, located: list[_Entry], packs: OpenPacks) -> None:
    left_bytes = _ANNOUNCED_BYTES
    for _, name, begin, length in located:
        left_bytes -= length
        if left_bytes < 0:
            break
        try:
            _will_need(packs.get(store, name), begin, length)
        except StoreError:  # reported when it is read
            continue


class _Reading:
    def __init__(self, store: str, buffer: BatchBuffer, packs: OpenPacks) -> None:
        self.done: list[int] = []
        self.failed: dict[int, str] = {}
        self._store = store
        self._buffer = buffer
        self._packs = packs
        self._waiting: deque[tuple[_Entry, OpenPack]] = deque()
        self._opened: dict[str, OpenPack] = {}
        self._reason = ""

    def run(self, located: list[_Entry]) -> tuple[list[int], dict[int, str]]:
        self._packs.drop_removed()
        # Read records of slot size here, without a method call for each.
        buffer, packs, preadv = self._buffer, self._packs, os.preadv
        nowait = _NOWAIT
        if self._store in packs.lacks_nowait:
            nowait = 0
            _announce(self._store, located, packs)
        done: list[int] = []
        digests: list[int] = []
        headers = np.empty((buffer.size, HEADER_BYTES), dtype=np.uint8)
        rows, row = headers.reshape(-1).data, 0
        slots, slot_bytes = buffer.slots, buffer.item_bytes
        # Only these may stay open after they are evicted.
        names = dict.fromkeys(map(itemgetter(1), located))
        self._opened = packs.opened(self._store, itertools.islice(names, _AHEAD))
        name, pack = "", None
        for entry in located:
            offset, its_name, begin, length = entry
            if its_name != name:
                name, pack = its_name, self._opened.get(its_name) or self._open(its_name)
            if pack is None:
                self.failed[offset] = self._reason
                continue
            if length - HEADER_BYTES != slot_bytes:
                self._read(entry, pack)
                slots, slot_bytes = buffer.slots, buffer.item_bytes
                continue
            slot = slots[offset * slot_bytes : offset * slot_bytes + slot_bytes]
            try:
                # One call for header and payload; a short read means that the rest is on a disk.
                size = preadv(pack.descriptor, (rows[row : row + HEADER_BYTES], slot), begin, nowait)
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
            else:
                self._later(entry, pack)
        buffer.note_records(done, headers[: len(done)], digests)
        self.done += done
        packs.waits_for_disks = bool(self._waiting)
        self._read_waiting()
        return self.done, self.failed

    def _read_waiting(self) -> None:
        while self._waiting:
            self._read(*self._waiting.popleft())

    def _open(self, name: str) -> OpenPack | None:
        try:
            return self._packs.get(self._store, name)
        except StoreError as error:
            if not (self._waiting or self._opened):
                self._reason = str(error)
                return None
        self._read_waiting()  # waiting records keep packs open, and file descriptors may be scarce
        self._opened.clear()
        return self._open(name)

    def _later(self, entry: _Entry, pack: OpenPack) -> None:
        _, _, begin, length = entry
        # The kernel fetches it while others are read.
        _will_need(pack, begin, length)
        self._waiting.append((entry, pack))
        if len(self._waiting) > _AHEAD:
            self._read(*self._waiting.popleft())

    def _read(self, entry: _Entry, pack: OpenPack) -> None:
        """Read one record. The first of a batch sets the block size."""
        offset, name, begin, length = entry
        buffer, header = self._buffer, bytearray(HEADER_BYTES)
        try:
            _fill(pack, header, begin)
            _check_length(header, length)  # before memory is allocated for it
            record = buffer.place(offset, bytes(header), length - HEADER_BYTES)
            _fill(pack, record.payload, begin + HEADER_BYTES)
        except _NotThereError as error:
            self.failed[offset] = str(error)
        except OSError as error:
            self._packs.forget(self._store, name)
            self.failed[offset] = error.strerror or str(error)
        else:
            buffer.note_record(record)
            self.done.append(offset)


class _NotThereError(Exception):
    """A pack does not contain the expected data."""


def _check_length(header: bytearray, length: int) -> None:
    record_bytes = HEADER_BYTES + int.from_bytes(header[PAYLOAD_BYTES], "little")
    if record_bytes != length:
        raise _NotThereError(f"found a record of {record_bytes} bytes instead of {length}")


def _fill(pack: OpenPack, buffer: bytearray | memoryview, begin: int) -> None:
    view, at = memoryview(buffer), 0
    while at < len(view):
        count = os.preadv(pack.descriptor, (view[at:],), begin + at)
        if not count:
            raise _NotThereError("the pack is truncated there")
        at += count


def _will_need(pack: OpenPack, begin: int, length: int) -> None:
    """Have the kernel fetch bytes of a pack in the background, if it can."""
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(pack.descriptor, begin, length, os.POSIX_FADV_WILLNEED)
