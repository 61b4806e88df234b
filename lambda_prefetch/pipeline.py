"""The pipeline for a request's samples, with threads that fetch, decode and push them concurrently.

Not counting the interpreter, custom steps and sockets, the pipeline uses at most

    max(fetch_bytes, largest object) + max(push_bytes, largest record)
        + decoders x (largest object + 16 bytes x pixels)

where ``pixels`` is the pixel count of the largest image. A decoder may need four copies of the image at 4
bytes per pixel. A row of a Parquet file counts as its row group, compressed and uncompressed. A pack for a
store in S3 takes another 32 MiB, and a pack with pointers in the cache takes at most ``push_bytes``. The
decoded parts of a sample with fields stay in memory until its other parts are ready.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from superdl.lambda_prefetch.fetching import Fetchers
from superdl.lambda_prefetch.members import content_of
from superdl.lambda_prefetch.push import Pusher
from superdl.lambda_prefetch.settings import decoding_threads
from superdl.lambda_prefetch.sources import SampleFailedError, fatal
from superdl.lambda_prefetch.store import PackSaver
from superdl.super_wire.cache import MAX_BULK_BYTES
from superdl.super_wire.ids import MAIN_FIELD
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import HEADER_BYTES, Tombstone, pack_tombstone
from superdl.super_wire.record_kinds import pack_sample
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.lambda_prefetch.custom_steps import Arrays
    from superdl.lambda_prefetch.fetching import Arrived
    from superdl.lambda_prefetch.image_steps import Program
    from superdl.lambda_prefetch.invocation import Invocation
    from superdl.super_wire.objects import Bucket
    from superdl.super_wire.request import PrefetchRequest
    from superdl.super_wire.store import PackMeta

_T = TypeVar("_T")


def produce(invocation: Invocation, program: Program, bucket: Bucket, meta: PackMeta | None = None) -> None:
    """Fetch, decode and push a request's samples, and write them to a pack unless ``meta`` is ``None``."""
    request, settings = invocation.request, invocation.settings
    count = min(decoding_threads(settings.decoders), request.count)
    with PackSaver(invocation, meta) as saver:
        with (
            Pusher(request.cache, settings, saver.add) as pusher,
            Fetchers(invocation, bucket, pusher) as fetchers,
        ):
            _Decoders(invocation, program, fetchers, pusher, saver).run(count, settings.decode_timeout_s)
            invocation.source_requests = fetchers.requests
        results = pusher.results
        # Push pointers only after their pack is in the store.
        if (records := saver.commit()) and not pusher.broken:
            with Pusher(request.cache, settings) as pusher:
                for index, header, payload in records:
                    pusher.put(index, cache_key(invocation.sample_id(index)), header, payload)
            results += pusher.results
    invocation.settle(results)


class _Decoders:
    """Threads that decode samples and pass them to the pusher. Each sample has a timeout."""

    def __init__(
        self,
        invocation: Invocation,
        program: Program,
        fetchers: Fetchers,
        pusher: Pusher,
        saver: PackSaver,
    ) -> None:
        self._invocation, self._request, self._program = invocation, invocation.request, program
        self._fetchers, self._pusher, self._saver = fetchers, pusher, saver
        self._threads: list[threading.Thread] = []
        self._running: dict[threading.Thread, tuple[float, int]] = {}  # start time and sample
        self._claiming = threading.Lock()  # a sample is either abandoned or finished
        self._errors: list[BaseException] = []
        self._parts = _Parts(invocation.request) if invocation.request.fields else None

    def run(self, count: int, timeout_s: float) -> None:
        """Decode in ``count`` threads, abandoning samples that take longer than ``timeout_s``."""
        for number in range(count):
            thread = threading.Thread(target=self._run, name=f"super-decode-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        try:
            self._watch(timeout_s)
        except BaseException:
            self._fetchers.stop()
            self._watch(timeout_s)  # threads end after their current sample
            raise
        if self._errors:
            # Raise an error that is not specific to a sample.
            raise self._errors[0]

    def _watch(self, timeout_s: float) -> None:
        while living := [thread for thread in self._threads if thread.is_alive()]:
            now = time.monotonic()
            since = [begun for begun, _ in list(self._running.values())]
            # Wait at most until the oldest running sample is overdue.
            living[0].join(max(0.0, min(since, default=now) + timeout_s - now))
            self._give_up_overdue(timeout_s)

    def _give_up_overdue(self, timeout_s: float) -> None:
        begun_before = time.monotonic() - timeout_s
        with self._claiming:
            overdue = [item for item in self._running.items() if item[1][0] <= begun_before]
            for thread, _ in overdue:
                del self._running[thread]
                self._threads.remove(thread)
        for _, (_, index) in overdue:
            self._invocation.fail(
                index,
                Outcome.TIMED_OUT,
                f"decoding took longer than {timeout_s:g} s and was abandoned. If the machine is slow, "
                "raise SUPER_DECODE_TIMEOUT_S for the functions; otherwise replace or remove the object",
            )
            # The thread ends only with its process.
            self._invocation.stuck = True
            self._fetchers.stop()

    def _run(self) -> None:
        try:
            while (arrived := self._fetchers.next()) is not None:
                try:
                    if arrived.failure is None and self._invocation.expired():
                        message = "the request expired before this sample was decoded"
                        arrived.failure = SampleFailedError(Outcome.EXPIRED, message)
                    self._finish(arrived)
                finally:
                    self._fetchers.release(arrived)
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            self._errors.append(error)
            self._fetchers.stop()

    def _finish(self, arrived: Arrived) -> None:
        """Decode and push a sample, or record its failure."""
        index = arrived.index % self._request.count
        begun_ns = time.perf_counter_ns()
        with self._claiming:
            self._invocation.fetch_us[index] += arrived.fetch_us
            self._invocation.source_bytes[index] += arrived.read_bytes
            self._running[threading.current_thread()] = (time.monotonic(), index)
        result = _attempt(partial(self._make, arrived))
        decode_us = (time.perf_counter_ns() - begun_ns) // 1000
        if self._parts is not None:
            with self._claiming:
                given_up = threading.current_thread() not in self._running
                joined = None if given_up else self._parts.join(arrived.index, result, decode_us)
                if joined is None:
                    self._running.pop(threading.current_thread(), None)
                    return
                result, decode_us = joined
        if isinstance(result, SampleFailedError):
            self._fail(index, result)
            return
        packed = _attempt(partial(self._packed, result, index, decode_us))
        if isinstance(packed, SampleFailedError):
            self._fail(index, packed)
        elif self._claim():
            self._invocation.decode_us[index] = decode_us
            self._invocation.outcomes[index] = Outcome.CACHED  # unless the cache refuses it
            if not self._saver.take(index, *packed):
                self._put(index, *packed)

    def _packed(self, result: Arrays, index: int, decode_us: int) -> tuple[bytes, memoryview]:
        sample_id, fetch_us = self._invocation.sample_id(index), self._invocation.fetch_us[index]
        header, payload = pack_sample(result, sample_id, fetch_us=fetch_us, decode_us=decode_us)
        if HEADER_BYTES + payload.nbytes > MAX_BULK_BYTES:
            message = f"the record of {payload.nbytes} bytes exceeds the cache's limit of {MAX_BULK_BYTES}"
            raise fatal("too_large", message)
        return header, payload

    def _fail(self, index: int, failure: SampleFailedError) -> None:
        if not self._claim():
            return
        message = self._invocation.fail(index, failure.outcome, failure.message)
        if failure.reason:
            name = self._request.name_of(index)
            tombstone = Tombstone(key=name, reason=failure.reason, message=message, permanent=True)
            self._put(index, pack_tombstone(tombstone, self._invocation.sample_id(index)), memoryview(b""))

    def _claim(self) -> bool:
        """Stop this thread's timeout. Returns ``False`` if its sample has already been abandoned."""
        with self._claiming:
            return self._running.pop(threading.current_thread(), None) is not None

    def _put(self, index: int, header: bytes, payload: memoryview) -> None:
        self._pusher.put(index, cache_key(self._invocation.sample_id(index)), header, payload)

    def _make(self, arrived: Arrived) -> Arrays:
        if arrived.failure is not None:
            raise arrived.failure
        data = arrived.data
        if isinstance(data, memoryview):
            data = content_of(self._request, arrived.index, data)
        part, index = divmod(arrived.index, self._request.count)
        sizes = self._parts.sizes[index] if self._parts else None
        return self._program.make(data, self._request.seeding_name(index), part, sizes)


def _attempt(make: Callable[[], _T]) -> _T | SampleFailedError:
    try:
        return make()
    except SampleFailedError as failure:
        return failure.without_traceback()
    except MemoryError:
        # A function with more memory may decode the bytes.
        return SampleFailedError(Outcome.SOURCE_ERROR, "the function has too little memory to decode it")
    except Exception as error:  # noqa: BLE001  # reported; other samples continue
        message = f"could not be produced: {type(error).__name__}: {error}"
        return SampleFailedError(Outcome.STEP_ERROR, message)


class _Parts:
    """Decoded or failed parts of samples, kept until the last part of each sample arrives."""

    def __init__(self, request: PrefetchRequest) -> None:
        self._request = request
        self._names = (MAIN_FIELD, *request.fields)
        self._waiting: dict[int, dict[int, Arrays | SampleFailedError]] = {}
        self._decode_us: Counter[int] = Counter()
        # For each sample, the image sizes that crops of its parts must share; see Program.
        self.sizes: list[dict[str, tuple[int, int]]] = [{} for _ in range(request.count)]

    def join(
        self, position: int, result: Arrays | SampleFailedError, decode_us: int
    ) -> tuple[Arrays | SampleFailedError, int] | None:
        """Add the part at ``position``. After the last part, return the sample and its decoding time."""
        part, index = divmod(position, self._request.count)
        parts = self._waiting.setdefault(index, {})
        parts[part] = result
        self._decode_us[index] += decode_us
        if len(parts) < len(self._names):
            return None
        del self._waiting[index]
        decode_us = self._decode_us.pop(index)
        arrays: dict[str, Any] = {}
        for number, name in enumerate(self._names):
            result = parts[number]
            if isinstance(result, SampleFailedError):
                named = self._request.named_field(index + number * self._request.count)
                # A sample fails with its first failed part.
                return SampleFailedError(
                    result.outcome, f"{named}: {result.message}", reason=result.reason
                ), decode_us
            arrays[name] = result
        return arrays, decode_us
