"""The keeper waits a limited time for a store, rejects impossible packs and drops lost ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import threading
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest

from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.core import PacksLost, RecordsStored
from superdl.coordinator.store import index
from superdl.coordinator.store import keeper as module
from superdl.coordinator.store.index import Known, look
from superdl.coordinator.store.keeper import StoreKeeper
from superdl.coordinator.store.opening import StoreChoice, open_own
from superdl.store.contents import contents_of
from superdl.super_wire.errors import StoreRefusedError
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import pack
from superdl.super_wire.request import Outcome, PrefetchResult
from superdl.super_wire.store import DirectoryStore, PackMeta, collection_of

if TYPE_CHECKING:
    from collections.abc import Callable


RECIPE = Recipe.image(resize=4, crop=4)
FINGERPRINT = "5c" * 16


class Kept:
    """A keeper of the store in a directory, a dataset of ten files, and what it told the core."""

    def __init__(self, store, source, store_bytes):
        self.events = []
        self.source = source
        self.path = store
        self.datasets = DatasetRegistry(max_age_s=60.0)
        self.keeper = StoreKeeper(StoreChoice(str(store)), self.datasets, store_bytes, read_only=False)

    async def begin(self):
        await self.keeper.open()
        self.keeper.begin(FINGERPRINT, self.events.append)
        dataset = self.datasets.register(self.source.as_uri(), RECIPE, "", "run")
        while not dataset.ready:
            await self.datasets.wait(dataset, listed=0, wait_s=5.0)
        return dataset

    async def end(self):
        await self.keeper.close()
        await self.datasets.close()


def write_pack(store, dataset, indices, fingerprint=FINGERPRINT):
    """Write a pack as a function does."""
    bucket = dataset.catalog.bucket
    meta = PackMeta(collection_of(bucket, RECIPE.digest), bucket, RECIPE.json, fingerprint, "test")
    with DirectoryStore.open(store, create=False).begin_pack(meta) as made:
        for index in indices:
            sample_id = dataset.ids(np.array([index]), 0)
            header, payload = pack(np.full((4, 4, 3), index, dtype=np.uint8), sample_id)
            made.add(sample_id, header, payload)
        return made.commit()


@pytest.fixture
def kept(tmp_path, source):
    """Return a function that opens a store of at most ``store_bytes`` and yields its keeper and dataset."""

    @contextlib.asynccontextmanager
    async def opened(store_bytes=0):
        case = Kept(tmp_path.parent / f"{tmp_path.name}-store", source, store_bytes)
        try:
            yield case, await case.begin()
        finally:
            await case.end()

    return opened


def answer(**changes):
    """Return a function's answer after decoding two samples and writing them to the store."""
    facts = {"offsets": (64, 192), "lengths": (112, 112), "store_bytes": 1024} | changes
    outcomes = (Outcome.CACHED, Outcome.CACHED)
    return PrefetchResult("r", "test", cold_start=False, outcomes=outcomes, record_bytes=(9, 9), **facts)


class ThenAnother(DirectoryStore):
    """A store to which someone adds a pack after its packs were listed or one was removed."""

    others: Callable[[], object] = staticmethod(lambda: None)

    def packs(self):
        names = super().packs()
        self.others()
        return names

    def remove(self, pack):
        super().remove(pack)
        self.others()


async def test_a_pack_written_after_the_listing_is_found_by_the_next_look(kept):
    async with kept() as (case, dataset):
        collection, known = collection_of(dataset.catalog.bucket, RECIPE.digest), Known()
        write_pack(case.path, dataset, [0])
        store, added = ThenAnother.open(case.path, create=False), []

        def add():
            added.append(write_pack(case.path, dataset, [1, 2]))
            look(DirectoryStore.open(case.path, create=False), collection, FINGERPRINT, Known())

        store.others = add
        assert not look(store, collection, FINGERPRINT, known).useless
        del store.others
        again = look(store, collection, FINGERPRINT, known)
        assert [pack.name for pack in again.packs] == added


async def test_a_full_store_takes_no_packs_until_others_are_removed(kept, caplog):
    async with kept(store_bytes=100_000) as (case, dataset):
        keeper, packs = case.keeper, case.path / "packs"
        packs.mkdir(exist_ok=True)
        old = [packs / f"{'0' * 16}-{letter * 24}.pack" for letter in "ab"]  # of another dataset
        for path in old:
            path.write_bytes(bytes(45_000))
        await keeper.opened(dataset)
        assert keeper.takes_packs

        def report(indices, size):
            written = write_pack(case.path, dataset, indices)
            os.truncate(packs / written, size)
            keeper.process_result(dataset, np.array(indices), answer(pack=written, store_bytes=size))

        late = iter([([2, 3], 6_000), ([4, 5], 50_000)])  # after the listing, and when an old one goes
        keeper._store = ThenAnother.open(case.path, create=False)
        keeper._store.others = lambda: [report(*pack) for pack in islice(late, 1)]
        report([0, 1], 6_000)
        assert not keeper.takes_packs
        assert not keeper.unwritten  # filling the store continues
        await keeper._upkeep  # started by itself
        assert keeper.takes_packs
        assert not any(path.exists() for path in old)
        assert keeper.stored(dataset.content)[0].indices.tolist() == [0, 1, 2, 3, 4, 5]
        assert not [line for line in caplog.messages if "is full" in line]


async def test_packs_of_another_decoder_and_broken_packs_are_not_used(kept):
    async with kept() as (case, dataset):
        good = write_pack(case.path, dataset, [0, 1, 2])
        write_pack(case.path, dataset, [3, 4], "another decoder's")
        cut = write_pack(case.path, dataset, [5, 6])
        os.truncate(case.path / "packs" / cut, 100)
        await case.keeper.opened(dataset)
        (event,) = case.keeper.stored(dataset.content)
        assert isinstance(event, RecordsStored)
        assert event.indices.tolist() == [0, 1, 2]
        assert len(case.keeper.room.useless) == 2
        places = case.keeper.places.of(dataset.content, np.array([2, 3]))
        assert (places.packs, places.pack_of.tolist()) == ((good,), [1, 0])


class Another(DirectoryStore):
    """A store with some packs and segments of another user, unreadable for everyone else."""

    private: frozenset[str] = frozenset()

    def read_index(self, pack, size):
        self._check(pack)
        return super().read_index(pack, size)

    def read_segment(self, name):
        self._check(name)
        return super().read_segment(name)

    def _check(self, name):
        if name in self.private:
            raise StoreRefusedError(f"{self.address}/{name}: Permission denied")


async def test_another_users_private_packs_hide_no_others(kept, caplog):
    async with kept() as (case, dataset):
        collection = collection_of(dataset.catalog.bucket, RECIPE.digest)
        private = {write_pack(case.path, dataset, [n]) for n in range(4)}
        look(DirectoryStore.open(case.path, create=False), collection, FINGERPRINT, Known())
        store = Another.open(case.path, create=False)
        good = write_pack(case.path, dataset, [8, 9])
        store.private = frozenset(private | set(store.segments()))
        changes = look(store, collection, FINGERPRINT, Known())
        assert [pack.name for pack in changes.packs] == [good]
        assert (changes.useless, changes.gone) == (frozenset(), frozenset())
        contents = contents_of(store, 0.0)
        assert contents.broken.keys() == private
        assert contents.collections[collection].records == 2
        assert sum("4 packs of the store" in line for line in caplog.messages) == 1


async def test_packs_that_others_add_and_remove_are_noticed_when_a_job_opens(kept):
    async with kept() as (case, dataset):
        first = write_pack(case.path, dataset, [0, 1])
        await case.keeper.opened(dataset)
        write_pack(case.path, dataset, [7])
        (case.path / "packs" / first).unlink()
        await case.keeper.opened(dataset)
        (event,) = case.keeper.stored(dataset.content)
        assert event.indices.tolist() == [7]
        (lost,) = [event for event in case.events if isinstance(event, PacksLost)]
        assert lost.packs.tolist() == [case.keeper.places.number(first)]


async def test_a_result_with_an_impossible_pack_is_rejected(kept):
    async with kept() as (case, dataset):
        await case.keeper.opened(dataset)
        collection, indices = collection_of(dataset.catalog.bucket, RECIPE.digest), np.array([0, 1])
        name = f"{collection}-{'a' * 24}.pack"
        for lie in (
            {"pack": f"{'0' * 16}-{'a' * 24}.pack"},
            {"pack": f"{name}/../../x"},
            {"pack": name, "offsets": (64, 1000)},
            {"pack": name, "lengths": (112, 3)},
        ):
            assert case.keeper.process_result(dataset, indices, answer(**lie)) == (0, None)
            assert "an invalid pack" in case.keeper.problem
        assert case.keeper.stored(dataset.content) == []
        number, stored = case.keeper.process_result(dataset, indices, answer(pack=name, offsets=(64, 0)))
        assert (number, stored.tolist(), case.keeper.problem) == (1, [True, False], "")
        assert case.keeper.stored(dataset.content)[0].indices.tolist() == [0]


async def test_a_removed_store_is_created_again_unless_its_disk_is_missing(kept, monkeypatch, caplog):
    async with kept() as (case, dataset):
        keeper, at = case.keeper, np.array([0, 1])
        first = write_pack(case.path, dataset, [0, 1])
        await keeper.opened(dataset)
        await asyncio.gather(*keeper._tasks._running)  # let it write the index
        shutil.rmtree(case.path)
        keeper.process_result(dataset, at, answer(offsets=(), store_trouble="a function could not write"))
        for _ in range(3):  # it checks, recreates the directory, then finds nothing wrong
            keeper.step()
            await keeper._upkeep
        assert (keeper.takes_packs, keeper.problem) == (True, "")
        assert stat.S_IMODE(case.path.stat().st_mode) == 0o700
        assert keeper.store_id == DirectoryStore.open(case.path, create=False).id
        assert keeper.stored(dataset.content) == []
        (lost,) = [event for event in case.events if isinstance(event, PacksLost)]
        assert lost.packs.tolist() == [keeper.places.number(first)]
        keeper.process_result(dataset, at, answer(pack=write_pack(case.path, dataset, [0, 1])))
        assert keeper.stored(dataset.content)[0].indices.tolist() == [0, 1]
        messages = [record.getMessage().removeprefix(f"the store {case.path}") for record in caplog.records]
        assert messages == [": its directory was removed or replaced"]

        # Simulate that the store's disk is gone and the path is on another filesystem.
        monkeypatch.setattr(module, "filesystem_of", lambda _: -1)
        shutil.rmtree(case.path)
        keeper.process_result(dataset, at, answer(offsets=(), store_trouble="a function could not write"))
        for _ in range(3):
            keeper._due_s["open"] = 0.0
            keeper.step()
            await keeper._upkeep
        assert not case.path.exists()
        assert (keeper.takes_packs, "does not exist" in keeper.problem) == (False, True)


async def test_a_store_that_returns_serves_the_jobs_that_started_without_it(kept):
    async with kept() as (case, dataset):
        keeper = case.keeper
        write_pack(case.path, dataset, [0, 1])
        case.path.rename(f"{case.path}-unmounted")
        case.path.write_bytes(b"no store")
        case.datasets.open(dataset)
        keeper._store = None  # as if the store had not responded at startup
        await keeper.opened(dataset)
        assert keeper.stored(dataset.content) == []
        case.path.unlink()
        case.path.with_name(f"{case.path.name}-unmounted").rename(case.path)
        keeper.step()
        await keeper._upkeep
        (event,) = case.events
        assert event.indices.tolist() == [0, 1]
        at, written = np.array([2, 3]), write_pack(case.path, dataset, [2, 3])
        number, _ = keeper.process_result(dataset, at, answer(pack=written))
        places = keeper.places.of(dataset.content, at)
        assert (number, len(places.packs), places.pack_of.tolist()) == (2, 1, [1, 1])


async def test_files_of_dead_writers_are_swept(kept):
    async with kept() as (case, _):
        case.keeper.step()
        await case.keeper._upkeep
        dead, begun = (case.path / "tmp" / name for name in ("left by one that was killed", "being written"))
        begun.touch()
        dead.touch()
        os.utime(dead, (1, 1))
        case.keeper._due_s = dict.fromkeys(case.keeper._due_s, 0.0)  # an hour has passed
        case.keeper.step()
        await case.keeper._upkeep
        assert (dead.exists(), begun.exists()) == (False, True)


async def test_a_job_does_not_wait_for_a_silent_store(kept, monkeypatch):
    async with kept() as (case, dataset):
        write_pack(case.path, dataset, [0, 1])
        answers, posted = threading.Event(), asyncio.Event()

        def look_late(*arguments):
            answers.wait(20)
            return look(*arguments)

        case.keeper.begin(FINGERPRINT, lambda event: (case.events.append(event), posted.set()))
        case.datasets.open(dataset)
        monkeypatch.setattr(index, "look", look_late)
        monkeypatch.setattr(module, "_LOOK_S", 0.1)
        await case.keeper.opened(dataset)
        assert case.keeper.stored(dataset.content) == []
        assert "not listed within 0.1 s" in case.keeper.problem  # superdl stats shows it
        answers.set()
        await asyncio.wait_for(posted.wait(), 20)
        assert (case.events[0].indices.tolist(), case.keeper.problem) == ([0, 1], "")


async def test_an_unusable_default_store_is_not_used(source):
    choice = StoreChoice(str(source), by_default=True)
    keeper = StoreKeeper(choice, DatasetRegistry(max_age_s=1.0), 0, read_only=False)
    await keeper.open()
    assert not keeper.takes_packs
    assert "kept only in the cache" in keeper.store_use
    await keeper.close()


async def test_a_store_that_takes_long_to_open_is_opened_once(tmp_path, monkeypatch):
    may_end, begun = threading.Event(), []

    def open_slowly(*arguments, **options):
        begun.append(arguments)
        may_end.wait(60)
        return open_own(*arguments, **options)

    monkeypatch.setattr(module, "open_own", open_slowly)
    monkeypatch.setattr(module, "_OPENING_S", 0.05)
    choice = StoreChoice(str(tmp_path / "store"))
    keeper = StoreKeeper(choice, DatasetRegistry(max_age_s=1.0), 0, read_only=False)
    for _ in range(3):
        await keeper.open()
        assert "did not respond" in keeper.store_use
    may_end.set()
    monkeypatch.setattr(module, "_OPENING_S", 60.0)
    await keeper.open()
    assert keeper.takes_packs
    assert len(begun) == 1
    await keeper.close()
