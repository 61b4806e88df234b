"""The pusher: a thread that sends finished records to the cache while the next samples are decoded.

Records that queue up during one exchange go out with the next: batches grow as the cache slows down, and a
fast cache gets each record at once. A record counts as cached only once its SET is acknowledged. A broken
connection is reopened once per invocation, since a warm one may be older than the cache it led to; after that
the rest of the invocation fails fast, in a cluster only the records for that node.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from superdl.lambda_prefetch.caches import keep_cache, take_cache
from superdl.super_wire.cache import Command, ErrorReply, exchange
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.super_wire.cache import NodeConnections, Reply

__all__ = ["MIN_PIECE_BYTES", "BudgetClosedError", "ByteBudget", "Pushed", "Pusher"]

MIN_PIECE_BYTES = 4096
"""Minimum counted size of a piece: about Python's overhead for keeping it."""

_TIMEOUT_S = 15.0  # of an exchange; of the second one too, where a connection broke
_MAX_RECORDS_PER_EXCHANGE = 64
_BUNDLE_RECORDS = 16
_BUNDLE_BYTES = 256 * 1024  # below the smallest budget that the settings allow


class BudgetClosedError(Exception):
    """The invocation is ending: no more waiting for room."""


class ByteBudget:
    """A bound in bytes on the pieces that wait between two stages of the pipeline.

    Each piece counts at least ``MIN_PIECE_BYTES``, so that many tiny ones are bounded as well. A piece larger
    than the whole capacity is admitted alone, once all others have left. Nothing overtakes a
    piece that waits for room.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._closed = False
        self._turn = threading.Lock()
        self._changed = threading.Condition()

    def acquire(self, size_bytes: int) -> None:
        """Wait for room; :class:`BudgetClosedError` once :meth:`close` was called."""
        counted_bytes = max(size_bytes, MIN_PIECE_BYTES)
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._closed or self._fits(counted_bytes))
            if self._closed:
                raise BudgetClosedError
            self._used_bytes += counted_bytes

    def release(self, *sizes_bytes: int) -> None:
        """Return the room of pieces of these sizes."""
        counted_bytes = sum([max(size_bytes, MIN_PIECE_BYTES) for size_bytes in sizes_bytes])
        with self._changed:
            self._used_bytes -= counted_bytes
            self._changed.notify()

    def close(self) -> None:
        """Refuse all current and future waiters."""
        with self._changed:
            self._closed = True
            self._changed.notify()  # at most one waits: _turn holds back the others

    def _fits(self, size_bytes: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + size_bytes <= self._capacity_bytes


@dataclass(slots=True)
class Pushed:
    """The result of pushing one record; ``refusal`` is empty if it was acknowledged, else the reason."""

    index: int
    record_bytes: int
    push_us: int
    refusal: str


@dataclass(slots=True)
class _Record:
    index: int
    key: bytes
    header: bytes
    payload: memoryview
    size_bytes: int

    def command(self) -> Command:
        """Return the SET that stores it; the payload is not copied."""
        # Encoded here, since the payload must stay a separate buffer.
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(self.key), self.key, self.size_bytes)
        return Command(self.key, (head + self.header, self.payload, b"\r\n"))


class Pusher:
    """A thread that stores records in the cache; any thread may hand them over.

    At most ``settings.push_bytes`` wait. Use it as a context: leaving it normally waits until every record
    was acknowledged or refused, and then :attr:`results` has one entry for each; leaving it by an exception
    drops the waiting ones. ``stored`` is called on its thread for each record that the cache acknowledged,
    with its sample's place in the request, header and payload. It must not raise.
    """

    def __init__(
        self,
        cache: str,
        settings: FunctionSettings,
        stored: Callable[[int, bytes, memoryview], None] | None = None,
    ) -> None:
        self.results: list[Pushed] = []
        self._stored = stored
        self._url = cache
        self._settings = settings
        self._budget = ByteBudget(settings.push_bytes)
        self._putting = threading.Lock()
        self._bundle: list[_Record] = []
        self._bundle_bytes = 0
        self._waiting: queue.SimpleQueue[list[_Record]] = queue.SimpleQueue()  # bounded by the budget
        self._cache: NodeConnections | None = None
        self._broken = ""
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="super-push", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._abandoned = kind is not None
        self._hand_over()
        # An empty bundle ends the thread.
        self._waiting.put([])
        self._thread.join()  # every exchange has a deadline, so this ends

    @property
    def broken(self) -> str:
        """Why the cache takes no more records in this invocation; empty while it does."""
        return self._broken

    def put(self, index: int, key: bytes, header: bytes, payload: memoryview) -> None:
        """Hand over a record; wait while too many bytes are waiting.

        Small records are bundled: waking the thread costs as much as a small image.
        """
        size_bytes = len(header) + payload.nbytes
        record = _Record(index, key, header, payload, size_bytes)
        with self._putting:
            # Hand over the bundle before a large record waits for its room in the budget.
            if self._bundle_bytes + size_bytes > _BUNDLE_BYTES:
                self._hand_over()
            self._budget.acquire(size_bytes)
            self._bundle.append(record)
            self._bundle_bytes += size_bytes
            if len(self._bundle) == _BUNDLE_RECORDS or self._bundle_bytes > _BUNDLE_BYTES:
                self._hand_over()

    def _hand_over(self) -> None:
        if self._bundle:
            self._waiting.put(self._bundle)
        self._bundle, self._bundle_bytes = [], 0

    def _run(self) -> None:
        more = True
        while more:
            records, more = self._next_batch()
            if records and not self._abandoned:
                self._store(records)
            self._budget.release(*[record.size_bytes for record in records])
        if self._cache is not None and self._cache.all_broken:
            self._cache.close()
        elif self._cache is not None:
            keep_cache(self._url, self._cache)

    def _next_batch(self) -> tuple[list[_Record], bool]:
        """Return the waiting records, at least one, and whether more may follow."""
        records: list[_Record] = []
        bundle = self._waiting.get()
        while bundle:
            records += bundle
            if len(records) >= _MAX_RECORDS_PER_EXCHANGE:
                return records, True
            try:
                bundle = self._waiting.get_nowait()
            except queue.Empty:
                return records, True
        return records, False

    def _store(self, records: list[_Record]) -> None:
        begun_ns = time.perf_counter_ns()
        try:
            refusals = self._exchange(records)
        except Exception as error:  # noqa: BLE001  # reported; else the invocation would hang
            self._broken = str(error) or type(error).__name__
            refusals = [self._broken] * len(records)
        push_us = (time.perf_counter_ns() - begun_ns) // (1000 * len(records))
        for record, refusal in zip(records, refusals, strict=True):
            self.results.append(Pushed(record.index, record.size_bytes, push_us, refusal))
            if self._stored is not None and not refusal:
                self._stored(record.index, record.header, record.payload)

    def _exchange(self, records: list[_Record]) -> list[str]:
        if self._broken:
            return [self._broken] * len(records)
        if self._cache is None:
            self._cache = take_cache(self._url, self._settings)
        commands = [record.command() for record in records]
        answers = exchange(self._cache, commands, timeout_s=_TIMEOUT_S)
        self._broken = self._cache.all_broken
        return list(map(_refusal, answers))


def _refusal(answer: Reply | CacheError) -> str:
    """Return the reason why a record was not stored; empty if it was acknowledged."""
    if isinstance(answer, ErrorReply):
        return answer.text
    if isinstance(answer, CacheError):
        return str(answer)
    return "" if answer == b"OK" else f"the cache answered {answer!r:.60}, which is neither yes nor no"
