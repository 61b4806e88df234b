"""The registry of datasets: their listings, the sample ids of what these found, and which of them are open.

Ranks of one run share a listing; a new run shares it too unless it is older than ``catalog_max_age_s``.
Datasets of equal content are one to jobs, to the core and to the cache: their content is their name there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.catalog.catalog import RecentIds
from superdl.coordinator.catalog.lister import list_source
from superdl.coordinator.catalog.listing import ListingCancelledError
from superdl.coordinator.core import DatasetFacts, runs_of
from superdl.super_wire.errors import CoordinatorError, SourceBusyError, SourceError, SuperError
from superdl.super_wire.ids import ID_BYTES, Naming, digest128
from superdl.super_wire.record import CHANGED_SINCE, HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.catalog import Catalog
    from superdl.super_wire.recipe import Recipe

__all__ = ["Dataset", "DatasetRegistry", "Listing"]

_log = logging.getLogger(__name__)

_PROGRESS_STEP = 1000
_PROGRESS_S = 5.0
_BUSY_S = 100.0  # less than the 120 s for which samplers let a listing stand still
_BUSY_PAUSE_MAX_S = 10.0
_CLOSE_TIMEOUT_S = 5.0
_LISTINGS_AT_ONCE = 8
_LISTINGS_MAX = 64
_RENEWED_AFTER = (
    10.0  # times what a listing took: where files are added, a tenth of the time goes into seeing it
)
_DEFAULT_RECORD_BYTES = 600_000
"""Expected length of a record whose shape the recipe does not fix: an undistorted 500x400 image."""


@dataclass(slots=True)
class Listing:
    """A listing of a source, under way or ended; ``listed`` samples so far."""

    source: str
    key_list: str
    naming: Naming = field(default_factory=Naming)
    classes: tuple[str, ...] = ()
    task: asyncio.Task[None] | None = None
    listed: int = 0
    trouble: str = ""
    catalog: Catalog | None = None
    error: SuperError | None = None
    begun_at_s: float = 0.0
    ended_at_s: float = 0.0
    ended_at: str = ""
    """The same as a date and time in UTC, for people."""
    runs: set[str] = field(default_factory=set)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def ended(self) -> bool:
        """Whether there is a catalog or an error."""
        return self.catalog is not None or self.error is not None

    def dated(self, reason: str) -> str:
        """Why a sample could not be produced; of one that changed since the listing, with its time."""
        return reason.replace(CHANGED_SINCE, f"{CHANGED_SINCE} at {self.ended_at}", 1)


@dataclass(slots=True)
class Dataset:
    """A listing under a recipe, as one run registered it."""

    dataset_id: bytes
    recipe: Recipe
    listing: Listing
    all_ids: NDArray[np.uint8] | None = None
    """The ids of all samples, shape (samples, 16), once derived; of a random recipe, never."""
    moved: str = ""
    """A line for the user, if the store has its samples as another directory's."""
    _recent: RecentIds = field(default_factory=RecentIds)

    @property
    def ready(self) -> bool:
        """Whether its samples and their ids are known."""
        return self.listing.catalog is not None and (self.recipe.random or self.all_ids is not None)

    @property
    def catalog(self) -> Catalog:
        """The listed samples; ``SuperError`` if the listing has failed, or has not ended yet."""
        if self.listing.error is not None:
            raise self.listing.error
        if self.listing.catalog is None:
            raise SourceError(
                f"{self.listing.source} is still being listed ({self.listing.listed} samples so far)"
            )
        return self.listing.catalog

    @property
    def content(self) -> bytes:
        """Digest of what decides the sample ids: runs with equal content share residency."""
        seed = self.recipe.augment_seed.to_bytes(8, "little", signed=True)
        return digest128(self.catalog.fingerprint, self.recipe.digest, seed)

    @property
    def record_bytes(self) -> int:
        """Length of a record, as far as the recipe tells it."""
        shape = self.recipe.output_shape
        return HEADER_BYTES + shape[0] * shape[1] * shape[2] if shape else _DEFAULT_RECORD_BYTES

    def facts(self, *, known_absent: bool) -> DatasetFacts:
        """What the core is told of it; ``known_absent``: the cache was seen empty."""
        members = self.catalog.members
        return DatasetFacts(
            self.content,
            len(self.catalog),
            self.recipe.random,
            self.record_bytes,
            known_absent=known_absent,
            runs=runs_of(members.objects, members.offsets, members.lengths, whole=members.are_rows)
            if members
            else None,
        )

    def ids(self, indices: NDArray[np.int64], epoch: int) -> bytes:
        """The sample ids of ``indices`` in ``epoch``, concatenated; the dataset has to be ready."""
        if self.recipe.random:
            seed, catalog, recipe = self.recipe.augment_seed, self.catalog, self.recipe
            return self._recent.ids(
                indices,
                epoch,
                lambda missing: catalog.sample_ids(recipe.digest, (seed, epoch), missing, recipe.beside),
            )
        if self.all_ids is None:
            raise RuntimeError(f"{self.listing.source}: ids are asked for before they are known")
        return self.all_ids[indices].tobytes()


class DatasetRegistry:
    """The datasets that were registered last, those that are open, and the listings that they share.

    Args:
        max_age_s: how old a listing may be for a new run.
        capacity: how many registered datasets are remembered; those that are open stay beside them.
        clock: seconds on a clock that does not go back.
        lister: lists a source as :func:`superdl.coordinator.catalog.lister.list_source` does, in a thread.
    """

    def __init__(
        self,
        *,
        max_age_s: float,
        capacity: int = 256,
        clock: Callable[[], float] = time.monotonic,
        lister: Callable[..., Catalog] = list_source,
    ) -> None:
        self._max_age_s = max_age_s
        self._capacity = capacity
        self._clock = clock
        self._lister = lister
        self._datasets: OrderedDict[bytes, Dataset] = OrderedDict()
        self.opened: dict[bytes, Dataset] = {}
        """Those that jobs read or read of late, by their content."""
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
    ) -> Dataset:
        """Return the dataset of these facts, and begin its listing if no fitting one is there.

        ``renew``: of its own run too, a listing will not do that is ten times older than what it took. Jobs
        go on with theirs.
        ``CoordinatorError`` if too many other listings have not ended yet.
        """
        facts = source, key_list, recipe.json, run_id, *(naming if any(naming) else ())
        if classes:
            facts = *facts, json.dumps(classes)
        dataset_id = digest128(*map(str.encode, facts))
        known = self.get(dataset_id)
        is_good = known is not None and known.listing.error is None
        if known is not None and is_good and (not renew or self._is_fresh(known.listing, renew=True)):
            return known
        listing = self._listing((source, key_list, naming, classes), run_id, renew=renew)
        dataset = Dataset(dataset_id, recipe, listing)
        self._datasets[dataset_id] = dataset
        self._forget_some()
        return dataset

    def __iter__(self) -> Iterator[Dataset]:
        """All that are registered, those too that are still being listed, and all that are open."""
        return iter([*self._datasets.values(), *self.opened.values()])

    def __getitem__(self, content: bytes) -> Dataset:
        """The open dataset of a content digest."""
        return self.opened[content]

    def ids_of(self, content: bytes) -> bytes:
        """The ids, concatenated, under which a content was registered, once for each run."""
        ready = (dataset for dataset in self._datasets.values() if dataset.ready)
        return b"".join(dataset.dataset_id for dataset in ready if dataset.content == content)

    def open(self, dataset: Dataset) -> None:
        """A job reads a listed dataset: remember it until :meth:`close_unknown`.

        Of two places with one alias the last: the source may have moved.
        """
        known = self.opened.get(dataset.content)
        if known is None or known.catalog is not dataset.catalog:
            self.opened[dataset.content] = dataset

    def close_unknown(self, known: Container[bytes]) -> None:
        """Let go of open datasets whose content is known no more."""
        self.opened = {content: one for content, one in self.opened.items() if content in known}

    def get(self, dataset_id: bytes) -> Dataset | None:
        """The dataset that was registered with this id, if it is remembered."""
        dataset = self._datasets.get(dataset_id)
        if dataset is not None:
            self._datasets.move_to_end(dataset_id)
        return dataset

    async def wait(self, dataset: Dataset, *, listed: int, wait_s: float) -> None:
        """Wait until the listing has ended or found more than ``listed``, at most ``wait_s``; once it has
        ended, until the ids are derived as well. What ended the listing is raised as a ``SuperError``.
        """
        listing = dataset.listing
        async with listing.changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await listing.changed.wait_for(lambda: listing.ended or listing.listed > listed)
        if listing.ended:
            await self._derive_ids(dataset)

    async def close(self) -> None:
        """Stop listings that are under way."""
        for listing in self._listings:
            listing.cancelled.set()
        tasks: list[asyncio.Task[Any]] = [*self._deriving.values()]
        tasks += [listing.task for listing in self._listings if listing.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_fresh(self, listing: Listing, *, renew: bool) -> bool:
        took_s = listing.ended_at_s - listing.begun_at_s
        limit_s = min(self._max_age_s, _RENEWED_AFTER * took_s) if renew else self._max_age_s
        return not listing.ended or self._clock() - listing.ended_at_s <= limit_s

    def _listing(
        self, what: tuple[str, str, Naming, tuple[str, ...]], run_id: str, *, renew: bool
    ) -> Listing:
        for listing in reversed(self._listings):  # the newest that fits
            fresh = self._is_fresh(listing, renew=renew)
            is_same = (listing.source, listing.key_list, listing.naming, listing.classes) == what
            if is_same and listing.error is None and (fresh or (run_id in listing.runs and not renew)):
                listing.runs.add(run_id)
                return listing
        under_way = sum(not one.ended for one in self._listings)
        if under_way >= _LISTINGS_MAX:
            raise CoordinatorError(
                f"this coordinator is listing {under_way} sources already: ask again later"
            )
        listing = Listing(*what, runs={run_id}, begun_at_s=self._clock())
        listing.task = asyncio.create_task(self._list(listing), name=f"list {listing.source}")
        self._listings.append(listing)
        return listing

    def _forget_some(self) -> None:
        """Keep memory bounded; who comes back for a forgotten dataset is told to register it again."""
        while len(self._datasets) > self._capacity:
            self._datasets.popitem(last=False)
        wanted = {id(dataset.listing) for dataset in self._datasets.values()}
        for listing in self._listings:
            if id(listing) not in wanted:
                listing.cancelled.set()
        self._listings = [one for one in self._listings if id(one) in wanted or not one.ended]

    async def _list(self, listing: Listing) -> None:
        loop = asyncio.get_running_loop()

        async def tell() -> None:
            async with listing.changed:
                listing.changed.notify_all()

        told_s = self._clock()

        def progress(listed: int) -> None:  # called in the listing's threads, one at a time
            nonlocal told_s
            if listed - listing.listed >= _PROGRESS_STEP or self._clock() - told_s >= _PROGRESS_S:
                listing.listed, told_s = listed, self._clock()
                asyncio.run_coroutine_threadsafe(tell(), loop)

        try:
            catalog = await self._listed(listing, progress)
        except ListingCancelledError:
            listing.error = SourceError(f"listing {listing.source} was cancelled: nobody wants it any more")
        except SuperError as error:
            listing.error = error
        except Exception as error:  # noqa: BLE001  # logged and told; else whoever polls would wait for ever
            _log.exception("listing %s failed: a bug", listing.source)
            listing.error = SourceError(
                f"listing {listing.source} failed unexpectedly ({type(error).__name__}): "
                "see the coordinator's log"
            )
        else:
            listing.catalog = self._shared(catalog)
            listing.listed = len(catalog)
        listing.ended_at_s = self._clock()
        listing.ended_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        await tell()

    async def _listed(self, listing: Listing, progress: Callable[[int], None]) -> Catalog:
        """List a source; again, after growing pauses, while it is throttled or does not answer."""
        loop, place = asyncio.get_running_loop(), (listing.source, listing.key_list or None)
        how = listing.naming, listing.classes
        until_s, pause_s = self._clock() + _BUSY_S, 1.0
        while True:
            try:
                return await loop.run_in_executor(
                    self._threads, self._lister, *place, progress, listing.cancelled, *how
                )
            except SourceBusyError as error:
                if self._clock() + pause_s > until_s or listing.cancelled.is_set():
                    raise
                listing.trouble = f"{error}: listing it again"
                _log.warning("%s", listing.trouble)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _BUSY_PAUSE_MAX_S)

    def _shared(self, catalog: Catalog) -> Catalog:
        """An equal catalog that is in memory already, else this one."""
        for listing in self._listings:
            other = listing.catalog
            if other and _equal_by(other) == _equal_by(catalog):
                return other
        return catalog

    async def _derive_ids(self, dataset: Dataset) -> None:
        """Derive the ids of all samples, once for all datasets of equal content, in a thread."""
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
            task = asyncio.create_task(asyncio.to_thread(_all_ids, catalog, dataset.recipe))
            self._deriving[content] = task
            task.add_done_callback(lambda _: self._deriving.pop(content))
        dataset.all_ids = await asyncio.shield(task)  # others wait for it, even if this caller hangs up


def _equal_by(catalog: Catalog) -> tuple[Any, ...]:
    """What of two catalogs decides whether one will do for both: two places may have one alias."""
    return catalog.fingerprint, catalog.warnings, catalog.bucket, catalog.prefix


def _all_ids(catalog: Catalog, recipe: Recipe) -> NDArray[np.uint8]:
    ids = catalog.sample_ids(recipe.digest, fields=recipe.beside)
    return np.frombuffer(ids, dtype=np.uint8).reshape(-1, ID_BYTES)
