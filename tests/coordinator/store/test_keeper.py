"""The keeper: waits a bounded time for a store, believes no impossible pack, and forgets what is gone."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.core import PacksLost, RecordsStored
from superdl.coordinator.store import StoreChoice
from superdl.coordinator.store import keeper as module
from superdl.coordinator.store.index import look
from superdl.coordinator.store.keeper import StoreKeeper
from superdl.super_wire.errors import StoreFormatError
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import pack
from superdl.super_wire.request import Outcome, PrefetchResult
from superdl.super_wire.store import DirectoryStore, PackMeta, collection_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from superdl.coordinator.catalog.datasets import Dataset

RECIPE = Recipe.image(resize=4, crop=4)
FINGERPRINT = "5c" * 16


class Kept:
    """A keeper of the store in a directory, with a dataset of ten files, and what it told the core."""

    def __init__(self, store: Path, source: Path) -> None:
        self.events: list[Any] = []
        self.source = source
        self.path = store
        self.datasets = DatasetRegistry(max_age_s=60.0)
        self.keeper = StoreKeeper(StoreChoice(str(store)), self.datasets, 0, read_only=False)

    async def begin(self) -> Dataset:
        await self.keeper.open()
        self.keeper.begin(FINGERPRINT, self.events.append)
        dataset = self.datasets.register(self.source.as_uri(), RECIPE, "", "run")
        while not dataset.ready:
            await self.datasets.wait(dataset, listed=0, wait_s=5.0)
        return dataset

    async def end(self) -> None:
        await self.keeper.close()
        await self.datasets.close()


def write_pack(store: Path, dataset: Dataset, indices: list[int], fingerprint: str = FINGERPRINT) -> str:
    """A pack as a function writes it."""
    bucket = dataset.catalog.bucket
    meta = PackMeta(collection_of(bucket, RECIPE.digest), bucket, RECIPE.json, fingerprint, "test")
    with DirectoryStore.open(store, create=False).begin_pack(meta) as made:
        for index in indices:
            sample_id = dataset.ids(np.array([index]), 0)
            header, payload = pack(np.full((4, 4, 3), index, dtype=np.uint8), sample_id)
            made.add(sample_id, header, payload)
        return made.commit()


@pytest.fixture
def kept(tmp_path: Path, source: Path) -> Callable[[Callable[[Kept, Any], Awaitable[None]]], None]:
    """Runs ``work(kept, dataset)`` with an open store."""

    def run(work: Callable[[Kept, Any], Awaitable[None]]) -> None:
        async def body() -> None:
            one = Kept(tmp_path.parent / f"{tmp_path.name}-store", source)
            try:
                await work(one, await one.begin())
            finally:
                await one.end()

        asyncio.run(body())

    return run


def answer(**changes: Any) -> PrefetchResult:
    """What a function says that has decoded two samples and written them."""
    columns = dict.fromkeys(("fetch_us", "decode_us", "push_us", "source_bytes"), (1, 1))
    facts: dict[str, Any] = {"offsets": (64, 192), "lengths": (112, 112), "store_bytes": 1024} | changes
    outcomes = (Outcome.CACHED, Outcome.CACHED)
    return PrefetchResult(
        "r", "test", cold_start=False, outcomes=outcomes, record_bytes=(9, 9), **columns, **facts
    )


def test_packs_of_another_decoder_and_broken_ones_are_not_used(kept):
    async def work(one, dataset):
        good = write_pack(one.path, dataset, [0, 1, 2])
        write_pack(one.path, dataset, [3, 4], "another decoder's")
        cut = write_pack(one.path, dataset, [5, 6])
        os.truncate(one.path / "packs" / cut, 100)
        await one.keeper.opened(dataset)
        (event,) = one.keeper.stored(dataset.content)
        assert isinstance(event, RecordsStored)
        assert event.indices.tolist() == [0, 1, 2]
        assert len(one.keeper.room.useless) == 2
        places = one.keeper.places.of(dataset.content, np.array([2, 3]))
        assert (places.packs, places.pack_of.tolist()) == ((good,), [1, 0])

    kept(work)


def test_what_others_add_and_remove_is_seen_at_the_next_opening(kept):
    async def work(one, dataset):
        first = write_pack(one.path, dataset, [0, 1])
        await one.keeper.opened(dataset)
        write_pack(one.path, dataset, [7])
        (one.path / "packs" / first).unlink()
        await one.keeper.opened(dataset)
        (event,) = one.keeper.stored(dataset.content)
        assert event.indices.tolist() == [7]
        (lost,) = [event for event in one.events if isinstance(event, PacksLost)]
        assert lost.packs.tolist() == [one.keeper.places.number(first)]

    kept(work)


def test_an_answer_that_names_an_impossible_pack_is_not_believed(kept):
    async def work(one, dataset):
        await one.keeper.opened(dataset)
        collection, indices = collection_of(dataset.catalog.bucket, RECIPE.digest), np.array([0, 1])
        name = f"{collection}-{'a' * 24}.pack"
        for lie in (
            {"pack": f"{'0' * 16}-{'a' * 24}.pack"},
            {"pack": f"{name}/../../x"},
            {"pack": name, "offsets": (64, 1000)},
            {"pack": name, "lengths": (112, 3)},
        ):
            assert one.keeper.heard(dataset, indices, answer(**lie)) == (0, None)
            assert "which cannot be" in one.keeper.trouble
        assert one.keeper.stored(dataset.content) == []
        number, stored = one.keeper.heard(dataset, indices, answer(pack=name, offsets=(64, 0)))
        assert (number, stored.tolist(), one.keeper.trouble) == (1, [True, False], "")
        assert one.keeper.stored(dataset.content)[0].indices.tolist() == [0]

    kept(work)


def test_a_store_that_does_not_answer_is_not_waited_for(kept, monkeypatch):
    async def work(one, dataset):
        write_pack(one.path, dataset, [0, 1])
        answers, told = threading.Event(), asyncio.Event()

        def look_late(*arguments):
            answers.wait(20)
            return look(*arguments)

        one.keeper.begin(FINGERPRINT, lambda event: (one.events.append(event), told.set()))
        one.datasets.open(dataset)
        monkeypatch.setattr(module, "look", look_late)
        monkeypatch.setattr(module, "_LOOK_S", 0.1)
        await one.keeper.opened(dataset)
        assert one.keeper.stored(dataset.content) == []
        answers.set()
        await asyncio.wait_for(told.wait(), 20)
        assert one.events[0].indices.tolist() == [0, 1]

    kept(work)


def test_what_is_no_store_ends_the_start(source):
    async def body():
        keeper = StoreKeeper(StoreChoice(str(source)), DatasetRegistry(max_age_s=1.0), 0, read_only=False)
        with pytest.raises(StoreFormatError):
            await keeper.open()

    asyncio.run(body())
