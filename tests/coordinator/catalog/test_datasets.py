"""Registered datasets: who shares a listing, how its end is told, what is shared in memory."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import numpy as np
import pytest

from superdl.coordinator.catalog import ListingCancelledError, list_source
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.super_wire.errors import SourceEmptyError, SourceError, SourceNotFoundError
from superdl.super_wire.ids import sample_id
from superdl.super_wire.recipe import Recipe

PLAIN = Recipe.image(resize=8, crop=8)
OTHER = Recipe.image(resize=8, crop=4)
RANDOM = Recipe([{"op": "random_resized_crop", "size": 8}], augment_seed=3)
ENOUGH_S = 20.0


class Clock:
    """Time that passes only when told."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def source(tmp_path):
    """A directory of two classes with three files each; listing does not look into them."""
    for name in ("cat", "dog"):
        (tmp_path / "source" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "source" / name / f"{number}.jpg").write_bytes(b"x" * (number + 1))
    return tmp_path / "source"


@contextlib.asynccontextmanager
async def registry(max_age_s=300.0, clock=None, **options):
    made = DatasetRegistry(max_age_s=max_age_s, clock=clock or Clock(), **options)
    try:
        yield made
    finally:
        await made.close()


async def listed(datasets, source, run_id="run", recipe=PLAIN, key_list=""):
    dataset = datasets.register(f"file://{source}", recipe, key_list, run_id)
    await datasets.wait(dataset, listed=2**62, wait_s=ENOUGH_S)
    return dataset


def run(work, **options):
    """Run an async test body against a fresh registry."""

    async def body():
        async with registry(**options) as datasets:
            return await work(datasets)

    return asyncio.run(body())


class SlowLister:
    """Lists when told to: until then it has found 2600 samples."""

    def __init__(self):
        self.opened = threading.Event()
        self.calls = []

    def __call__(self, source, key_list, progress, cancelled):
        self.calls.append(source)
        for listed in (1500, 1700, 2600):
            progress(listed)
        while not self.opened.wait(0.01):
            if cancelled.is_set():
                raise ListingCancelledError
        return list_source(source, key_list, progress, cancelled)


def test_a_listed_dataset_has_samples_labels_and_ids(source):
    async def work(datasets):
        return await listed(datasets, source)

    dataset = run(work)
    assert dataset.ready
    assert list(dataset.catalog.classes) == ["cat", "dog"]
    assert dataset.listing.listed == len(dataset.catalog) == 6
    found = dataset.ids(np.array([4, 0, 4]), epoch=7)
    catalog = dataset.catalog
    expected = [
        sample_id(catalog.bucket, key.decode(), version.decode(), PLAIN.digest)
        for key, version in zip(
            catalog.keys.take(np.arange(6)), catalog.versions.take(np.arange(6)), strict=True
        )
    ]
    assert found == expected[4] + expected[0] + expected[4]
    assert dataset.ids(np.array([0]), epoch=8) == expected[0]


def test_a_random_recipe_has_other_ids_in_every_epoch(source):
    async def work(datasets):
        return await listed(datasets, source, recipe=RANDOM)

    dataset = run(work)
    assert dataset.ready
    assert dataset.ids(np.array([1]), epoch=0) != dataset.ids(np.array([1]), epoch=1)
    catalog = dataset.catalog
    (key,), (version,) = catalog.keys.take(np.array([1])), catalog.versions.take(np.array([1]))
    assert dataset.ids(np.array([1]), epoch=5) == sample_id(
        catalog.bucket, key.decode(), version.decode(), RANDOM.digest, (3, 5)
    )


def test_registering_again_gives_the_same_dataset(source):
    async def work(datasets):
        first = await listed(datasets, source)
        assert await listed(datasets, source) is first
        assert datasets.get(first.dataset_id) is first
        assert datasets.get(b"\0" * 16) is None

    run(work)


def test_ranks_of_a_run_share_one_listing_and_recipes_do_too(source):
    lister = SlowLister()
    lister.opened.set()

    async def work(datasets):
        first = await listed(datasets, source)
        other = await listed(datasets, source, recipe=OTHER)
        assert other is not first
        assert other.listing is first.listing
        assert other.content != first.content
        assert len(lister.calls) == 1

    run(work, lister=lister)


def test_a_run_keeps_its_listing_however_old(source):
    async def work():
        clock = Clock()
        async with registry(300.0, clock) as datasets:
            first = await listed(datasets, source, "run")
            clock.now_s += 10_000
            assert (await listed(datasets, source, "run", OTHER)).listing is first.listing

    asyncio.run(work())


@pytest.mark.parametrize(("age_s", "is_shared"), [(299.0, True), (300.0, True), (301.0, False)])
def test_a_new_run_lists_again_what_is_too_old(source, age_s, is_shared):
    async def work():
        clock = Clock()
        async with registry(300.0, clock) as datasets:
            first = await listed(datasets, source, "one")
            (source / "cat" / "new.jpg").write_bytes(b"new")
            clock.now_s += age_s
            second = await listed(datasets, source, "two")
            third = await listed(datasets, source, "three")
            return first, second, third

    first, second, third = asyncio.run(work())
    assert (second.listing is first.listing) is is_shared
    assert third.listing is second.listing
    assert len(second.catalog) == (6 if is_shared else 7)
    assert len(first.catalog) == 6


def test_runs_with_equal_content_share_catalog_and_ids(source):
    async def work():
        clock = Clock()
        async with registry(300.0, clock) as datasets:
            first = await listed(datasets, source, "one")
            clock.now_s += 301.0
            second = await listed(datasets, source, "two")
            return first, second

    first, second = asyncio.run(work())
    assert second.listing is not first.listing
    assert second.catalog is first.catalog
    assert second.content == first.content
    assert second.all_ids is first.all_ids


def test_ids_are_derived_once_for_all_who_wait(source):
    async def work(datasets):
        return await asyncio.gather(*(listed(datasets, source, f"run {rank}") for rank in range(8)))

    ranks = run(work)
    assert len({dataset.dataset_id for dataset in ranks}) == 8
    assert len({id(dataset.all_ids) for dataset in ranks}) == 1


def test_a_caller_who_hangs_up_takes_nobody_with_him(source):
    lister = SlowLister()

    async def work(datasets):
        impatient = asyncio.create_task(listed(datasets, source, "one"))
        patient = asyncio.create_task(listed(datasets, source, "two"))
        while not lister.calls:  # noqa: ASYNC110  # yields to the loop, does not wait
            await asyncio.sleep(0)
        impatient.cancel()
        lister.opened.set()
        assert (await patient).ready
        with pytest.raises(asyncio.CancelledError):
            await impatient

    run(work, lister=lister)


def test_progress_answers_a_long_poll(source):
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
        await datasets.wait(dataset, listed=2600, wait_s=0.01)  # no news: it returns all the same
        assert not dataset.ready
        lister.opened.set()
        await datasets.wait(dataset, listed=2600, wait_s=ENOUGH_S)
        assert dataset.ready

    run(work, lister=lister)


def test_a_failed_listing_is_told_to_everybody_and_tried_anew_by_the_next(tmp_path):
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


def test_a_bug_in_listing_is_an_error_and_no_hang(source, caplog):
    def broken(*_):
        raise ZeroDivisionError

    async def work(datasets):
        with pytest.raises(SourceError, match="failed unexpectedly .ZeroDivisionError."):
            await listed(datasets, source)

    run(work, lister=broken)
    assert "ZeroDivisionError" in caplog.text


def test_closing_ends_a_listing_under_way(source):
    async def work(datasets):
        dataset = datasets.register(f"file://{source}", PLAIN, "", "run")
        await datasets.wait(dataset, listed=0, wait_s=ENOUGH_S)
        await datasets.close()
        with pytest.raises(SourceError, match="was cancelled"):
            await datasets.wait(dataset, listed=2**62, wait_s=ENOUGH_S)

    run(work, lister=SlowLister())


def test_what_was_registered_longest_ago_is_forgotten(source):
    async def work(datasets):
        first, second, _ = [await listed(datasets, source, f"run {number}") for number in range(3)]
        assert datasets.get(first.dataset_id) is first  # asked for: not the oldest any more
        await listed(datasets, source, "one more")
        assert datasets.get(second.dataset_id) is None
        assert datasets.get(first.dataset_id) is first
        again = await listed(datasets, source, "run 1")
        assert again.dataset_id == second.dataset_id
        assert again.ready

    run(work, capacity=3)


def test_a_listing_that_nobody_wants_any_more_is_ended(source):
    async def work(datasets):
        first = datasets.register(f"file://{source}", PLAIN, "", "run")
        datasets.register(f"file://{source}/cat", PLAIN, "", "run")
        with pytest.raises(SourceError, match="was cancelled"):
            await datasets.wait(first, listed=2**62, wait_s=ENOUGH_S)

    run(work, capacity=1, lister=SlowLister())


def test_the_length_of_a_record_follows_from_the_recipe(source):
    async def work(datasets):
        fixed = datasets.register(f"file://{source}", PLAIN, "", "run")
        free = datasets.register(f"file://{source}", Recipe.image(resize=8), "", "run")
        return fixed.record_bytes, free.record_bytes

    fixed, free = run(work)
    assert fixed == 64 + 8 * 8 * 3
    assert free > 100_000
