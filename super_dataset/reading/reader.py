"""Reading a batch from packs and the cache, with retries, reports and a time limit."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from superdl.super_dataset.reading.batch import Batch, bad_sample_error
from superdl.super_dataset.reading.buffer import BatchBuffer, SeenRecords
from superdl.super_dataset.reading.cache_link import REPORT_TIMEOUT_S, CacheLink
from superdl.super_dataset.reading.packs import OPEN_PACKS, StoreErrorLog, read_placed, read_pointed
from superdl.super_wire.cache import CacheAddress, Command, NodeConnections, exchange
from superdl.super_wire.errors import CacheError, RecordError
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import HEADER_BYTES, LISTING, read_tombstone

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_dataset.memory.batch_memory import Memory
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.cache import Credentials
    from superdl.super_wire.record import Tombstone

_LOG = logging.getLogger("superdl.super_dataset")

_LAST_ATTEMPT_S = 0.25  # before the timeout
# Pauses grow from the first to the longest, with "equal jitter": M. Brooker, "Exponential Backoff and
# Jitter", AWS Architecture Blog, 2015.
_FIRST_PAUSE_S, _PAUSE_GROWTH = 0.005, 1.5
_LONGEST_PAUSE_S = 1.0

_SEEN = SeenRecords()  # shared by all datasets of this process
_JITTER = random.SystemRandom()  # the random module's global state is the user's, and forks share it


Verify: TypeAlias = Literal["auto", "all"]


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings of a reader; see ``SuperDataset``."""

    read_timeout_s: float = 120.0
    verify: Verify = "auto"
    in_flight_bytes: int = 16 * 2**20
    record_bytes: int | None = None  # expected length of a record
    stop_at_bad: bool = True  # raise an error for a batch's first bad sample


class BatchReader:
    """Reads batches by their ``BatchRef`` s. Picklable and thread-safe."""

    def __init__(
        self,
        settings: ReadSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        open_nodes: Callable[[CacheAddress, Credentials], NodeConnections] = NodeConnections,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._open_nodes = open_nodes
        self._store_errors = StoreErrorLog(clock)
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def link(self) -> CacheLink:
        """Return this thread's link. Each process opens its own."""
        link: CacheLink | None = getattr(self._local, "link", None)
        if link is not None and link.pid == os.getpid():
            return link
        if link is not None:  # a fork's copy; closing it does not affect the parent
            link.drop()
        self._local.link = link = CacheLink(self._settings.record_bytes, self._open_nodes)
        return link

    def ping(self, cache: str, *, timeout_s: float) -> None:
        """Ping the cache over separate connections. Raises the same errors as :meth:`CacheLink.connect`."""
        link = CacheLink(None, self._open_nodes)
        try:
            link.connect(cache, timeout_s).ping()
        finally:
            link.drop()

    def read(self, ref: BatchRef, memory: Memory | None = None) -> Batch:
        """Read a batch into ``memory`` and wait until every sample has arrived or is known to be bad.

        Raises:
            BadSampleError: a sample is bad, and ``stop_at_bad`` is set.
            ReadTimeoutError: samples were still missing at the timeout.
            CacheUnreachableError: samples were still missing at the timeout, and the cache was unreachable.
            CacheError: the cache rejected a request.
        """
        link, settings = self.link(), self._settings
        seen = _SEEN if settings.verify == "auto" and CacheAddress.parse(ref.cache).keeps_bytes else None
        expected_bytes = None if link.record_bytes is None else link.record_bytes - HEADER_BYTES
        buffer = BatchBuffer(len(ref), memory=memory, uniform=link.uniform, expected_bytes=expected_bytes)
        began_s = self._clock()
        batch = Batch(
            ref,
            buffer,
            seen,
            clock=self._clock,
            deadline_s=began_s + settings.read_timeout_s,
            in_flight_bytes=settings.in_flight_bytes,
            record_bytes=link.record_bytes,
        )
        if ref.places is not None:
            self._read_straight(batch)
            link.learn(buffer)
        if seen is not None and batch.missing:
            buffer.to_hash = seen.to_hash(ref.sample_ids, ref.epoch)
        # Leave the last attempt time for a reply, so that the cache is not blamed.
        last_attempt_s = min(_LAST_ATTEMPT_S, settings.read_timeout_s / 4)
        while True:
            last_begin_s = batch.deadline_s - last_attempt_s
            self._attempt(link, batch)
            stop = bool(batch.bad) and settings.stop_at_bad
            late = self._clock() >= last_begin_s
            note = self._source_note(ref) if late and batch.missing and not (stop or batch.error) else None
            if note is not None and note.reason == LISTING:  # the sampler gives up if the listing stalls
                late, batch.attempts = False, 0
                batch.deadline_s = self._clock() + settings.read_timeout_s
                last_begin_s = batch.deadline_s - last_attempt_s
            # Report misses at every attempt, since a report may be lost.
            link.report(batch, settings.read_timeout_s, done=stop or late or not batch.missing)
            if stop:
                raise bad_sample_error(ref, batch.bad)
            if not batch.missing:
                return batch
            if late:
                raise batch.timeout_error(self._clock() - began_s, note.message if note else "")
            now_s = self._clock()
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * _PAUSE_GROWTH ** min(batch.attempts - 1, 32))
            self._sleep(max(0.0, min(pause_s * _JITTER.uniform(0.5, 1), last_begin_s - now_s)))
            batch.wait_s += self._clock() - now_s

    def _source_note(self, ref: BatchRef) -> Tombstone | None:
        """Return the coordinator's note about a source that provides no samples, if there is one."""
        # Use a separate link, since replies to reports may be in flight on the reader's own.
        key, link = cache_key(ref.dataset_id), CacheLink(None, self._open_nodes)
        try:
            nodes = link.connect(ref.cache, REPORT_TIMEOUT_S)
            (reply,) = exchange(nodes, [Command.of(key, b"GET", key)], timeout_s=REPORT_TIMEOUT_S)
            return read_tombstone(reply) if isinstance(reply, bytes) else None
        except (CacheError, RecordError):  # the error about to be raised is more important
            return None
        finally:
            link.drop()

    def _read_straight(self, batch: Batch) -> None:
        """Read records from packs, using the cache's pointers if there are any, else the plan's locations."""
        ref, buffer, pointers, began_s = batch.ref, batch.buffer, batch.pointers, self._clock()
        if pointers:
            buffer.to_hash[[*pointers]] = True  # as for all records from packs
            done, failed = read_pointed(ref.store, pointers, buffer, OPEN_PACKS)
        else:
            done, failed = read_placed(ref, buffer, OPEN_PACKS)
        received_s = self._clock()
        failed = batch.sort_pointed(done, failed) if pointers else failed | batch.sort_straight(done)
        if failed:
            self._store_errors.add(ref, failed)
        batch.read_s += received_s - began_s
        batch.check_s += self._clock() - received_s

    def _attempt(self, link: CacheLink, batch: Batch) -> None:
        """Request all missing samples, and sort the replies."""
        batch.attempts += 1
        # If another sample's record arrives, replies and requests are out of sync, so close the
        # connection and retry once. A record stored under a wrong key arrives again and counts as corrupt.
        for _ in range(2 if batch.missing else 0):
            began_s = self._clock()
            link.request(batch)
            received_s = self._clock()
            batch.read_s += received_s - began_s
            batch.sort()
            batch.check_s += self._clock() - received_s
            if batch.pointers:
                self._read_straight(batch)
            link.learn(batch.buffer)
            if not batch.astray:
                return
            if not link.warned_astray:
                link.warned_astray = True
                _LOG.warning(
                    "the cache at %s sent a reply to another request: %s", batch.ref.cache, batch.astray
                )
            link.drop()
