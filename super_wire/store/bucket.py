"""A store under an S3 prefix.

Each pack is written with one PUT. Records are read with ranged GETs, and neighbouring records share a GET.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, cast

from superdl.super_wire.errors import StoreError, StoreFormatError, StoreGoneError, StoreRefusedError
from superdl.super_wire.ids import digest128
from superdl.super_wire.objects import Fault, ObjectError, Span
from superdl.super_wire.store.base import Listed, Store
from superdl.super_wire.store.layout import (
    MARK,
    MAX_MARK_BYTES,
    PACKS,
    checked_name,
    is_name,
    new_mark,
    read_mark,
    system_failure,
)
from superdl.super_wire.store.pack import PackInProgress, new_pack_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from superdl.super_wire.objects import Bucket
    from superdl.super_wire.store.pack import PackMeta

_SPOOLED_BYTES = 2**25  # larger packs are written to a temporary file
_NEAR_BYTES = 2**16  # gaps up to this size are read, because another request takes longer
_FAR_BYTES = 2**22  # larger gaps are never read
_MAX_GET_BYTES = 2**26  # of a GET for several records


class BucketStore(Store):
    """A thread-safe store under an S3 prefix."""

    def __init__(self, bucket: Bucket, prefix: str, *, read_only: bool) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._lock = threading.Lock()
        self.address = f"{bucket.name}/{prefix}".rstrip("/")
        self.id = ""
        self.read_only = read_only
        self.requests = 0

    @classmethod
    def open(cls, bucket: Bucket, prefix: str, *, create: bool, read_only: bool = False) -> BucketStore:
        """Open the store under a prefix without a trailing slash. With ``create``, create it if necessary.

        Raises:
            StoreGoneError: the store does not exist and may not be created, or there is no bucket.
            StoreFormatError: the prefix contains other objects, or a store of a different version.
        """
        store = cls(bucket, prefix, read_only=read_only)
        try:
            mark = store._get(MARK, 0, MAX_MARK_BYTES)
        except (StoreGoneError, StoreRefusedError) as error:
            if not create or read_only:
                raise
            # Without permission to list, S3 refuses to read even a missing object.
            if isinstance(error, StoreRefusedError) and store._first_key(MARK):
                raise
            mark = store._create()
        store.id = read_mark(mark, store.address)
        return store

    def read_many(self, pack: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read (offset, length) spans of a pack, with one request for neighbours. Each may be cut off."""
        contents = [b""] * len(spans)
        for group in _group_neighbours(spans):
            begin = spans[group[0]][0]
            end = max(offset + length for offset, length in (spans[index] for index in group))
            data = memoryview(self._get(_key(PACKS, pack), begin, end - begin))
            for index in group:
                offset, length = spans[index]
                contents[index] = bytes(data[offset - begin : offset - begin + length])
        return contents

    def begin_pack(self, meta: PackMeta) -> PackInProgress:
        """Start a pack. It is invisible until it is committed."""
        self._check_writing()
        name = new_pack_name(meta.collection)
        with self._failures(PACKS):
            file = cast("BinaryIO", tempfile.SpooledTemporaryFile(_SPOOLED_BYTES))  # noqa: SIM115 # closed below

        return PackInProgress(
            name,
            file,
            meta,
            publish=lambda: self._send(_key(PACKS, name), file),
            failures=lambda: self._failures(PACKS),
        )

    def _create(self) -> bytes:
        """Create a store under an empty prefix, and return the content of its ``store.json``."""
        present = self._first_key("")
        if present and present != self._prefix + MARK:
            raise StoreFormatError(
                f"{self.address} contains {present[:80]!r} but no {MARK}, so it is not a store: use an empty "
                "prefix"
            )
        # Concurrent creators derive the same id, because not every server supports If-None-Match.
        self._send(MARK, mark := new_mark(digest128(self.address.encode()).hex()))
        return mark

    def _first_key(self, name: str) -> str:
        """Return the store's first key that begins with ``name``, or an empty string."""
        with self._failures(name):
            self._count()
            pages = self._bucket.pages(self._prefix + name)
            return next((entry.key for page in pages for entry in page.objects), "")

    def _count(self) -> None:
        with self._lock:
            self.requests += 1

    def _get(self, key: str, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        with self._failures(key):
            self._count()
            try:
                data = self._bucket.read(self._prefix + key, span=Span(offset, offset + length))
            except ObjectError as error:
                if error.fault is Fault.CHANGED:  # the pack ends before the span
                    return b""
                raise
        return bytes(data)

    def _contents(self, folder: str, name: str, most: int) -> bytes:
        return self._get(_key(folder, name), 0, most)

    def _put(self, folder: str, name: str, data: bytes) -> None:
        self._send(_key(folder, name), data)

    def _send(self, key: str, body: bytes | BinaryIO) -> None:
        self._check_writing()
        with self._failures(key):
            self._count()
            self._bucket.put(self._prefix + key, body)

    def _remove(self, folder: str, name: str) -> None:
        self._check_writing()
        key = _key(folder, name)
        with self._failures(key):
            self._count()
            self._bucket.delete(self._prefix + key)

    def _list(self, folder: str) -> list[Listed]:
        prefix, files = f"{self._prefix}{folder}/", []
        with self._failures(folder):
            for page in self._bucket.pages(prefix):
                self._count()
                for entry in page.objects:
                    name = entry.key.removeprefix(prefix)
                    if is_name(folder, name):
                        changed_s = datetime.fromisoformat(entry.modified).timestamp()
                        files.append(Listed(name, entry.size, changed_s))
        return files

    @contextlib.contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        address = f"{self.address}/{key}"
        try:
            yield
        except ObjectError as error:
            raise error.of_store(address) from error
        except StoreError:
            raise
        except OSError as error:
            raise system_failure(error)(f"{address}: {error}") from error


def _key(folder: str, name: str) -> str:
    return f"{folder}/{checked_name(folder, name)}"


def _group_neighbours(spans: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield groups of span indices, with one request per group. At most half of its bytes are wasted."""
    group: list[int] = []
    begin = end = wasted = 0
    for index in sorted(range(len(spans)), key=spans.__getitem__):
        offset, length = spans[index]
        gap, total_bytes = max(0, offset - end), max(end, offset + length) - begin
        is_near = gap <= _NEAR_BYTES or (gap <= _FAR_BYTES and wasted + gap <= end - begin - wasted)
        if group and not (is_near and total_bytes <= _MAX_GET_BYTES):
            yield group
            group = []
        if not group:
            begin, end, wasted, gap = offset, offset, 0, 0
        group.append(index)
        end, wasted = max(end, offset + length), wasted + gap
    if group:
        yield group
