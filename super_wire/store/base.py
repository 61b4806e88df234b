"""The interface of all kinds of stores."""

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
    """A file or object in a folder. ``written`` is a Unix time."""

    name: str
    bytes: int
    written: float


class Store(abc.ABC):
    """A directory or S3 prefix with packs. Times are Unix times. Names are relative to the store.

    Methods that write raise ``StoreRefusedError`` if the store is read-only.
    """

    address: str  # the directory's absolute real path, or s3://bucket/prefix
    id: str  # 32 hex digits, independent of the address
    read_only: bool
    requests: int = 0  # requests sent so far; 0 for a directory

    def packs(self) -> dict[str, int]:
        """Return the lengths of all packs, by name."""
        return {pack.name: pack.bytes for pack in self._list(PACKS)}

    def read(self, pack: str, offset: int, length: int) -> bytes:
        """Read bytes of a pack. The result may be cut off, so callers must check it."""
        return self.read_many(pack, [(offset, length)])[0]

    @abc.abstractmethod
    def read_many(self, pack: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read (offset, length) spans of a pack. Each result may be cut off."""

    def read_index(self, pack: str, size: int) -> PackIndex:
        """Read the index of a pack of ``size`` bytes."""
        try:
            return read_pack_index(lambda offset, length: self.read(pack, offset, length), size)
        except StoreFormatError as error:
            raise StoreFormatError(f"{self.address}/{PACKS}/{pack}: {error}") from error

    @abc.abstractmethod
    def begin_pack(self, meta: PackMeta) -> PackInProgress:
        """Start a pack. It is invisible until it is committed."""

    def remove(self, pack: str) -> None:
        """Remove a pack. A missing pack is not an error."""
        self._remove(PACKS, pack)

    def segments(self) -> list[str]:
        """Return the segments' names."""
        return [entry.name for entry in self._list(INDEX)]

    def read_segment(self, name: str) -> bytes:
        """Read a segment without checking it."""
        return self._contents(INDEX, name, MAX_SEGMENT_BYTES)

    def write_segment(self, data: bytes, collection: str = "") -> str:
        """Write a segment under a new name that begins with ``collection``, and return the name."""
        name = f"{collection}{collection and '-'}{secrets.token_hex(12)}.segment"
        self._put(INDEX, name, data)
        return name

    def remove_segment(self, name: str) -> None:
        """Remove a segment. A missing segment is not an error."""
        self._remove(INDEX, name)

    def touch(self, instance: str) -> None:
        """Mark the store as open in ``instance``. Call this every minute."""
        self._put(OPEN, instance, b"")

    def forget(self, instance: str) -> None:
        """Mark the store as no longer open in ``instance``."""
        self._remove(OPEN, instance)

    def others(self, instance: str, now: float) -> list[str]:
        """Return the other instances that touched the store in the last ten minutes."""
        recent = sorted(entry.name for entry in self._list(OPEN) if now - entry.written < IN_USE_S)
        return [name for name in recent if name != instance]

    def mark_used(self, collection: str) -> None:
        """Record the current time as the last time a job opened a collection."""
        self._put(USED, collection, b"")

    def used(self) -> dict[str, float]:
        """Return the times at which collections were last opened."""
        return {collection.name: collection.written for collection in self._list(USED)}

    def sweep(self, now: float) -> int:
        """Remove unfinished files that are over a day old, and return their number."""
        self._check_writing()
        folders = {folder: self._list(folder) for folder in (TEMPORARY, OPEN)}
        old = [
            (folder, entry.name)
            for folder, entries in folders.items()
            for entry in entries
            if entry.written < now - ABANDONED_S
        ]
        for folder, name in old:
            self._remove(folder, name)
        return len(old)

    @abc.abstractmethod
    def _list(self, folder: str) -> list[Listed]:
        """List the files in a folder that have valid names."""

    @abc.abstractmethod
    def _contents(self, folder: str, name: str, most: int) -> bytes:
        """Read a file of at most ``most`` bytes."""

    @abc.abstractmethod
    def _put(self, folder: str, name: str, data: bytes) -> None:
        """Write a file atomically, replacing any existing one."""

    @abc.abstractmethod
    def _remove(self, folder: str, name: str) -> None:
        """Remove a file. A missing file is not an error."""

    def _check_writing(self) -> None:
        if self.read_only:
            raise StoreRefusedError(f"{self.address} was opened read-only")
