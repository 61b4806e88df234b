"""The way of a request's samples: fetched by threads, decoded by threads, pushed by a thread, all at once.

The caller is one of the decoders, and the only one unless the function has several cores (see
:mod:`lambda_prefetch.cores`) and a sample takes long enough: Pillow decodes without the interpreter's lock,
but threads that decode small images mostly wait for it. Objects are decoded in the order in which they
arrive. Whatever happens to one sample becomes its outcome and leaves the others alone. All threads end with
the invocation; connections stay for the next one.

The memory used beside the interpreter's own is at most

    max(fetch_bytes, largest object) + max(push_bytes, largest record)
        + decoders x (largest object + 16 bytes x pixels)

where ``pixels`` are those of the largest image; the settings and the request's limits bound each term. A
decoder may hold the object once more, an image, what a step makes of it, and others in between, at 4 bytes a
pixel (WebP's decoder keeps two); the record that it waits to hand over is smaller. Custom steps come on top,
with what they allocate, and what the system keeps of answers that wait to be read: the first window of each
connection.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from lambda_prefetch.cores import decoding_threads
from lambda_prefetch.failures import SampleFailedError, spoiled
from lambda_prefetch.fetching import Fetchers
from lambda_prefetch.push import Pusher
from super_wire.keys import cache_key
from super_wire.record import HEADER_BYTES, Tombstone, pack, pack_tombstone
from super_wire.request import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lambda_prefetch.fetching import Arrived
    from lambda_prefetch.settings import Settings
    from lambda_prefetch.sources import Source
    from lambda_prefetch.transforms import Program
    from super_wire.request import PrefetchRequest

__all__ = ["MAX_RECORD_BYTES", "Ledger", "produce"]

MAX_RECORD_BYTES = 512 * 2**20
"""The largest value that Redis takes."""

_WORTH_A_THREAD_US = 500
"""A sample that took as long makes the other decoders start; at 60 microseconds they gain nothing."""

_STORED = frozenset({Outcome.CACHED, Outcome.TOMBSTONE})
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
    count = min(decoding_threads(settings.decoders), len(request.keys))
    with (
        Pusher(request.cache, settings) as pusher,
        Fetchers(request, source, settings, pusher, expires_at) as fetchers,
    ):
        _Decoders(request, program, fetchers, pusher, ledger, expires_at).run(count)
    answered = {pushed.index for pushed in pusher.results}
    for index, outcome in enumerate(ledger.outcomes):
        if outcome in _STORED and index not in answered:  # never cached without the cache's word
            ledger.outcomes[index] = Outcome.CACHE_ERROR
            ledger.explain(index, "it was not stored")
    for pushed in pusher.results:
        ledger.push_us[pushed.index] = pushed.push_us
        if pushed.refusal:
            ledger.outcomes[pushed.index] = Outcome.CACHE_ERROR
            ledger.explain(pushed.index, f"the cache did not take it: {pushed.refusal}")
        else:
            ledger.record_bytes[pushed.index] = pushed.record_bytes
    return ledger


class _Decoders:
    """Threads that decode what arrives and hand it to the pusher; the caller's is the first of them."""

    def __init__(
        self,
        request: PrefetchRequest,
        program: Program,
        fetchers: Fetchers,
        pusher: Pusher,
        ledger: Ledger,
        expires_at: float,
    ) -> None:
        self._request = request
        self._program = program
        self._fetchers = fetchers
        self._pusher = pusher
        self._putting = threading.Lock()  # the pusher takes records from one thread at a time
        self._ledger = ledger
        self._expires_at = expires_at
        self._longest_us = 0
        self._errors: list[BaseException] = []

    def run(self, count: int) -> None:
        """Decode everything with up to ``count`` threads; an error that is no sample's is raised here."""
        others: list[threading.Thread] = []
        try:
            while self._decode_next():
                if not others and self._longest_us >= _WORTH_A_THREAD_US:
                    others = self._start(count - 1)
        except BaseException:
            self._fetchers.stop()
            raise
        finally:
            for thread in others:
                thread.join()  # each ends with the sample that it has
        if self._errors:
            raise self._errors[0]

    def _start(self, count: int) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._run_beside, name=f"super-decode-{number}", daemon=True)
            for number in range(1, count + 1)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _run_beside(self) -> None:
        try:
            while self._decode_next():
                pass
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            self._errors.append(error)

    def _decode_next(self) -> bool:
        """Decode what arrives next; false if nothing does any more."""
        arrived = self._fetchers.next()
        if arrived is None:
            return False
        try:
            if arrived.failure is None and time.time() >= self._expires_at:
                why = "the request expired before it was decoded"
                arrived.failure = SampleFailedError(Outcome.EXPIRED, why)
            self._finish(arrived)
        finally:
            self._fetchers.release(arrived)
        return True

    def _finish(self, arrived: Arrived) -> None:
        """Decode what arrived and hand it to the pusher, or note why not."""
        index, key = arrived.index, self._request.keys[arrived.index]
        self._ledger.fetch_us[index] = arrived.fetch_us
        self._ledger.source_bytes[index] = len(arrived.data)
        sample_id = bytes.fromhex(self._request.ids[index])
        name = cache_key(sample_id)
        begun_ns = time.perf_counter_ns()
        try:
            array = self._make(arrived, key)
            decode_us = (time.perf_counter_ns() - begun_ns) // 1000
            self._ledger.decode_us[index] = decode_us
            self._longest_us = max(self._longest_us, decode_us)
            header, payload = pack(array, sample_id, fetch_us=arrived.fetch_us, decode_us=decode_us)
            self._ledger.outcomes[index] = Outcome.CACHED  # unless the cache says no
            self._put(index, name, header, payload)
        except SampleFailedError as failure:
            message = self._ledger.explain(index, failure.why)
            self._ledger.outcomes[index] = failure.outcome
            if failure.reason:
                tombstone = Tombstone(key=key, reason=failure.reason, message=message, permanent=True)
                self._put(index, name, pack_tombstone(tombstone, sample_id), _NO_PAYLOAD)
        except MemoryError:
            # Not the fault of these bytes: a function with more memory may well decode them.
            self._ledger.explain(index, "the function has not enough memory to decode it")
            self._ledger.outcomes[index] = Outcome.SOURCE_ERROR
        except Exception as error:  # noqa: BLE001  # told in the result; the other samples go on
            self._ledger.explain(index, f"it could not be made: {type(error).__name__}: {error}")
            self._ledger.outcomes[index] = Outcome.STEP_ERROR

    def _put(self, index: int, key: bytes, header: bytes, payload: memoryview) -> None:
        with self._putting:
            self._pusher.put(index, key, header, payload)

    def _make(self, arrived: Arrived, key: str) -> NDArray[Any]:
        """The sample's array, or the failure that came before it or here."""
        if arrived.failure is not None:
            raise arrived.failure
        array = self._program.make(arrived.data, key)
        if array.nbytes + HEADER_BYTES > MAX_RECORD_BYTES:
            why = f"its record of {array.nbytes} bytes is over the {MAX_RECORD_BYTES} that a cache takes"
            raise spoiled("too_large", why)
        return array
