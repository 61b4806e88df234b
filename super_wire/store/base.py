"""What a store is, whichever kind: what may be asked of it, and a pack that is being written.

A store keeps packs and tells of them; what stays and what goes is for others to decide. Each operation is
tried once (a client of S3 has bounded retries of its own) and fails by a
:class:`~superdl.super_wire.errors.StoreError`.
"""

from __future__ import annotations

import abc
import contextlib
import math
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

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
    new_segment_name,
)
from superdl.super_wire.store.pack import PackWriter, read_pack_index
from superdl.super_wire.store.segment import read_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from superdl.super_wire.record import Bytes
    from superdl.super_wire.store.pack import PackIndex, PackMeta
    from superdl.super_wire.store.segment import Segment

__all__ = ["Listed", "PackInProgress", "Store"]


class Listed(NamedTuple):
    """A file or object of a folder: its name there, its length, and when it was written (unix time)."""

    name: str
    bytes: int
    written: float


class Store(abc.ABC):
    """A directory or an S3 prefix with packs in it. Times are unix times, names are those that it gave.

    Methods that write raise ``StoreRefusedError`` where the store was opened read-only.

    Attributes:
        address: the directory's absolute real path, or ``s3://bucket/prefix``.
        id: 32 hexadecimal digits: the same for everybody who has this store open, however they reach it.
        read_only: whether it was opened for reading only.
        requests: how many requests were sent so far; a directory sends none.
    """

    address: str
    id: str
    read_only: bool
    requests: int = 0

    def packs(self) -> dict[str, int]:
        """All packs, by name, and how long each is."""
        return {found.name: found.bytes for found in self._list(PACKS)}

    def read(self, pack: str, offset: int, length: int) -> bytes:
        """Bytes of a pack; fewer where it ends before: what is read is to be checked."""
        return self.read_many(pack, [(offset, length)])[0]

    @abc.abstractmethod
    def read_many(self, pack: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several (offset, length) of one pack; S3 is asked once for neighbours. Fewer bytes as by read."""

    def read_index(self, pack: str, size: int) -> PackIndex:
        """The index of a pack that has ``size`` bytes."""
        with self._naming(PACKS, pack):
            return read_pack_index(lambda offset, length: self.read(pack, offset, length), size)

    @abc.abstractmethod
    def begin_pack(self, meta: PackMeta) -> PackInProgress:
        """Begin to write a pack; nobody sees it before it is committed."""

    def remove(self, pack: str) -> None:
        """Remove a pack; it is no fault if it is gone."""
        self._remove(PACKS, pack)

    def segments(self) -> list[str]:
        """Names of all segments."""
        return [found.name for found in self._list(INDEX)]

    def read_segment(self, name: str) -> Segment:
        """One segment."""
        with self._naming(INDEX, name):
            return read_segment(self._contents(INDEX, name, MAX_SEGMENT_BYTES))

    def write_segment(self, data: bytes, collection: str = "") -> str:
        """Keep a segment's bytes under a new name, which begins with the collection where there is one."""
        name = new_segment_name(collection)
        self._put(INDEX, name, data)
        return name

    def remove_segment(self, name: str) -> None:
        """Remove a segment; it is no fault if it is gone."""
        self._remove(INDEX, name)

    def touch(self, instance: str) -> None:
        """Say that ``instance`` has the store open; to be said each minute."""
        self._put(OPEN, instance, b"")

    def forget(self, instance: str) -> None:
        """Say that ``instance`` has it open no more."""
        self._remove(OPEN, instance)

    def others(self, instance: str, now: float) -> list[str]:
        """Who else has it open: touched it within ten minutes."""
        touched = sorted(self._list(OPEN))
        return [found.name for found in touched if found.name != instance and now - found.written < IN_USE_S]

    def mark_used(self, collection: str) -> None:
        """Note that a job opens a collection now."""
        self._put(USED, collection, b"")

    def used(self) -> dict[str, float]:
        """When each collection was opened last, as far as that is noted."""
        return {found.name: found.written for found in self._list(USED)}

    def sweep(self, now: float) -> int:
        """Remove what writers that died a day ago left; how many files that were."""
        return self._remove_all((TEMPORARY, OPEN), now - ABANDONED_S)

    def clear_marks(self) -> None:
        """Remove all that is neither a pack nor of the index: who uses the store, and what is unfinished."""
        self._remove_all((USED, OPEN, TEMPORARY), math.inf)

    @abc.abstractmethod
    def _list(self, folder: str) -> list[Listed]:
        """All in a folder that has a name as the store gives them there."""

    @abc.abstractmethod
    def _contents(self, folder: str, name: str, most: int) -> bytes:
        """A whole file, which has at most so many bytes."""

    @abc.abstractmethod
    def _put(self, folder: str, name: str, data: bytes) -> None:
        """Let a file appear whole, in place of one that was there."""

    @abc.abstractmethod
    def _remove(self, folder: str, name: str) -> None:
        """Remove a file; it is no fault if it is gone."""

    def _check_writing(self) -> None:
        if self.read_only:
            raise StoreRefusedError(f"{self.address} was opened for reading only")

    def _remove_all(self, folders: Sequence[str], before: float) -> int:
        self._check_writing()
        old = [
            (folder, found.name)
            for folder in folders
            for found in self._list(folder)
            if found.written < before
        ]
        for folder, name in old:
            self._remove(folder, name)
        return len(old)

    @contextlib.contextmanager
    def _naming(self, folder: str, name: str) -> Iterator[None]:
        """Say in errors of form which file has it."""
        try:
            yield
        except StoreFormatError as error:
            raise StoreFormatError(f"{self.address}/{folder}/{name}: {error}") from error


class PackInProgress:
    """A pack that is being written. It appears in the store by :meth:`commit`, whole, or not at all.

    As a context it abandons what was not committed. Made by :meth:`Store.begin_pack`.
    """

    def __init__(
        self,
        name: str,
        file: BinaryIO,
        meta: PackMeta,
        *,
        publish: Callable[[BinaryIO, int], None],
        discard: Callable[[BinaryIO], None],
        failures: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._name = name
        self._file = file
        self._publish = publish
        self._discard = discard
        self._failures = failures
        self._open = True
        self.size = 0
        """Bytes of the whole pack, once it is committed."""
        try:
            with failures():
                self._writer = PackWriter(file, meta)
        except BaseException:
            self.abandon()
            raise

    @property
    def count(self) -> int:
        """How many records were added."""
        return self._writer.count

    def add(self, sample_id: bytes, header: bytes, payload: Bytes) -> int:
        """Write a record; where in the pack it begins.

        Raises:
            StoreError: it cannot be written, and the pack is abandoned.
            ValueError: it is no record that packs hold, or the pack was committed or abandoned.
        """
        self._check_open()
        try:
            return self._writer.add(sample_id, header, payload)
        except OSError:
            self.abandon()
            with self._failures():  # entering it for each record would take longer than writing a small one
                raise

    def commit(self) -> str:
        """Let the pack appear; its name.

        Raises:
            StoreError: it does not appear, unless it was S3's answer alone that got lost.
            ValueError: the pack was committed or abandoned.
        """
        self._check_open()
        try:
            with self._failures():
                self.size = self._writer.finish()
                self._publish(self._file, self.size)
        except BaseException:
            self.abandon()
            raise
        self._open = False
        return self._name

    def abandon(self) -> None:
        """Leave nothing of the pack; of no effect once it is committed."""
        if self._open:
            self._open = False
            self._discard(self._file)

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"the pack {self._name} was committed or abandoned")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()
