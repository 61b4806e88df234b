"""The interface of every kind of store."""

from __future__ import annotations

import abc
import secrets
from typing import TYPE_CHECKING, NamedTuple

from superdl.super_wire.errors import StoreFormatError, StoreRefusedError
from superdl.super_wire.store.layout import (
    ABANDONED_S,
    IN_USE_S,
    INDEX,
    MAX_SEGMENT_BYTES,
    OPEN,
    PACKS,
    TEMPORARY,
    USED,
)
from superdl.super_wire.store.pack import read_pack_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.super_wire.store.pack import PackIndex, PackInProgress, PackMeta


class Listed(NamedTuple):
    """A file or object in a folder: its name, its length and the Unix time when it was written."""

    name: str
    bytes: int
    written: float


class Store(abc.ABC):
    """A directory or S3 prefix that contains packs. Times are Unix times. Names are relative to the store.

    Methods that write raise ``StoreRefusedError`` if the store was opened read-only.
    """

    address: str  # the directory's absolute real path, or s3://bucket/prefix
    id: str  # 32 hex digits, which do not depend on the address
    read_only: bool
    requests: int = 0  # requests sent so far; 0 for a directory

    def packs(self) -> dict[str, int]:
        """Return the length of each pack, by name."""
        return {pack.name: pack.bytes for pack in self._list(PACKS)}

    def read(self, pack: str, offset: int, length: int) -> bytes:
        """Read bytes of a pack. Fewer are returned if the pack ends earlier, so callers must check them."""
        return self.read_many(pack, [(offset, length)])[0]

    @abc.abstractmethod
    def read_many(self, pack: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read (offset, length) spans of a pack. They may be cut off, as with :meth:`read`."""

    def read_index(self, pack: str, size: int) -> PackIndex:
        """Read the index of a pack of ``size`` bytes."""
        try:
            return read_pack_index(lambda offset, length: self.read(pack, offset, length), size)
        except StoreFormatError as error:
            raise StoreFormatError(f"{self.address}/{PACKS}/{pack}: {error}") from error

    @abc.abstractmethod
    def begin_pack(self, meta: PackMeta) -> PackInProgress:
        """Start to write a pack. It is invisible until it is committed."""

    def remove(self, pack: str) -> None:
        """Remove a pack. A missing pack is not an error."""
        self._remove(PACKS, pack)

    def segments(self) -> list[str]:
        """Return the names of all segments."""
        return [entry.name for entry in self._list(INDEX) if entry.name.endswith(".segment")]

    def read_segment(self, name: str) -> bytes:
        """Read one segment without checking it."""
        return self._contents(INDEX, name, MAX_SEGMENT_BYTES)

    def write_segment(self, data: bytes, collection: str = "") -> str:
        """Write a segment under a new name and return the name. It begins with ``collection`` if that is
        given.
        """
        name = f"{collection}{collection and '-'}{secrets.token_hex(12)}.segment"
        self._put(INDEX, name, data)
        return name

    def remove_segment(self, name: str) -> None:
        """Remove a segment. A missing segment is not an error."""
        self._remove(INDEX, name)

    def touch(self, instance: str) -> None:
        """Mark the store as open in ``instance``. Must be called every minute."""
        self._put(OPEN, instance, b"")

    def forget(self, instance: str) -> None:
        """Mark the store as no longer open in ``instance``."""
        self._remove(OPEN, instance)

    def others(self, instance: str, now: float) -> list[str]:
        """Return the other instances that touched the store within the last ten minutes."""
        recent = sorted(entry.name for entry in self._list(OPEN) if now - entry.written < IN_USE_S)
        return [name for name in recent if name != instance]

    def mark_used(self, collection: str) -> None:
        """Record that a job has opened a collection now."""
        self._put(USED, collection, b"")

    def used(self) -> dict[str, float]:
        """Return the time at which each collection was last opened."""
        return {collection.name: collection.written for collection in self._list(USED)}

    def sweep(self, now: float) -> int:
        """Remove the unfinished files of writers that died over a day ago. Return the number of files."""
        return self._remove_all((TEMPORARY, OPEN), now - ABANDONED_S)

    @abc.abstractmethod
    def _list(self, folder: str) -> list[Listed]:
        """List the files in a folder whose names are valid in a store."""

    @abc.abstractmethod
    def _contents(self, folder: str, name: str, most: int) -> bytes:
        """Read a whole file of at most ``most`` bytes."""

    @abc.abstractmethod
    def _put(self, folder: str, name: str, data: bytes) -> None:
        """Write a file atomically, replacing an old one."""

    @abc.abstractmethod
    def _remove(self, folder: str, name: str) -> None:
        """Remove a file. A missing file is not an error."""

    def _check_writing(self) -> None:
        if self.read_only:
            raise StoreRefusedError(f"{self.address} was opened read-only")

    def _remove_all(self, folders: Sequence[str], before: float) -> int:
        self._check_writing()
        listed = [(folder, entry) for folder in folders for entry in self._list(folder)]
        old = [(folder, entry.name) for folder, entry in listed if entry.written < before]
        for folder, name in old:
            self._remove(folder, name)
        return len(old)
