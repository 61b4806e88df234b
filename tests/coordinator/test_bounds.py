"""Every input of a coordinator has a bound: what goes beyond is refused, and others are served on."""

from __future__ import annotations

import threading

import pytest

from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.server import service
from superdl.super_wire.errors import CoordinatorError
from superdl.super_wire.recipe import Recipe

PLAIN = Recipe.image(resize=8, crop=8)
ENOUGH_S = 20.0


def test_listings_under_way_are_few_and_those_that_wait_are_bounded(serving_loop, source):
    go, running, most = threading.Event(), set(), []

    def lister(*arguments):
        running.add(threading.get_ident())
        most.append(len(running))
        assert go.wait(ENOUGH_S)
        running.discard(threading.get_ident())
        return list_source(*arguments)

    async def work():
        datasets = DatasetRegistry(max_age_s=300.0, lister=lister)
        try:
            made = [datasets.register(f"file://{source}/./{n * '/'}", PLAIN, "", "run") for n in range(64)]
            with pytest.raises(CoordinatorError, match="listing 64 sources already"):
                datasets.register("file:///one/more", PLAIN, "", "run")
            assert datasets.register(f"file://{source}/./", PLAIN, "", "run") is made[0]
            go.set()
            for dataset in made:
                await datasets.wait(dataset, listed=2**62, wait_s=ENOUGH_S)
            assert all(dataset.ready for dataset in made)
            assert datasets.register(f"file://{source}", PLAIN, "", "run") not in made
        finally:
            go.set()
            await datasets.close()

    serving_loop.run(work())
    assert max(most) <= 8


def test_ranks_are_bounded_over_all_jobs(run, source, monkeypatch):
    monkeypatch.setattr(service, "_MAX_RANKS", 3)

    async def work(coordinator):
        dataset = await coordinator.register(source)
        for rank in (0, 1):
            await coordinator.open(dataset, "one", replicas=2, rank=rank, batch_size=1)
        await coordinator.open(dataset, "two")
        with pytest.raises(CoordinatorError, match="its 3 ranks, over all jobs"):
            await coordinator.open(dataset, "three")
        await coordinator.open(dataset, "two")  # who is known stays so
        assert len((await coordinator.page("two")).batches) == 3

    run(work)
