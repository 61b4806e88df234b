"""Registered datasets: which runs share a listing, and how its progress and end are reported."""

import asyncio
import contextlib
import shutil
import threading

import pytest

from superdl.coordinator.catalog import ListingCancelledError, list_source
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.catalog.state import CatalogState
from superdl.super_wire.errors import SourceEmptyError, SourceError, SourceNotFoundError
from superdl.super_wire.ids import Naming
from superdl.super_wire.recipe import Recipe

PLAIN = Recipe.image(resize=8, crop=8)
OTHER = Recipe.image(resize=8, crop=4)
RANDOM = Recipe([{"op": "random_resized_crop", "size": 8}], augment_seed=3)
ENOUGH_S = 20.0


class Clock:
    """A clock that only a test advances."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@contextlib.asynccontextmanager
async def registry(max_age_s=300.0, clock=None, **options):
    datasets = DatasetRegistry(max_age_s=max_age_s, clock=clock or Clock(), **options)
    try:
        yield datasets
    finally:
        await datasets.close()


async def listed(datasets, source, run_id="run", recipe=PLAIN, key_list="", **how):
    dataset = datasets.register(f"file://{source}", recipe, key_list, run_id, **how)
    await datasets.wait(dataset, listed=2**62, wait_s=ENOUGH_S)
    return dataset


def run(work, **options):
    """Run an async test body with a new registry."""

    async def body():
        async with registry(**options) as datasets:
            return await work(datasets)

    return asyncio.run(body())


class SlowLister:
    """Finish a listing only when told to. Until then it reports 2600 samples."""

    def __init__(self):
        self.opened = threading.Event()
        self.calls = []

    def __call__(self, source, key_list, progress, cancelled, *how):
        self.calls.append(source)
        for listed in (1500, 1700, 2600):
            progress(listed)
        while not self.opened.wait(0.01):
            if cancelled.is_set():
                raise ListingCancelledError
        return list_source(source, key_list, progress, cancelled, *how)


@pytest.mark.parametrize(("max_age_s", "young_s"), [(300.0, 20.0), (5.0, 5.0)])
def test_a_new_sampler_lists_again_what_is_ten_times_older_than_its_listing_took(source, max_age_s, young_s):
    clock = Clock()

    def lister(*arguments):
        clock.now_s += 2.0
        return list_source(*arguments)

    async def work(datasets):
        first = await listed(datasets, source)
        (source / "cat" / "new.jpg").write_bytes(b"x")
        clock.now_s += young_s
        assert await listed(datasets, source, renew=True) is first
        clock.now_s += 0.1
        assert await listed(datasets, source) is first, "the run keeps its listing"
        again = await listed(datasets, source, renew=True)
        assert again.dataset_id == first.dataset_id
        assert (len(first.catalog), len(again.catalog)) == (6, 7)
        assert await listed(datasets, source) is again
        assert len((await listed(datasets, source, recipe=OTHER)).catalog) == 7, "the newest listing is used"

    run(work, clock=clock, lister=lister, max_age_s=max_age_s)


def test_a_run_with_the_id_of_an_ended_run_lists_again(source):
    clock, open_jobs = Clock(), {"job"}

    async def work(datasets):
        def again():
            return listed(datasets, source, is_open=open_jobs.__contains__)

        first = await listed(datasets, source)
        first.jobs = {"job"}
        other = await listed(datasets, source, recipe=OTHER)
        other.jobs = {"other"}
        (source / "cat" / "new.jpg").write_bytes(b"x")
        clock.now_s += 301.0
        assert await again() is first, "its job is still reading"
        open_jobs.symmetric_difference_update({"job", "other"})
        clock.now_s += 301.0
        assert await again() is first, "the run is still reading its other dataset"
        open_jobs.clear()
        clock.now_s += 299.0
        assert await again() is first, "a slow rank may still open it"
        clock.now_s += 301.0
        assert await listed(datasets, source) is first, "a sampler may reopen its job"
        clock.now_s += 301.0
        second = await again()
        assert (len(first.catalog), len(second.catalog)) == (6, 7)
        assert await again() is second

    run(work, clock=clock)


def test_ranks_runs_and_recipes_share_one_listing_and_ids_are_derived_once(source):
    lister = SlowLister()
    lister.opened.set()

    async def work(datasets):
        first = await listed(datasets, source)
        assert await listed(datasets, source) is first
        assert datasets.get(first.dataset_id) is first
        assert datasets.get(b"\0" * 16) is None
        other = await listed(datasets, source, recipe=OTHER)
        assert other.listing is first.listing
        assert other.content != first.content
        runs = await asyncio.gather(*(listed(datasets, source, f"run {number}") for number in range(8)))
        assert len({dataset.dataset_id for dataset in runs}) == 8
        assert {id(dataset.all_ids) for dataset in runs} == {id(first.all_ids)}
        assert len(lister.calls) == 1

    run(work, lister=lister)


def test_two_locations_of_an_alias_are_one_dataset_read_where_it_was_opened_last(source, tmp_path):
    moved = shutil.copytree(source, tmp_path / "moved")

    async def work(datasets):
        named = Naming("pets", "digests")
        registered = []
        for place in (source, moved, source):
            dataset = datasets.register(f"file://{place}", PLAIN, "", f"run {len(registered)}", named)
            await datasets.wait(dataset, listed=2**62, wait_s=ENOUGH_S)
            datasets.open(dataset)
            assert datasets[dataset.content].catalog.bucket == f"file://{place}"
            registered.append(dataset)
        first, other, again = registered
        assert first.content == other.content
        assert other.all_ids is first.all_ids
        assert again.listing is first.listing
        unnamed = await listed(datasets, source)
        assert unnamed.content != first.content
        assert unnamed.listing is not first.listing

    run(work)


def test_slow_progress_of_a_listing_is_reported_every_few_seconds(source):
    """Reading each file can make a thousand files take minutes."""
    clock, reported, registered = Clock(), [], []

    def lister(source, key_list, progress, *_):
        for count in range(1, 5):
            clock.now_s += 3.0
            progress(count)
            reported.append(registered[0].listing.listed)
        return list_source(source)

    async def work(datasets):
        registered.append(datasets.register(f"file://{source}", PLAIN, "", "run"))
        await datasets.wait(registered[0], listed=2**62, wait_s=ENOUGH_S)

    run(work, clock=clock, lister=lister)
    assert reported == [0, 2, 2, 4]


@pytest.mark.parametrize(("age_s", "is_shared"), [(299.0, True), (300.0, True), (301.0, False)])
def test_a_new_run_lists_again_after_the_maximum_age(source, age_s, is_shared):
    clock = Clock()

    async def work(datasets):
        first = await listed(datasets, source, "one")
        (source / "cat" / "new.jpg").write_bytes(b"new")
        clock.now_s += age_s
        assert (await listed(datasets, source, "one", OTHER)).listing is first.listing
        second, third = [await listed(datasets, source, run_id) for run_id in ("two", "three")]
        assert (second.listing is first.listing) is is_shared
        assert third.listing is second.listing
        assert (len(first.catalog), len(second.catalog)) == (6, 6 if is_shared else 7)

    run(work, clock=clock)


def test_progress_ends_a_long_poll(source):
    lister = SlowLister()

    async def work(datasets):
        dataset = datasets.register(f"file://{source}", PLAIN, "", "run")
        await datasets.wait(dataset, listed=0, wait_s=0.0)
        assert not dataset.ready
        seen = []
        while dataset.listing.listed < 2600:
            await datasets.wait(dataset, listed=dataset.listing.listed, wait_s=ENOUGH_S)
            seen.append(dataset.listing.listed)
        assert set(seen) <= {1500, 2600}
        with pytest.raises(SourceError, match=r"still being listed \(2600 samples so far\)"):
            _ = dataset.catalog
        await datasets.wait(dataset, listed=2600, wait_s=0.01)  # returns although nothing has changed
        assert not dataset.ready
        lister.opened.set()
        await datasets.wait(dataset, listed=2600, wait_s=ENOUGH_S)
        assert dataset.ready

    run(work, lister=lister)


def test_a_wait_is_limited_while_ids_are_derived(source):
    going = threading.Event()

    class SlowState(CatalogState):
        def ids(self, *facts):
            assert going.wait(ENOUGH_S)
            return super().ids(*facts)

    async def work(datasets):
        dataset = datasets.register(f"file://{source}", PLAIN, "", "run")
        while not dataset.listing.ended:
            await datasets.wait(dataset, listed=0, wait_s=0.01)
        await datasets.wait(dataset, listed=0, wait_s=0.01)
        assert dataset.listing.packing
        assert not dataset.ready
        going.set()
        await datasets.wait(dataset, listed=0, wait_s=ENOUGH_S)
        assert dataset.ready

    run(work, state=SlowState(None))


def test_all_waiting_ranks_get_the_error_of_a_listing_and_the_next_tries_again(tmp_path):
    missing = tmp_path / "later"

    async def work(datasets):
        first = datasets.register(f"file://{missing}", PLAIN, "", "run")
        waiting = [datasets.wait(first, listed=0, wait_s=ENOUGH_S) for _ in range(3)]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(answer) for answer in answers] == [SourceNotFoundError] * 3
        with pytest.raises(SourceNotFoundError, match="later"):
            _ = first.catalog
        missing.mkdir()
        with pytest.raises(SourceEmptyError):
            await listed(datasets, missing)
        (missing / "cat").mkdir()
        (missing / "cat" / "1.jpg").write_bytes(b"x")
        assert len((await listed(datasets, missing)).catalog) == 1

    run(work)


def test_a_bug_in_a_listing_is_an_error_and_no_hang(source, caplog):
    def broken(*_):
        raise ZeroDivisionError

    async def work(datasets):
        with pytest.raises(SourceError, match="failed unexpectedly .ZeroDivisionError."):
            await listed(datasets, source)

    run(work, lister=broken)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_listing_ends_with_the_registry_or_its_last_dataset(source, how):
    async def work(datasets):
        dataset = datasets.register(f"file://{source}", PLAIN, "", "run")
        if how == "closed":
            await datasets.close()
        else:
            datasets.register(f"file://{source}/cat", PLAIN, "", "run")
        with pytest.raises(SourceError, match="was cancelled"):
            await datasets.wait(dataset, listed=2**62, wait_s=ENOUGH_S)

    run(work, capacity=1, lister=SlowLister())


def test_the_least_recently_used_dataset_is_dropped_and_can_be_registered_again(source):
    async def work(datasets):
        first, second, _ = [await listed(datasets, source, f"run {number}") for number in range(3)]
        assert datasets.get(first.dataset_id) is first  # use it, so that it is not the oldest any more
        await listed(datasets, source, "one more")
        assert datasets.get(second.dataset_id) is None
        assert datasets.get(first.dataset_id) is first
        again = await listed(datasets, source, "run 1")
        assert again.dataset_id == second.dataset_id
        assert again.ready

    run(work, capacity=3)
