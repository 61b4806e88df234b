"""The engine, which carries out the core's actions and turns their results into events."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.cache.cache import A_POINTER
from superdl.coordinator.cache.info import CacheLoad
from superdl.coordinator.core import (
    OUTCOME_ORDER,
    Action,
    Audit,
    Audited,
    Core,
    Drop,
    Event,
    FailureKind,
    Prefetch,
    ReadBack,
    RecordReadBack,
    RequestDone,
    RequestFailed,
    Tick,
    Warn,
    WriteTombstones,
)
from superdl.coordinator.executors.base import ExecutorError, check_present
from superdl.coordinator.executors.messages import request_for
from superdl.coordinator.server.log_handler import warn_of_samples
from superdl.coordinator.store.keeper import StoreKeeper
from superdl.coordinator.store.opening import StoreChoice
from superdl.super_wire.cancelling import HeldTasks
from superdl.super_wire.display import counted
from superdl.super_wire.errors import (
    CacheError,
    CacheUnreachableError,
    ConfigError,
    RecordError,
    RecordVersionError,
)
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.record import UNAVAILABLE, Tombstone, unpack
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from superdl.coordinator.cache.cache import Cache
    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.catalog.datasets import DatasetRegistry
    from superdl.coordinator.core import CoreSettings, SetKey
    from superdl.coordinator.executors.base import Executor
    from superdl.super_wire.request import PrefetchResult

_log = logging.getLogger(__name__)

_OUTCOME_NUMBERS: dict[str, int] = {outcome: number for number, outcome in enumerate(OUTCOME_ORDER)}
_ANSWER_GRACE_S = 10.0
_ANSWER_MARGIN_S = 2.0  # a function reserves this for returning its result
_RETRY_S = 0.5
_SAVING_S = 2.0  # at shutdown, for writes to the store
_TICK_LEAST_S = 0.001
_SENDS_PER_TURN = 16
_NOTED_S = 60.0  # longer than the time between two attempts


class Engine:
    """The core and the tasks that carry out its actions. Create it on the event loop that it will use.

    A task fails only because of a bug, and ``failed`` then receives the exception. The core's state is wrong
    from then on, so the coordinator should restart.

    Args:
        executors: the executors, in the same order as in the settings.
        datasets: the registry in which the core's datasets are open.
        function_memory_mb: memory of a function, used to compute GB-seconds if a result does not report it.
    """

    def __init__(
        self,
        settings: CoreSettings,
        cache: Cache,
        executors: Sequence[Executor],
        datasets: DatasetRegistry,
        keeper: StoreKeeper | None = None,
        *,
        function_memory_mb: int = 1769,
    ) -> None:
        # Everything runs on one event loop, so the core needs no lock.
        self.core = Core(settings)
        self._memory_gb = function_memory_mb / 1024
        self._cache = cache
        self._executors = executors
        self.datasets = datasets
        self.keeper = keeper or StoreKeeper(StoreChoice(""), datasets, 0, read_only=False)
        self._tasks = HeldTasks("engine", self._fail)
        self._saving: set[asyncio.Task[None]] = set()
        self._dropping: asyncio.Task[None] | None = None
        self._to_send: deque[tuple[Prefetch, asyncio.Task[None] | None]] = deque()
        self.cache_load = CacheLoad()
        # Why the cache does not respond, and since when; empty while it does. Set by upkeep.
        self.cache_trouble = ""
        self._run = uuid.uuid4().hex[:8]
        self._timer: asyncio.TimerHandle | None = None
        self._tick_at_s = 0.0
        self._closed = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def cache_address(self) -> str:
        """Return the cache's address for readers."""
        return self._cache.address

    @property
    def busy(self) -> bool:
        """Return whether any action is in progress."""
        return bool(self._tasks or self._to_send)

    @staticmethod
    def now_s() -> float:
        """Return the time in seconds on the core's clock."""
        return time.monotonic()

    def post(self, event: Event) -> None:
        """Pass an event to the core and start the resulting actions."""
        self.post_all((event,))

    def post_all(self, events: Iterable[Event]) -> None:
        """Pass events that arrived together to the core and start the resulting actions."""
        if self._closed:
            return
        now = time.monotonic()
        try:
            for action in self.core.handle_all(events, now):
                self._begin(action)
        except Exception as error:
            self._fail(error)
            raise
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        """Schedule the core's next tick. An early tick does no harm."""
        wake_at_s = max(self.core.wake_at_s, now + _TICK_LEAST_S)
        if self._timer is not None:
            if now < self._tick_at_s <= wake_at_s:
                return
            self._timer.cancel()
        self._tick_at_s = wake_at_s
        self._timer = asyncio.get_running_loop().call_later(wake_at_s - now, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(Tick())

    async def close(self) -> None:
        """Abandon pending work, but give writes to the store a limited time to finish."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        # The next coordinator finds out what was not sent.
        self._to_send.clear()
        if self._saving:
            await asyncio.wait(self._saving, timeout=_SAVING_S)
        await self._tasks.cancel()
        if not self.failed.done():
            self.failed.cancel()

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _begin(self, action: Action) -> None:
        match action:
            case Prefetch():
                if not self._to_send:
                    asyncio.get_running_loop().call_soon(self._send_some)
                self._to_send.append((action, self._dropping))
            case Audit():
                self._tasks.start(self._audit(action))
            case Drop():
                ids = self._ids(action.samples, action.indices)
                self._dropping = self._tasks.start(self._drop(ids, self._dropping))
            case WriteTombstones():
                self._tasks.start(self._bury(action))
            case ReadBack():
                self._tasks.start(self._read_back(action))
            case Warn():
                _log.warning("%s", action.message)

    def _send_some(self) -> None:
        # Leave the rest to later iterations of the loop: building hundreds of requests would delay replies.
        for _ in range(min(_SENDS_PER_TURN, len(self._to_send))):
            action, dropping = self._to_send.popleft()
            task = self._tasks.start(self._prefetch(action, dropping))
            if action.kind.writes_pack and self.keeper.takes_packs:
                self._saving.add(task)
                task.add_done_callback(self._saving.discard)
        if self._to_send:
            asyncio.get_running_loop().call_soon(self._send_some)

    def _ids(self, key: SetKey, indices: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
        return self.datasets[key.dataset].ids(indices, max(key.epoch, 0))

    async def _prefetch(self, action: Prefetch, dropping: asyncio.Task[None] | None) -> None:
        if dropping is not None:
            await asyncio.wait([dropping])  # a late UNLINK would delete a new record
        dataset, executor = self.datasets[action.samples.dataset], self._executors[action.executor]
        keeper, kind = self.keeper, action.kind
        words = "request %s for %d samples to %s"
        _log.debug(words, action.request_id, action.indices.size, executor.name, extra={"job": action.job})
        if kind.writes_pack and not keeper.takes_packs:
            if kind is RequestKind.SAVE:
                reason = keeper.unwritten or "it is freeing space"
                self.post(RequestFailed(action.request_id, FailureKind.UNAVAILABLE, reason, refused=True))
                return
            kind = RequestKind.DECODE
        at = dataset.content, action.indices
        request = request_for(
            dataset,
            action.indices,
            epoch=max(action.samples.epoch, 0),
            request_id=f"{action.request_id}-{self._run}",
            cache=self._cache.address,
            expires_in_s=action.expires_in_s,
            kind=kind,
            store="" if kind is RequestKind.DECODE else keeper.address,
            places=keeper.places.of(*at, with_gone=True) if kind is RequestKind.RESTORE else None,
            golden=keeper.fingerprint if kind is RequestKind.SAVE else "",
        )
        try:
            check_present(executor)
            grace_s = min(action.expires_in_s + _ANSWER_MARGIN_S, _ANSWER_GRACE_S)
            result = await executor.invoke(request, timeout_s=action.expires_in_s + grace_s)
            done = self._done(action, result, dataset)
        except (ExecutorError, ConfigError) as error:
            failure = getattr(error, "kind", FailureKind.RAISED)
            about = {"cause": f"{executor.name}: {failure.value}", "executor": executor.name}
            about |= {"request": request.request_id, "job": action.job, "dataset": dataset.listing.source}
            facts = request.request_id, executor.name, failure.value, error
            _log.warning("request %s to %s failed (%s): %s", *facts, extra=about)
            billed = getattr(error, "ran_s", 0.0) * self._memory_gb, getattr(error, "refused", False)
            self.post(RequestFailed(action.request_id, failure, str(error), *billed))
        else:
            self.post(done)
            self._report_unavailable(action, result, dataset)

    def _report_unavailable(self, action: Prefetch, result: PrefetchResult, dataset: Dataset) -> None:
        """Warn about samples that cannot currently be read from the source, and write a note for readers."""
        offsets = [offset for offset, outcome in enumerate(result.outcomes) if outcome == Outcome.UNAVAILABLE]
        if not offsets:
            return
        for_s = self.core.unavailable_for_s(action.samples)
        why = f"{result.messages.get(str(offsets[0]), '')} (for {for_s:.0f} s)"
        source, count = dataset.listing.source, counted(len(offsets), "sample")
        about = {"cause": "source unavailable", "dataset": source}
        _log.warning("%s of %s cannot be read now: %s", count, source, why, extra=about)
        self.note(self.datasets.ids_of(dataset.content), Tombstone(source, UNAVAILABLE, why, permanent=False))

    def note(self, dataset_ids: bytes, note: Tombstone) -> None:
        """Write a note to the cache that tells readers of these datasets why samples do not arrive."""

        async def write() -> None:
            with suppress(CacheError):  # upkeep reports it
                await self._cache.write_note(dataset_ids, note, _NOTED_S)

        self._tasks.start(write())

    def _done(self, action: Prefetch, result: PrefetchResult, dataset: Dataset) -> RequestDone:
        memory_gb = result.memory_mb / 1024 or self._memory_gb
        bad = [offset for offset, outcome in enumerate(result.outcomes) if outcome == Outcome.TOMBSTONE]
        if bad:
            (first,) = dataset.catalog.names_at(action.indices[bad[:1]])
            problem = f"can never be decoded: {result.messages.get(str(bad[0]), '')}"
            warn_of_samples(dataset.listing.source, "bad sample", first.decode(), len(bad), problem)
        pack, stored = self.keeper.process_result(dataset, action.indices, result)
        is_remote = not dataset.catalog.bucket.startswith("file://")
        return RequestDone(
            request_id=action.request_id,
            outcomes=np.array([_OUTCOME_NUMBERS[outcome] for outcome in result.outcomes], dtype=np.uint8),
            record_bytes=np.array(result.record_bytes, dtype=np.int64),
            source_bytes=result.source_bytes,
            fetch_us=result.fetch_us,
            decode_us=result.decode_us,
            push_us=result.push_us,
            messages={int(offset): message for offset, message in result.messages.items()},
            duration_us=result.duration_us,
            gb_s=(result.billed_us or result.duration_us) / 1e6 * memory_gb,
            source_requests=result.source_requests if is_remote else 0,
            cold_start=result.cold_start,
            pack=pack,
            stored=stored,
            pointers=None if stored is None else stored & (np.array(result.record_bytes) < result.lengths),
            store_trouble=result.store_trouble,
            store_requests=result.store_requests,
            store_bytes=result.store_bytes,
        )

    async def _audit(self, action: Audit) -> None:
        ids, silent = self._ids(action.samples, action.indices), False
        while True:  # the core waits, and readers have timeouts
            try:
                look = self._cache.read_back if action.whole else self._cache.audit
                lengths = await look(ids)
            except CacheError as error:
                if not silent:
                    audited = counted(action.indices.size, "sample")
                    _log.warning("the audit of %s is waiting for the cache: %s", audited, error)
                silent = True
                await asyncio.sleep(_RETRY_S)
            else:
                pointers = lengths >= A_POINTER
                self.post(Audited(action.audit_id, lengths - A_POINTER * pointers, pointers))
                return

    async def _read_back(self, action: ReadBack) -> None:
        sample_id = self._ids(action.samples, np.array([action.index], dtype=np.int64))
        try:
            record = await self._cache.record(sample_id)
        except CacheError:  # another record is read back later, and upkeep reports the error
            return
        if record is None:
            return
        fault = ""
        try:
            unpack(record, sample_id=sample_id)
        except RecordVersionError:  # a pointer, tombstone or other version is no fault
            pass
        except RecordError as error:
            fault = str(error)
        self.post(RecordReadBack(action.samples, action.index, action.executor, fault))

    async def _drop(self, ids: bytes, dropping: asyncio.Task[None] | None) -> None:
        if dropping is not None:
            await asyncio.wait([dropping])  # keep the order of drops
        while True:  # the core counts their memory as free
            try:
                await self._cache.drop(ids)
            except CacheUnreachableError:
                await asyncio.sleep(_RETRY_S)
            except CacheError as error:
                _log.warning("%s could not be dropped: %s", counted(len(ids) // ID_BYTES, "sample"), error)
                return
            else:
                return

    async def _bury(self, action: WriteTombstones) -> None:
        dataset = self.datasets[action.samples.dataset]
        tombstones = [
            Tombstone(key.decode(), action.reason, dataset.listing.dated(message), permanent=False)
            for key, message in zip(dataset.catalog.names_at(action.indices), action.messages, strict=True)
        ]
        first = tombstones[0]
        problem = f"could not be produced: {first.message}"
        warn_of_samples(dataset.listing.source, "not produced", first.key, len(tombstones), problem)
        try:
            await self._cache.write_tombstones(
                self._ids(action.samples, action.indices), tombstones, action.expires_in_s
            )
        except CacheError as error:  # readers report the samples again, and the core retries
            _log.warning("%s could not be written: %s", counted(len(tombstones), "tombstone"), error)
