"""Maintain the coordinator's store. While it does not respond, samples are decoded instead of read."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import PacksLost, RecordsStored
from superdl.coordinator.store import index
from superdl.coordinator.store.locations import Joined, Places, moved_warning
from superdl.coordinator.store.opening import filesystem_of, is_gone, open_own
from superdl.coordinator.store.space import Room
from superdl.super_wire.cancelling import CallingThreads, HeldTasks, cancel_and_wait
from superdl.super_wire.errors import StoreError, StoreFormatError, StoreGoneError, StoreRefusedError
from superdl.super_wire.request import Outcome
from superdl.super_wire.store import is_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.catalog.datasets import DatasetRegistry
    from superdl.coordinator.core import Event
    from superdl.coordinator.store.opening import StoreChoice
    from superdl.super_wire.request import PrefetchResult
    from superdl.super_wire.store import Store

_log = logging.getLogger(__name__)

_OPENING_S, _LOOK_S, _CLOSE_S = 10.0, 5.0, 2.0
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_CHECK_S, _REOPEN_S = 5.0, 30.0
_OPENED_S = 60.0  # keep a dataset's locations this long for the job that is about to open it
_THREADS = 4


class StoreKeeper:
    """Maintains at most one store, on one event loop. Every wait has a time limit.

    Args:
        choice: the store, or the reason for having none.
        datasets: the registry, including the datasets that jobs have open.
        max_bytes: maximum size of the store, or 0 for a quarter of its used plus free bytes.
        read_only: never write to the store.
    """

    def __init__(
        self, choice: StoreChoice, datasets: DatasetRegistry, max_bytes: int, *, read_only: bool
    ) -> None:
        self.address, self._reason, self._by_default = choice.address, choice.reason, choice.by_default
        self.places = Places()
        self.room = Room(choice.address, max_bytes)
        # The store's current problem, for display. Empty if there is none.
        self.problem = ""
        self._datasets = datasets
        self._read_only = read_only
        self.fingerprint = ""
        self._post: Callable[[Event], None] = lambda _: None
        self._threads = CallingThreads(_THREADS, "super-store")
        self._store: Store | None = None
        self._opening: asyncio.Task[Store] | None = None
        self._filesystem: int | None = None
        self._instance = secrets.token_hex(16)
        self._known: dict[bytes, index.Known] = {}
        self._looks: dict[bytes, asyncio.Task[None]] = {}
        self._opened_at_s: dict[bytes, float] = {}
        self._pending: defaultdict[str, list[index.IndexedPack]] = defaultdict(list)
        self._upkeep: asyncio.Task[None] | None = None
        self._tasks = HeldTasks("store's keeper")
        self._due_s = dict.fromkeys(("touch", "sweep", "flush", "room", "open", "check"), 0.0)

    @property
    def takes_packs(self) -> bool:
        """Return whether functions should write packs. False while the store is full."""
        return not (self.unwritten or self.room.excess_bytes)

    @property
    def unwritten(self) -> str:
        """Return a readable reason for not writing packs. Empty if there is none or space is being freed."""
        if self._store is None:
            return "it is not open"
        if self._store.read_only:
            return "it is read-only"
        return f"it is full ({self.room.usage})" if self.room.exhausted else ""

    @property
    def store_use(self) -> str:
        """Describe where decoded records are kept and how full the store is, for display. May be empty."""
        if self._store is None:
            reason = self.problem if self.address else self._reason
            return reason and f"decoded images are kept only in the cache: {reason}"
        use = "read only" if self._store.read_only else f"{self.room.usage} used"
        return f"decoded images are kept in {self.address} ({use}); set SUPER_STORE=none to turn this off"

    @property
    def store_id(self) -> str:
        """Return the id that readers need to open the store, or an empty string if they cannot access it."""
        return "" if self._store is None or is_bucket(self.address) else self._store.id

    async def open(self) -> None:
        """Open the store, creating it if needed. If it does not respond in time, call this again to continue.

        Raises ``StoreError`` if the user's choice is not a store, has a different version or is unreadable.
        """
        if not self.address:
            return None
        self._opening = self._opening or asyncio.create_task(self._threads.run(self._open))
        await asyncio.wait([self._opening], timeout=_OPENING_S)  # a long listing continues
        if not self._opening.done():
            return self._warn_of(f"it cannot be opened: it did not respond within {_OPENING_S:g} s")
        opening, self._opening = self._opening, None
        try:
            self._store = opening.result()
        except StoreError as error:
            if isinstance(error, (StoreFormatError, StoreRefusedError)) and not self._by_default:
                raise
            self._warn_of(f"it cannot be opened: {error}")
        else:
            self.room.exhausted = self.room.excess_bytes > 0

    def begin(self, fingerprint: str, post: Callable[[Event], None]) -> None:
        """Send events to ``post`` from now on. Packs of decoders with a different fingerprint are ignored."""
        self.fingerprint, self._post = fingerprint, post

    async def opened(self, dataset: Dataset) -> None:
        """Look up the records of a dataset that a job is about to open. Waits at most a few seconds."""
        if self._store is None or dataset.all_ids is None:  # random recipes have no ids
            return
        content = dataset.content
        self.places.open(content, len(dataset.catalog))
        self._opened_at_s[content] = time.monotonic()
        task = self._looks.get(content)
        if task is None:
            task = self._looks[content] = self._tasks.start(self._look(self._store, dataset, dataset.all_ids))
            task.add_done_callback(lambda _: self._looks.pop(content, None))
        await asyncio.wait([task], timeout=_LOOK_S)
        if not task.done():
            # The lookup continues and posts its result.
            self._warn_of(f"it was not listed within {_LOOK_S:g} s, so jobs start without it")

    def stored(self, content: bytes) -> list[Event]:
        """Return the event that reports an open dataset's stored records to the core, or an empty list."""
        indices, packs = self.places.known(content)
        return [RecordsStored(content, indices, packs)] if indices.size else []

    def process_result(
        self, dataset: Dataset, indices: NDArray[np.int64], result: PrefetchResult
    ) -> tuple[int, NDArray[np.bool_] | None]:
        """Process a function's result. Return the number of its pack, or 0, and a mask of stored samples."""
        if result.store_trouble:
            self.problem = result.store_trouble
            self._due_s["room"] = 0.0  # the store may be full
        lost = np.array([outcome == Outcome.NOT_STORED for outcome in result.outcomes], dtype=np.bool_)
        self.places.forget(dataset.content, indices[lost])
        if not result.pack or self._store is None:
            return 0, None
        try:
            written = index.pack_written(dataset, indices, result, self.fingerprint)
        except StoreFormatError as error:
            self._warn_of(f"a function reported an invalid pack, {result.pack[:80]!r}: {error}")
            return 0, None
        self._pending[written.index.meta.collection].append(written)
        stored = np.array(result.offsets) > 0
        placed = indices[stored]
        number = self.places.put_pack(dataset.content, written, placed)
        self.room.add(result.pack, result.store_bytes, placed.size)
        if self.room.is_overdue:
            self.step()  # at once, because nothing is stored until there is room
        if dataset.content in self._known:
            self._known[dataset.content].packs.add(result.pack)
        self.problem = ""
        return number, stored

    def step(self) -> None:
        """Start any maintenance that is due, unless some is already running. Call this every second."""
        since_s = time.monotonic() - _OPENED_S
        opening = {content for content, at_s in self._opened_at_s.items() if at_s > since_s}
        for content in self.places.close_unknown(opening.union(self._datasets.opened)):
            self._known.pop(content, None)
            self._opened_at_s.pop(content, None)
        if self.address and (self._upkeep is None or self._upkeep.done()):
            self._upkeep = self._tasks.start(self._keep())

    async def close(self) -> None:
        """Write pending segments and remove this instance's mark, within a limited time."""
        store = self._store
        await self._tasks.cancel()
        if self._opening is not None:
            await cancel_and_wait(self._opening)
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._flush()
                if store is not None and not store.read_only:
                    await self._threads.run(lambda: store.forget(self._instance))
        except (StoreError, TimeoutError) as error:
            _log.info("the store was not closed in order, which does no harm: %s", error)
        self._threads.close(StoreError("the coordinator is shutting down"))

    def _open(self) -> Store:
        same = self._filesystem in (None, filesystem_of(self.address))
        create = same and not self._read_only  # never in the mount point of a missing disk
        store = open_own(self.address, self._instance, create=create, read_only=self._read_only)
        self._filesystem = filesystem_of(self.address)
        self.room.adopt(store.packs(), self.room.sizes)
        self.room.measure()
        return store

    async def _look(self, store: Store, dataset: Dataset, ids: NDArray[np.uint8]) -> None:
        content, collection = dataset.content, index.collection_in(dataset)
        packs_before = set(self.room.sizes)  # the lookup may miss packs written meanwhile
        known = self._known.setdefault(content, index.Known())

        def looked() -> tuple[Joined, index.StoreChanges]:
            contents = index.look(store, collection, self.fingerprint, known)
            joined = self.places.join(ids, contents.packs)
            dataset.moved = "" if joined.indices.size or known.packs else moved_warning(store, dataset)
            return joined, contents

        try:
            joined, contents = await self._threads.run(looked)
        except StoreError as error:
            self._warn_of(f"its contents cannot be read: {error}")
            return
        self.problem = ""
        self.room.records.update({pack.name: len(pack.index.entries) for pack in contents.packs})
        self.room.adopt(contents.sizes, packs_before)
        self.room.useless |= contents.useless
        self._mark_lost(contents.gone | contents.useless)
        self.places.put(content, joined)
        # Jobs that have it open began without this result.
        if joined.indices.size and content in self._datasets.opened:
            self._post(RecordsStored(content, joined.indices, joined.packs))
        if not store.read_only:
            self._tasks.start(self._mark_and_merge(store, collection))

    async def _keep(self) -> None:
        # One failure must not stop the rest: room is needed most on a full disk.
        for work in (self._keep_open, self._keep_room, self._keep_marks, self._keep_index):
            try:
                try:
                    await work(self._store)
                except StoreGoneError:
                    if not await self._close_if_removed():
                        raise
            except StoreError as error:
                self._warn_of(str(error))

    async def _keep_open(self, store: Store | None) -> None:
        if store is not None and self._is_due("check", _CHECK_S):  # caches hide its removal
            await self._close_if_removed()
        elif store is None and self._is_due("open", _REOPEN_S):
            await self.open()
            if self._store is not None:
                self.problem = ""
                _log.info("the store is open again: %s", self.store_use)
                for dataset in list(self._datasets.opened.values()):  # opened without the store
                    await self.opened(dataset)

    async def _close_if_removed(self) -> bool:
        """Drop the handle of a directory that was removed or replaced, and return whether it was."""
        if self._store is None or not await self._threads.run(partial(is_gone, self.address, self.store_id)):
            return False
        self._warn_of("its directory was removed or replaced")
        self._store, self.room.exhausted = None, False
        names = list(self.room.sizes)
        self._mark_lost(names)
        self.room.forget(names)
        self._known.clear()
        self._pending.clear()
        return True

    async def _keep_room(self, store: Store | None) -> None:
        if store is not None and (self.room.is_overdue or self._is_due("room", _MINUTE_S)):
            try:
                await self._make_room(store)
            finally:
                self.room.exhausted = self.room.excess_bytes > 0  # after a failure, retry a minute later

    async def _keep_marks(self, store: Store | None) -> None:
        if store is None or store.read_only or not self._is_due("touch", _MINUTE_S):
            return
        # The marks show other coordinators what is in use.
        await self._threads.run(partial(store.touch, self._instance))
        for collection in self._open_collections():
            await self._threads.run(partial(store.mark_used, collection))
        if self._is_due("sweep", _HOUR_S):
            await self._threads.run(partial(store.sweep, time.time()))  # files of dead writers
        self.problem = ""

    async def _keep_index(self, _: Store | None) -> None:
        if self._is_due("flush", _MINUTE_S):
            await self._flush()

    async def _flush(self) -> None:
        store = self._store
        if store is None or store.read_only:
            return
        for collection in list(self._pending):
            pieces = self._pending.pop(collection)
            try:
                segments = await self._threads.run(partial(index.write_segments, store, collection, pieces))
            except StoreError:
                self._pending[collection] += pieces
                raise
            for content, known in self._known.items():
                if index.collection_in(self._datasets.opened.get(content)) == collection:
                    known.segments.update(segments)

    async def _mark_and_merge(self, store: Store, collection: str) -> None:
        try:
            await self._threads.run(partial(store.mark_used, collection))
            await self._threads.run(partial(index.merge_segments, store, collection))
        except StoreError as error:
            self._warn_of(str(error))

    async def _make_room(self, store: Store) -> None:
        room, was_exhausted = self.room, self.room.exhausted
        if store.read_only or not room.bounded:
            return
        if not is_bucket(self.address) or room.excess_bytes:  # others write too, but S3 bills listings
            packs_before = set(room.sizes)
            room.adopt(await self._threads.run(store.packs), packs_before)
        await self._threads.run(room.measure)
        if room.excess_bytes:
            used = await self._threads.run(store.used)
            # Only a whole directory belongs to one dataset: what has left it is of no use.
            listed = [
                self._known[content].packs
                for content, dataset in self._datasets.opened.items()
                if content in self._known and dataset.catalog.whole_bucket and not dataset.listing.key_list
            ]
            while names := room.to_prune(  # more packs may be written meanwhile
                used, self._open_collections(), room.live(self.places.live(), listed), time.time()
            ):
                await self._remove(store, names)
        if room.excess_bytes and not was_exhausted:
            _log.warning(
                "the store %s is full (%s) with datasets that jobs have open, so nothing more is written: "
                "raise store_bytes, or free space on its disk",
                *(self.address, room.usage),
            )

    async def _remove(self, store: Store, names: list[str]) -> None:
        self._mark_lost(names)  # first, or requests would still use them
        for name in names:
            await self._threads.run(partial(store.remove, name))
            self.room.forget([name])
            await self._keep_marks(store)  # removing many takes a while
        if names:
            _log.info("the store %s dropped %d packs: %s used", self.address, len(names), self.room.usage)

    def _mark_lost(self, names: Iterable[str]) -> None:
        lost = self.places.mark_lost(names)
        if lost.size:
            self._post(PacksLost(lost))

    def _open_collections(self) -> set[str]:
        return {
            index.collection_in(dataset)
            for dataset in self._datasets.opened.values()
            if not dataset.recipe.random
        }

    def _is_due(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._due_s[what]:
            return False
        self._due_s[what] = now + every_s
        return True

    def _warn_of(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("the store %s: %s", self.address, problem)
        self.problem = problem
