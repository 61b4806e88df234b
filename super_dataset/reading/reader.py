"""Reading one batch: from packs where possible, then from the cache, following pointers, with retries for
missing samples, reports, and a time limit.

Waiting is bounded by time and by attempts. Only missing samples are requested again, and every attempt with
misses sends a read report, since a report may be lost. The link to the cache and its state belong to one
thread of one process.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import random
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.super_dataset.reading.buffer import BatchBuffer, ReplyKind
from superdl.super_dataset.reading.cache_link import open_link
from superdl.super_dataset.reading.checks import SeenRecords
from superdl.super_dataset.reading.gather import Wanted, encode_gets
from superdl.super_dataset.reading.packs import (
    OPEN_PACKS,
    StoreTroubleLog,
    read_placed,
    read_pointed,
)
from superdl.super_dataset.reading.progress import BatchProgress, bad_sample_error
from superdl.super_wire.cache import CacheAddress, Command, Credentials, encode_command, exchange
from superdl.super_wire.errors import CacheError, CacheUnreachableError, RecordError
from superdl.super_wire.keys import cache_keys, report_stream
from superdl.super_wire.record import HEADER_BYTES, LISTING, read_tombstone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from superdl.super_dataset.memory import Memory
    from superdl.super_dataset.reading.cache_link import CacheLink
    from superdl.super_dataset.reading.checks import Verify
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.record import Tombstone

__all__ = ["Backoff", "BatchReader", "ReadSettings"]

_LOG = logging.getLogger("superdl.super_dataset")

_LAST_LOOK_S = 0.25
_FIRST_S = 0.005
_LONGEST_S = 1.0
_REPORT_TIMEOUT_S = 1.0  # for a connection needed only for a report
_SHUN_S = 30.0  # after such a connection failed
_LEAST_SHARE = 0.5  # of the nominal delay; the rest is jitter

_SEEN = SeenRecords()  # shared by all datasets of the process


@functools.lru_cache(maxsize=64)
def _keeps_bytes(cache: str) -> bool:
    return CacheAddress.parse(cache).keeps_bytes


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings of a reader; see ``SuperDataset``.

    ``record_bytes`` is the expected length of a record, if known. ``stop_at_bad``: give up a batch at its
    first bad sample.
    """

    read_timeout_s: float = 120.0
    verify: Verify = "auto"
    in_flight_bytes: int = 16 * 2**20
    record_bytes: int | None = None
    stop_at_bad: bool = True


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff from 5 ms to 1 s, jittered downwards by up to a half.

    That is "equal jitter" of M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """

    total_s: float
    """Bound on the whole wait, in seconds."""

    @property
    def attempts(self) -> int:
        """Bound on attempts: time runs out first, unless the clock stands still."""
        doublings = math.ceil(math.log2(_LONGEST_S / _FIRST_S))
        return 2 + doublings + math.ceil(self.total_s / (_LONGEST_S * _LEAST_SHARE))

    def delay_s(self, attempt: int, jitter: float) -> float:
        """Return the seconds to wait after failure ``attempt``, from 1, by a ``jitter`` in [0, 1)."""
        nominal_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt - 1, 32))
        return nominal_s * (_LEAST_SHARE + (1 - _LEAST_SHARE) * jitter)


class ReaderState:
    """A reader's state in one thread of one process: the link to the cache, and what is known about it.

    ``record_bytes`` is the expected length of a record; ``uniform``: the last batch had one size;
    ``told_astray``: it was logged that another sample's record came. Until ``silent_until_s`` no connection
    is opened for a report alone.
    """

    def __init__(self, record_bytes: int | None, open_link: Callable[..., CacheLink]) -> None:
        self.pid = os.getpid()
        # Not the random module's global state, which is the user's. Jitter guards no secret.
        self.random = random.Random()  # noqa: S311
        self.record_bytes = record_bytes
        self.uniform = True
        self.told_astray = False
        self.silent_until_s = -math.inf
        self._open_link = open_link
        self._link: CacheLink | None = None
        self._cache = ""

    def link(self, cache: str, *, timeout_s: float) -> CacheLink:
        """Return the open link to ``cache``, or a new one; raises as :func:`open_link` does."""
        if self._link is not None and self._cache != cache:
            self.drop()
        if self._link is None:
            credentials = Credentials.from_environment(os.environ)
            self._link = self._open_link(CacheAddress.parse(cache), credentials, timeout_s=timeout_s)
            self._cache = cache
        return self._link

    def learn(self, buffer: BatchBuffer) -> None:
        """Remember the size of records for the next batch, and whether they are uniform."""
        sizes = buffer.record_bytes[buffer.replies == ReplyKind.RECORD]
        if len(sizes):
            first = int(sizes[0])
            alike = bool((sizes == first).all())
            self.record_bytes = first if alike else int(np.median(sizes))
            self.uniform = alike or len(buffer.own) <= len(sizes) // 2

    @property
    def connected(self) -> bool:
        """Return whether a connection is open, as far as this side knows."""
        return self._link is not None and self._link.connected

    def drop(self) -> None:
        """Close the link, if there is one."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


class BatchReader:
    """A reader of batches by their ``BatchRef`` s. It pickles, and is thread-safe."""

    def __init__(
        self,
        settings: ReadSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        open_link: Callable[..., CacheLink] = open_link,
    ) -> None:
        self._settings = settings
        self._backoff = Backoff(settings.read_timeout_s)
        self._clock = clock
        self._sleep = sleep
        self._open_link = open_link
        self._store_trouble = StoreTroubleLog(clock)
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def state(self) -> ReaderState:
        """Return this reader's state in this thread, reset in a fork."""
        state: ReaderState | None = getattr(self._local, "state", None)
        if state is not None and state.pid == os.getpid():
            return state
        if state is not None:  # the parent's copy: closing it does not affect the parent
            state.drop()
        self._local.state = state = ReaderState(self._settings.record_bytes, self._open_link)
        return state

    def ping(self, cache: str, *, timeout_s: float) -> None:
        """Ping the cache once over separate connections; see ``SuperDataset.ping_cache``."""
        state = ReaderState(None, self._open_link)
        try:
            state.link(cache, timeout_s=timeout_s).nodes.ping()
        finally:
            state.drop()

    def read(self, ref: BatchRef, memory: Memory | None = None) -> BatchProgress:
        """Read a batch: wait until every sample is in ``memory`` (default: fresh) or known to be bad.

        Raises:
            BadSampleError: a sample is bad and the settings say to stop there.
            ReadTimeoutError: samples were still missing when the time or the attempts ran out.
            CacheUnreachableError: the same, and the cache was unreachable.
            CacheError: the cache refused.
        """
        state = self.state()
        seen = _SEEN if self._settings.verify == "auto" and _keeps_bytes(ref.cache) else None
        buffer = BatchBuffer(
            len(ref),
            memory=memory,
            uniform=state.uniform,
            expected_bytes=None if state.record_bytes is None else state.record_bytes - HEADER_BYTES,
        )
        read = BatchProgress(ref=ref, buffer=buffer, seen=seen, missing=list(range(len(ref))))
        began_s = self._clock()
        if ref.places is not None:
            self._read_straight(state, read)
        if seen is not None and read.missing:
            buffer.to_hash = seen.to_hash(ref.sample_ids, ref.epoch)
        wanted = Wanted(
            requests=encode_gets(ref.sample_ids) if read.missing else (),
            sample_ids=ref.sample_ids,
            buffer=buffer,
            in_flight_bytes=self._settings.in_flight_bytes,
            record_bytes=state.record_bytes,
            deadline_s=began_s + self._settings.read_timeout_s,
            clock=self._clock,
        )
        # Leave the last attempt time for a reply, or we would blame the cache.
        last_look_s = min(_LAST_LOOK_S, self._settings.read_timeout_s / 4)
        last_begin_s = wanted.deadline_s - last_look_s
        while True:
            self._attempt(state, read, wanted)
            stop = bool(read.bad) and self._settings.stop_at_bad
            late = self._clock() >= last_begin_s or read.attempts >= self._backoff.attempts
            note = self._note_of_source(ref) if late and read.missing and not (stop or read.trouble) else None
            if note is not None and note.reason == LISTING:  # the sampler gives up if it stalls
                late, read.attempts = False, 0
                wanted = replace(wanted, deadline_s=self._clock() + self._settings.read_timeout_s)
                last_begin_s = wanted.deadline_s - last_look_s
            self._report(state, read, done=stop or late or not read.missing)
            if stop:
                raise bad_sample_error(ref, read.bad)
            if not read.missing:
                return read
            if late:
                raise read.timeout_error(self._clock() - began_s, note.message if note else "")
            self._pause(state, read, last_begin_s)

    def _note_of_source(self, ref: BatchRef) -> Tombstone | None:
        """Return why the source gives no samples, as the coordinator noted it."""
        (key,) = cache_keys(ref.dataset_id)
        state = ReaderState(None, self._open_link)
        try:
            nodes = state.link(ref.cache, timeout_s=_REPORT_TIMEOUT_S).nodes
            (reply,) = exchange(nodes, [Command.of(key, b"GET", key)], timeout_s=_REPORT_TIMEOUT_S)
            return read_tombstone(reply) if isinstance(reply, bytes) else None
        except (CacheError, RecordError):  # the error about to be raised matters more
            return None
        finally:
            state.drop()

    def _read_straight(self, state: ReaderState, read: BatchProgress) -> None:
        """Read records that have places; failures are logged, and requested from the cache."""
        began_s = self._clock()
        came, failed = read_placed(read.ref, read.buffer, OPEN_PACKS)
        received_s = self._clock()
        read.read_s += received_s - began_s
        failed |= read.sort_straight(came)
        if failed:
            self._store_trouble.add(read.ref, failed)
        state.learn(read.buffer)
        read.check_s += self._clock() - received_s

    def _attempt(self, state: ReaderState, read: BatchProgress, wanted: Wanted) -> None:
        """Request all missing samples, and sort the replies.

        If another sample's record came, replies and requests on that connection are out of step: it is
        closed, and the samples are requested once more. A record stored under a wrong key comes back again;
        it then counts as corrupt.
        """
        read.attempts += 1
        for _ in range(2 if read.missing else 0):
            self._look(state, read, wanted)
            if not read.astray:
                return
            if not state.told_astray:
                state.told_astray = True
                _LOG.warning("the cache at %s answered what was not asked: %s", read.ref.cache, read.astray)
            state.drop()

    def _look(self, state: ReaderState, read: BatchProgress, wanted: Wanted) -> None:
        """Request all missing samples once, and sort the replies."""
        replies = read.buffer.replies
        replies[read.missing] = ReplyKind.NONE
        began_s = self._clock()
        # An idle connection may be dead, because the cache closes such or was restarted: then another
        # attempt follows at once.
        requested: Sequence[int] = read.missing
        for _ in range(2 if state.connected else 1):
            read.trouble = self._gather(state, read, wanted, requested)
            if read.trouble is None or self._clock() >= wanted.deadline_s:
                break
            requested = [offset for offset in requested if replies[offset] == ReplyKind.NONE]
            if not requested:  # the connection failed after all replies had come
                break
        received_s = self._clock()
        read.read_s += received_s - began_s
        read.sort()
        read.check_s += self._clock() - received_s
        if read.pointers:
            self._follow(read)
        state.learn(read.buffer)

    def _follow(self, read: BatchProgress) -> None:
        """Follow the cache's pointers; failures are logged, and left to the coordinator."""
        began_s = self._clock()
        came, failed = read_pointed(read.ref.store, read.pointers, read.buffer, OPEN_PACKS)
        received_s = self._clock()
        read.read_s += received_s - began_s
        failed = read.sort_pointed(came, failed)
        if failed:
            self._store_trouble.add(read.ref, failed)
        read.check_s += self._clock() - received_s

    def _gather(
        self, state: ReaderState, read: BatchProgress, wanted: Wanted, asked: Sequence[int]
    ) -> CacheUnreachableError | None:
        left_s = wanted.deadline_s - self._clock()
        try:
            link = state.link(read.ref.cache, timeout_s=left_s)
            trouble = link.gather(wanted, asked, left_s=left_s)
            read.out_of_memory = link.out_of_memory
            return trouble
        except CacheUnreachableError as error:
            state.drop()
            return error
        except BaseException:  # also on Ctrl-C: replies are under way that will never be read
            state.drop()
            raise

    def _report(self, state: ReaderState, read: BatchProgress, *, done: bool) -> None:
        """Send a read report without waiting for the reply. Losing it is harmless."""
        all_straight, timeout_s = read.straight == len(read.ref), self._settings.read_timeout_s
        if not state.connected and not read.astray:
            if not all_straight or self._clock() < state.silent_until_s:
                return
            timeout_s = min(timeout_s, _REPORT_TIMEOUT_S)
        job = read.ref.job
        command = encode_command(*read.report(done=done).command(job))
        try:
            link = state.link(read.ref.cache, timeout_s=timeout_s)
            link.report(report_stream(job), command)
        except CacheError as error:
            state.drop()
            state.silent_until_s = self._clock() + _SHUN_S
            _LOG.debug("a read report was lost: %s", error)
        except BaseException:
            state.drop()
            raise

    def _pause(self, state: ReaderState, read: BatchProgress, until_s: float) -> None:
        now_s = self._clock()
        delay_s = self._backoff.delay_s(read.attempts, state.random.random())
        self._sleep(max(0.0, min(delay_s, until_s - now_s)))
        read.wait_s += self._clock() - now_s
