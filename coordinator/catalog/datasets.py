"""Registered datasets with their listings and ids, and the datasets that jobs have open.

The ranks of a run share a listing. A new run reuses it unless it is older than ``catalog_max_age_s``.
Because launchers may reuse run ids, a run ends after the same time without an open job or a request.
Jobs, the core and the cache treat datasets with the same content as identical.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from superdl.coordinator.catalog.dataset import Dataset, Listing
from superdl.coordinator.catalog.lister import list_source
from superdl.coordinator.catalog.listing import ListingCancelledError
from superdl.coordinator.catalog.listing_process import list_apart
from superdl.coordinator.catalog.source import Allowed, LongListingError
from superdl.coordinator.catalog.state import CatalogState, Kept
from superdl.super_wire.errors import CoordinatorError, SourceBusyError, SourceError, SuperError
from superdl.super_wire.ids import Naming, digest128

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.catalog.catalog import Catalog
    from superdl.super_wire.recipe import Recipe

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_PROGRESS_STEP = 1000
_PROGRESS_S = 5.0
_BUSY_S = 100.0  # less than the 120 s after which samplers give up on a listing without progress
_BUSY_PAUSE_MAX_S = 10.0
_CLOSE_TIMEOUT_S = 5.0
_LISTINGS_AT_ONCE = 8
_LISTINGS_MAX = 64
_RENEWED_AFTER = 10.0  # times a listing's duration: listings take at most a tenth of the time


class DatasetRegistry:
    """The most recently registered datasets, the open datasets, and their shared listings.

    Args:
        max_age_s: maximum age in seconds of a listing that a new run may share.
        capacity: maximum number of registered datasets, not counting open ones.
        clock: returns monotonic time in seconds.
        allowed: limits on listings.
        lister: lists a source in a thread. The default is :func:`.list_source`, which moves
            to a separate process if a source has more than ``few_samples`` samples.
        state: stores catalogs and ids. The default uses temporary files.
    """

    def __init__(
        self,
        *,
        max_age_s: float,
        capacity: int = 256,
        clock: Callable[[], float] = time.monotonic,
        allowed: Allowed = Allowed(),  # noqa: B008  # frozen
        few_samples: int = 10_000,
        lister: Callable[..., Catalog] | None = None,
        state: CatalogState | None = None,
    ) -> None:
        self._allowed = allowed
        self._state = state or CatalogState(None)
        self._max_age_s = max_age_s
        self._capacity = capacity
        self._clock = clock
        self._lister = lister or partial(list_source, allowed=replace(allowed, here=few_samples))
        self._datasets: OrderedDict[bytes, Dataset] = OrderedDict()
        # By content. Jobs read these datasets, or did so recently.
        self.opened: dict[bytes, Dataset] = {}
        self._listings: list[Listing] = []
        self._deriving: dict[bytes, asyncio.Task[NDArray[np.uint8]]] = {}
        self._threads = ThreadPoolExecutor(_LISTINGS_AT_ONCE, thread_name_prefix="super-listing")

    def register(
        self,
        source: str,
        recipe: Recipe,
        key_list: str,
        run_id: str,
        naming: Naming = Naming(),  # noqa: B008  # frozen
        classes: tuple[str, ...] = (),
        *,
        renew: bool = False,
        is_open: Callable[[str], bool] | None = None,
    ) -> Dataset:
        """Return the dataset for these arguments, starting a listing unless a suitable one exists.

        With ``renew``, a listing older than ten times its duration is replaced, even if it belongs to
        this run. ``is_open`` returns whether a job is open. If given, the listing of a run that has ended
        is replaced, because a later run may have the same id. Running jobs keep their listing.

        Raises ``CoordinatorError`` if too many other listings are in progress.
        """
        facts = source, key_list, recipe.json, run_id, *(naming if any(naming) else ())
        if classes:
            facts = *facts, json.dumps(classes)
        dataset_id = digest128(*map(str.encode, facts))
        before = self._datasets.get(dataset_id)
        renew = renew or (before is not None and is_open is not None and self._has_ended(before, is_open))
        known = self.get(dataset_id)
        is_good = known is not None and known.listing.error is None
        if known is not None and is_good and (not renew or self._is_fresh(known.listing, renew=True)):
            return known
        listing = self._listing((source, key_list, naming, classes), run_id, dataset_id, renew=renew)
        dataset = Dataset(dataset_id, recipe, listing, requested_at_s=self._clock(), run_id=run_id)
        self._datasets[dataset_id] = dataset
        self._drop_oldest()
        return dataset

    def __iter__(self) -> Iterator[Dataset]:
        """Iterate over the registered datasets, including those still being listed, and the open datasets."""
        return iter([*self._datasets.values(), *self.opened.values()])

    def __getitem__(self, content: bytes) -> Dataset:
        """Return the open dataset with this content digest."""
        return self.opened[content]

    def ids_of(self, content: bytes) -> bytes:
        """Return the concatenated ids of all ready datasets with this content. The id differs by run."""
        ready = (dataset for dataset in self._datasets.values() if dataset.ready)
        return b"".join(dataset.dataset_id for dataset in ready if dataset.content == content)

    def open(self, dataset: Dataset) -> None:
        """Mark a listed dataset as open for a job. It stays open until :meth:`close_unknown` drops it."""
        # If two locations share an alias, the last one wins, because the source may have moved.
        self.opened[dataset.content] = dataset

    def close_unknown(self, known: Container[bytes]) -> None:
        """Drop open datasets whose content is no longer in ``known``."""
        self.opened = {content: dataset for content, dataset in self.opened.items() if content in known}

    def get(self, dataset_id: bytes) -> Dataset | None:
        """Return the dataset with this id, or ``None`` if it is no longer registered."""
        dataset = self._datasets.get(dataset_id)
        if dataset is not None:
            self._datasets.move_to_end(dataset_id)
            dataset.requested_at_s = self._clock()
        return dataset

    async def wait(self, dataset: Dataset, *, listed: int, wait_s: float) -> None:
        """Wait until more than ``listed`` samples are listed, or until the listing and its ids are complete.

        Waits at most ``wait_s`` seconds. If the listing failed, raises its ``SuperError``.
        """
        listing, until_s = dataset.listing, asyncio.get_running_loop().time() + wait_s
        async with listing.changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await listing.changed.wait_for(lambda: listing.ended or listing.listed > listed)
        if listing.ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._derive_ids(dataset)
            if dataset.ready and listing.kept is not None and not dataset.noted:
                # After a restart, this run must get the same catalog.
                dataset.noted = True
                await asyncio.to_thread(self._state.note, self._key(dataset.dataset_id), listing.kept)

    async def close(self) -> None:
        """Cancel the listings in progress, and wait a few seconds for them to stop."""
        for listing in self._listings:
            listing.cancelled.set()
        tasks: list[asyncio.Task[Any]] = [*self._deriving.values()]
        tasks += [listing.task for listing in self._listings if listing.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _has_ended(self, dataset: Dataset, is_open: Callable[[str], bool]) -> bool:
        """Return whether a dataset's run has no open job and has not requested the dataset recently."""
        is_silent = self._clock() - dataset.requested_at_s > self._max_age_s
        of_run = [other for other in self._datasets.values() if other.run_id == dataset.run_id]
        return is_silent and not any(is_open(job) for other in of_run for job in other.jobs)

    def _is_fresh(self, listing: Listing, *, renew: bool) -> bool:
        age_s = self._clock() - listing.ended_at_s
        return not listing.ended or age_s <= self._fresh_s(listing.took_s, renew=renew)

    def _fresh_s(self, took_s: float, *, renew: bool) -> float:
        return min(self._max_age_s, _RENEWED_AFTER * took_s) if renew else self._max_age_s

    def _key(self, about: bytes) -> bytes:
        # The contents of a listing depend on what this coordinator may read.
        allowed = self._allowed.roots, self._allowed.own_functions, self._allowed.http_hosts
        return digest128(about, json.dumps(allowed).encode())

    def _listing(
        self,
        options: tuple[str, str, Naming, tuple[str, ...]],
        run_id: str,
        dataset_id: bytes,
        *,
        renew: bool,
    ) -> Listing:
        for listing in reversed(self._listings):  # the newest suitable one
            is_own = run_id in listing.runs and not renew
            if (
                listing.options == options
                and listing.error is None
                and (is_own or self._is_fresh(listing, renew=renew))
            ):
                listing.runs.add(run_id)
                return listing
        running = sum(not other.ended for other in self._listings)
        if running >= _LISTINGS_MAX:
            raise CoordinatorError(f"this coordinator is already listing {running} sources: try again later")
        listing = Listing(*options, runs={run_id})
        # The state may have this run's listing or a recent one.
        own, latest = self._state.find(self._key(dataset_id)), self._state.find(self._key(listing.key))
        for kept in filter(None, (latest, own)):
            fresh_s = self._fresh_s(kept.took_s, renew=renew)
            if (kept is own and not renew) or time.time() - kept.ended_s <= fresh_s:
                listing.kept = kept
        listing.task = asyncio.create_task(self._list(listing), name=f"list {listing.source}")
        self._listings.append(listing)
        return listing

    def _drop_oldest(self) -> None:
        # Clients of a dropped dataset register it again.
        while len(self._datasets) > self._capacity:
            self._datasets.popitem(last=False)
        used = {id(dataset.listing) for dataset in self._datasets.values()}
        for listing in self._listings:
            if id(listing) not in used:
                listing.cancelled.set()
        # A cancelled listing is kept until it ends, because it counts towards the limit.
        self._listings = [entry for entry in self._listings if id(entry) in used or not entry.ended]

    async def _list(self, listing: Listing) -> None:
        loop = asyncio.get_running_loop()

        async def notify() -> None:
            async with listing.changed:
                listing.changed.notify_all()

        reported_s = self._clock()

        def progress(listed: int | None) -> None:  # called by the listing's threads, one at a time
            nonlocal reported_s
            listing.packing = listed is None
            if listed is None:
                return
            added = listed - listing.listed  # negative after a listing was restarted
            if added >= _PROGRESS_STEP or (added > 0 and self._clock() - reported_s >= _PROGRESS_S):
                listing.listed, reported_s = listed, self._clock()
                asyncio.run_coroutine_threadsafe(notify(), loop)

        try:
            kept = await asyncio.to_thread(self._state.load, listing.kept) if listing.kept else None
            self._end(listing, kept or await self._list_and_keep(listing, progress))
        except ListingCancelledError:
            self._end(listing, SourceError(f"the listing of {listing.source} was cancelled as unneeded"))
        except SuperError as error:
            self._end(listing, error)
        except Exception as error:  # noqa: BLE001  # a bug; clients would poll forever
            _log.exception("the listing of %s failed because of a bug", listing.source)
            reason = f"failed unexpectedly ({type(error).__name__}): see the coordinator's log"
            self._end(listing, SourceError(f"the listing of {listing.source} {reason}"))
        await notify()

    def _end(self, listing: Listing, result: Catalog | SuperError) -> None:
        # The state has wall-clock times, while the registry's clock is monotonic.
        now_s = time.time()
        ended_s = min(now_s, listing.kept.ended_s) if listing.kept else now_s
        listing.ended_at_s = self._clock() - (now_s - ended_s)
        if listing.kept:
            listing.took_s = listing.kept.took_s
        listing.ended_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ended_s))
        if isinstance(result, SuperError):
            listing.error = result
        else:
            listing.catalog, listing.listed = result, len(result)

    async def _list_and_keep(self, listing: Listing, progress: Callable[[int | None], None]) -> Catalog:
        """List a source, and store its catalog in the state. Long listings run in a separate process."""
        listing.kept, began_s = None, self._clock()
        try:
            catalog = await self._list_patiently(listing, progress, self._lister)
            mapped, file = await asyncio.to_thread(self._state.hold, catalog)
        except LongListingError:
            mapped, file = await self._list_patiently(listing, progress, self._list_apart)
        listing.took_s = self._clock() - began_s
        if file:
            listing.kept = Kept(file, time.time(), listing.took_s)
            await asyncio.to_thread(self._state.note, self._key(listing.key), listing.kept)
        return mapped

    def _list_apart(self, source: str, *options: Any) -> tuple[Catalog, str]:
        try:
            mapped, file = self._state.keep(
                lambda out: list_apart(out.name, source, *options, allowed=self._allowed)
            )
        except OSError as error:
            raise SourceError(
                f"the catalog of {source} cannot be written ({error}): set SUPER_STATE to another directory"
            ) from error
        for warning in mapped.warnings:
            _log.warning("%s", warning)
        return mapped, file

    async def _list_patiently(
        self, listing: Listing, progress: Callable[[int | None], None], lister: Callable[..., _Result]
    ) -> _Result:
        """List a source, retrying with increasing delays while it throttles requests or does not respond."""
        source, key_list, *how = listing.options
        options = source, key_list or None, progress, listing.cancelled, *how
        until_s, pause_s = self._clock() + _BUSY_S, 1.0
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, lister, *options)
            except SourceBusyError as error:
                if self._clock() + pause_s > until_s or listing.cancelled.is_set():
                    raise
                listing.problem = f"{error}; the listing will be retried"
                _log.warning("%s", listing.problem)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _BUSY_PAUSE_MAX_S)

    async def _derive_ids(self, dataset: Dataset) -> None:
        catalog, content = dataset.catalog, dataset.content
        catalog.parts(dataset.recipe.beside)
        if dataset.ready:
            return
        for other in self._datasets.values():
            if other.ready and other.content == content:
                dataset.all_ids = other.all_ids
                return
        task = self._deriving.get(content)
        if task is None:
            recipe = dataset.recipe

            def derive(indices: NDArray[np.int64]) -> bytes:
                return catalog.sample_ids(recipe.digest, None, indices, recipe.beside)

            task = asyncio.create_task(asyncio.to_thread(self._state.ids, content, len(catalog), derive))
            self._deriving[content] = task
            task.add_done_callback(lambda _: self._deriving.pop(content))
        dataset.all_ids = await asyncio.shield(task)  # others may wait even if this caller is cancelled
