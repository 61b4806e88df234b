"""The way of a request's samples: fetched by threads, decoded by the caller, pushed by a thread, all at once.

Objects are decoded in the order in which they arrive. Whatever happens to one sample becomes its outcome and
leaves the others alone. All threads end with the invocation; connections stay for the next one.

The memory used beside the interpreter's own is at most

    max(fetch_bytes, largest object) + max(push_bytes, largest record) + 12 bytes x pixels of one image

and each term is bounded, by the settings or by the request's limits.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from lambda_prefetch.budget import BudgetClosedError, ByteBudget
from lambda_prefetch.failures import SampleFailedError, spoiled
from lambda_prefetch.push import Pusher
from super_wire.keys import cache_key
from super_wire.record import HEADER_BYTES, Tombstone, pack, pack_tombstone
from super_wire.request import Outcome

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from lambda_prefetch.settings import Settings
    from lambda_prefetch.sources import Source
    from lambda_prefetch.transforms import Program
    from super_wire.request import PrefetchRequest

__all__ = ["MAX_RECORD_BYTES", "Ledger", "produce"]

MAX_RECORD_BYTES = 512 * 2**20
"""The largest value that Redis takes."""

_NO_PAYLOAD = memoryview(b"")


class Ledger:
    """What became of every sample of a request, column by column, as the result tells it."""

    def __init__(self, request: PrefetchRequest) -> None:
        count = len(request.keys)
        self._names = [f"{request.bucket}/{key}" for key in request.keys]
        self.outcomes = [Outcome.EXPIRED] * count
        self.fetch_us = [0] * count
        self.decode_us = [0] * count
        self.push_us = [0] * count
        self.source_bytes = [0] * count
        self.record_bytes = [0] * count
        self.messages: dict[str, str] = {}

    def explain(self, index: int, why: str) -> str:
        """Note why a sample is not cached; the sentence for people names it."""
        message = f"{self._names[index]}: {why}"
        self.messages[str(index)] = message
        return message


def produce(
    request: PrefetchRequest, program: Program, source: Source, settings: Settings, *, expires_at: float
) -> Ledger:
    """Fetch, decode and push the samples of a request.

    Args:
        request: which samples.
        program: the recipe, made ready.
        source: the request's bucket, opened.
        settings: bounds and credentials.
        expires_at: Unix time in seconds; samples not begun by then are not begun, and
            what was fetched by then is not decoded any more.

    Returns:
        The outcome of every sample. Cached means that the cache acknowledged it.
    """
    ledger = Ledger(request)
    with Pusher(request.cache, settings) as pusher:
        fetchers = _Fetchers(request, source, settings, pusher, expires_at)
        with fetchers:
            for _ in request.keys:
                arrived = fetchers.next()
                try:
                    if arrived.failure is None and time.time() >= expires_at:
                        why = "the request expired before it was decoded"
                        arrived.failure = SampleFailedError(Outcome.EXPIRED, why)
                    _finish(arrived, request, program, pusher, ledger)
                finally:
                    fetchers.release(arrived)
    for pushed in pusher.results:
        ledger.push_us[pushed.index] = pushed.push_us
        if pushed.refusal:
            ledger.outcomes[pushed.index] = Outcome.CACHE_ERROR
            ledger.explain(pushed.index, f"the cache did not take it: {pushed.refusal}")
        else:
            ledger.record_bytes[pushed.index] = pushed.record_bytes
    return ledger


@dataclass(slots=True)
class _Arrived:
    """One sample, fetched or failed."""

    index: int
    data: bytes | bytearray = b""
    failure: SampleFailedError | None = None
    fetch_us: int = 0
    reserved_bytes: int | None = None


def _finish(
    arrived: _Arrived, request: PrefetchRequest, program: Program, pusher: Pusher, ledger: Ledger
) -> None:
    """Decode what arrived and hand it to the pusher, or note why not."""
    index, key = arrived.index, request.keys[arrived.index]
    ledger.fetch_us[index] = arrived.fetch_us
    ledger.source_bytes[index] = len(arrived.data)
    name = cache_key(bytes.fromhex(request.ids[index]))
    begun_ns = time.perf_counter_ns()
    try:
        array = _make(arrived, key, program)
        ledger.decode_us[index] = (time.perf_counter_ns() - begun_ns) // 1000
        header, payload = pack(array, fetch_us=arrived.fetch_us, decode_us=ledger.decode_us[index])
        ledger.outcomes[index] = Outcome.CACHED  # unless the cache says no
        pusher.put(index, name, header, payload)
    except SampleFailedError as failure:
        message = ledger.explain(index, failure.why)
        ledger.outcomes[index] = failure.outcome
        if failure.reason:
            tombstone = Tombstone(key=key, reason=failure.reason, message=message, permanent=True)
            pusher.put(index, name, pack_tombstone(tombstone), _NO_PAYLOAD)
    except MemoryError:
        # Not the fault of these bytes: a function with more memory may well decode them.
        ledger.explain(index, "the function has not enough memory to decode it")
        ledger.outcomes[index] = Outcome.SOURCE_ERROR
    except Exception as error:  # noqa: BLE001  # told in the result; the other samples go on
        ledger.explain(index, f"it could not be made: {type(error).__name__}: {error}")
        ledger.outcomes[index] = Outcome.STEP_ERROR


def _make(arrived: _Arrived, key: str, program: Program) -> NDArray[Any]:
    """The sample's array, or the failure that came before it or here."""
    if arrived.failure is not None:
        raise arrived.failure
    array = program.make(arrived.data, key)
    if array.nbytes + HEADER_BYTES > MAX_RECORD_BYTES:
        why = f"its record of {array.nbytes} bytes is over the {MAX_RECORD_BYTES} that a cache takes"
        raise spoiled("too_large", why)
    return array


class _Fetchers:
    """Threads that read the request's objects ahead of the decoder, within a budget of bytes."""

    def __init__(
        self, request: PrefetchRequest, source: Source, settings: Settings, pusher: Pusher, expires_at: float
    ) -> None:
        self._request = request
        self._source = source
        self._pusher = pusher
        self._expires_at = expires_at
        self._budget = ByteBudget(settings.fetch_bytes)
        self._arrived: queue.SimpleQueue[_Arrived] = queue.SimpleQueue()  # bounded by the request
        self._indices = iter(range(len(request.keys)))
        self._lock = threading.Lock()
        self._stopping = False
        count = min(settings.fetch_threads or source.threads, len(request.keys))
        self._threads = [
            threading.Thread(target=self._run, name=f"super-fetch-{number}", daemon=True)
            for number in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._budget.close()
        for thread in self._threads:
            thread.join()  # reads have deadlines of their own

    def next(self) -> _Arrived:
        """The sample that arrives next; every sample of the request does, fetched or failed."""
        return self._arrived.get()

    def release(self, arrived: _Arrived) -> None:
        """Give back the room of a sample that was decoded."""
        arrived.data = b""
        if arrived.reserved_bytes is not None:
            self._budget.release(arrived.reserved_bytes)

    def _run(self) -> None:
        while (index := self._next_index()) is not None:
            arrived = _Arrived(index)
            try:
                self._fetch(arrived)
            except BudgetClosedError:
                return
            except SampleFailedError as failure:
                arrived.failure = failure
            except Exception as error:  # noqa: BLE001  # told in the result; a thread that died silently would stop the invocation
                why = f"it could not be read: {type(error).__name__}: {error}"
                arrived.failure = SampleFailedError(Outcome.SOURCE_ERROR, why)
            self._arrived.put(arrived)

    def _next_index(self) -> int | None:
        with self._lock:
            return None if self._stopping else next(self._indices, None)

    def _fetch(self, arrived: _Arrived) -> None:
        if time.time() >= self._expires_at:
            raise SampleFailedError(Outcome.EXPIRED, "the request expired before it was begun")
        if self._pusher.broken:
            why = f"not tried, since the cache takes nothing: {self._pusher.broken}"
            raise SampleFailedError(Outcome.CACHE_ERROR, why)
        waited_ns = 0

        def reserve(size_bytes: int) -> None:
            nonlocal waited_ns
            asked_ns = time.perf_counter_ns()
            self._budget.acquire(size_bytes)
            arrived.reserved_bytes = size_bytes
            waited_ns += time.perf_counter_ns() - asked_ns

        begun_ns = time.perf_counter_ns()
        arrived.data = self._source.read(
            self._request.keys[arrived.index],
            self._request.versions[arrived.index],
            limit_bytes=self._request.limits.object_bytes,
            reserve=reserve,
        )
        arrived.fetch_us = (time.perf_counter_ns() - begun_ns - waited_ns) // 1000
