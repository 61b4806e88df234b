"""The store, opened with the function's settings, and the packs that the function writes to it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from typing import TYPE_CHECKING, Self

from superdl.super_wire.display import clean_text
from superdl.super_wire.errors import StoreBusyError, StoreError, StoreRefusedError
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.record_kinds import Pointer, pack_pointer
from superdl.super_wire.request import Outcome, RequestKind
from superdl.super_wire.store import is_bucket, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.lambda_prefetch.invocation import Invocation
    from superdl.super_wire.store import PackInProgress, PackMeta, Store

_MAX_TROUBLE = 500  # characters
_POINTED_BYTES = 16 * 1024  # bytes of payload; following a pointer costs as much as about 12 KB of a record
_MIN_WAIT_S, _REMEMBERED_S = 0.5, 30.0


def request_store(invocation: Invocation, *, writing: bool) -> Store:
    """Open the request's store. Raises :class:`StoreError` if it fails or is not the one in the settings."""
    address, own = invocation.request.store, invocation.settings.store
    if address != own:
        raise StoreRefusedError(
            f"the request's store is {address[:200]}, but the function's SUPER_STORE "
            f"{f'is {own}' if own else 'is not set'}. Use the same store for the coordinator and "
            "its functions"
        )
    if is_bucket(address):
        from superdl.super_wire.objects.s3_account import settings_of_s3

        return _open_bucket_store(address, os.getpid(), settings_of_s3())
    # Open it for each request, which takes less than decoding an image and detects a removed store.
    return open_store(address, create=False, read_only=not writing)


# Keep it open, because opening sends requests.
@functools.lru_cache(maxsize=4)
def _open_bucket_store(address: str, _process: int, _settings: frozenset[tuple[str, str]]) -> Store:
    """Open an S3 store. The result is cached by address, process and settings."""
    from superdl.super_wire.objects.s3_connection import Patience

    # Few attempts: a result waits for its pack's PUT, and after a failed GET the sample is decoded.
    return open_store(address, create=False, patience=Patience(silence_s=5, attempts=2))


class Pace:
    """The share of time that a process has spent waiting for the store's disk to write its latest packs."""

    def __init__(self) -> None:
        self._waited_s = self._passed_s = 0.0

    def add(self, waited_s: float, passed_s: float) -> None:
        """Add a measurement: ``waited_s`` of ``passed_s`` seconds were spent waiting for the disk."""
        # Older packs have exponentially decreasing weight.
        weight = 0.5 if self._passed_s > _REMEMBERED_S else 1.0
        self._waited_s = weight * self._waited_s + waited_s
        self._passed_s = weight * self._passed_s + passed_s

    def check(self) -> None:
        """Raise :class:`StoreBusyError` if the disk is too slow."""
        waited_s, passed_s = self._waited_s, self._passed_s
        if waited_s > max(_MIN_WAIT_S, passed_s / 2):
            self._waited_s = self._passed_s = 0.0  # a later attempt starts a new measurement
            # Further writes would delay every function, and therefore the readers.
            raise StoreBusyError(
                f"writing packs took {waited_s:.1f} of {passed_s:.1f} s: the store's disk is slower than the "
                "functions. Use a faster disk, or no store"
            )


_pace = Pace()


def error_text(error: Exception) -> str:
    """Format a store error for the result."""
    words = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
    return clean_text(words)[:_MAX_TROUBLE]


class PackSaver:
    """A writer that adds a request's acknowledged records to a pack, and their locations to the result.

    A normal exit from the context commits the pack, and an exception discards it. ``meta`` contains the
    fields that all records share, or is ``None`` to write nothing. With a ``pace``, the pack is dropped if
    the disk is too slow.
    """

    def __init__(
        self,
        invocation: Invocation,
        meta: PackMeta | None,
        *,
        pace: Pace | None = _pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._invocation, self._request, self._meta = invocation, invocation.request, meta
        self._store: Store | None = None
        self._requests_before = 0
        self._pack: PackInProgress | None = None
        self._offsets = [0] * self._request.count
        self._lengths = [0] * self._request.count
        self._pending: dict[int, tuple[bytes, memoryview]] = {}
        self._kept_bytes = 0
        self._writing = threading.Lock()
        # S3 delays no records, because the pack is uploaded after all of them are in the cache.
        self._pace = None if is_bucket(self._request.store) else pace
        self._clock = clock
        self._counted_s = 0.0

    def __enter__(self) -> Self:
        self._counted_s = self._clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()
        self._abandon()
        if self._store is not None:
            self._invocation.store_requests = self._store.requests - self._requests_before

    def take(self, index: int, header: bytes, payload: memoryview) -> bool:
        """Write and keep a record to cache as a pointer. Return whether it was written. Thread-safe."""
        is_kept = self._request.kind is RequestKind.DECODE_TO_POINTERS
        if not is_kept or payload.nbytes < _POINTED_BYTES:
            return False
        with self._writing:
            # Keep the record in memory: if the pack fails, push the record itself.
            if self._kept_bytes + payload.nbytes > self._invocation.settings.push_bytes:
                return False
            if not self._write(index, header, payload):
                return False
            self._pending[index] = header, payload
            self._kept_bytes += payload.nbytes
            return True

    def add(self, index: int, header: bytes, payload: memoryview) -> None:
        """Write an acknowledged record unless it is a tombstone. Thread-safe."""
        if self._invocation.outcomes[index] is Outcome.CACHED:
            with self._writing:
                self._write(index, header, payload)

    def commit(self) -> list[tuple[int, bytes, memoryview]]:
        """Publish the pack. Return the records or pointers to push, as (index, header, payload)."""
        if self._pack is not None:
            with self._reporting():
                # A late result costs more than a pack is worth, unless the records are not pushed yet.
                if self._invocation.expired() and not self._pending:
                    words = "the request expired before its pack was written"
                    raise StoreBusyError(f"{self._request.store}: {words}")
                before_s = self._clock()
                self._invocation.pack = self._pack.commit()
                self._count(before_s)
                self._invocation.offsets, self._invocation.lengths = self._offsets, self._lengths
                self._invocation.store_bytes, self._pack = self._pack.size, None
        pack, records, self._pending = self._invocation.pack, self._pending, {}
        if not pack:
            # There is no pack, so push the records themselves.
            return [(index, *record) for index, record in records.items()]
        pointers = []
        for index in records:
            pointer = Pointer(pack, self._offsets[index], self._lengths[index])
            header = pack_pointer(pointer, self._invocation.sample_id(index))
            pointers.append((index, header, memoryview(b"")))
        return pointers

    def _write(self, index: int, header: bytes, payload: memoryview) -> bool:
        if self._meta is None:
            return False
        with self._reporting():
            if self._pack is None:
                self._store = request_store(self._invocation, writing=True)
                self._requests_before = self._store.requests
                self._pack = self._store.begin_pack(self._meta)
            before_s = self._clock()
            self._offsets[index] = self._pack.add(self._invocation.sample_id(index), header, payload)
            self._lengths[index] = HEADER_BYTES + payload.nbytes
            self._count(before_s)
            if self._pace is not None:
                self._pace.check()
            return True
        return False

    def _count(self, before_s: float) -> None:
        """Add the time waited since ``before_s`` and the total time since the last call to the pace."""
        counted_s, self._counted_s = self._counted_s, self._clock()
        if self._pace is not None:
            self._pace.add(self._counted_s - before_s, self._counted_s - counted_s)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report any failure in the result and stop writing. The samples are cached either way."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # reported; this thread continues
            self._invocation.store_trouble = error_text(error)
            self._meta = None
            self._abandon()

    def _abandon(self) -> None:
        if self._pack is not None:
            self._pack.abandon()
            self._pack = None
