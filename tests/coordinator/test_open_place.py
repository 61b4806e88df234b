"""Where a rank says that it will begin is where looking ahead begins, not at the first epoch."""

from __future__ import annotations

import pytest

from superdl.coordinator.core import SampleState
from superdl.super_wire.errors import PlanError
from superdl.super_wire.recipe import Recipe

RANDOM = Recipe([{"op": "random_resized_crop", "size": 4}], augment_seed=1)


async def at_rest(coordinator):
    """No function is cut off in the middle of its connection to the cache."""
    core = coordinator.engine.core
    await coordinator.until(
        lambda: core.samples_in(SampleState.RESIDENT) and not core.samples_in(SampleState.IN_FLIGHT)
    )


def test_looking_ahead_begins_where_the_rank_will(run, source):
    async def work(coordinator):
        dataset = await coordinator.register(source, recipe=RANDOM)  # each epoch has samples of its own
        await coordinator.open(dataset, epoch=7, position=2)
        cursor = coordinator.engine.core.job("job").cursors[0]
        assert (cursor.watermark, cursor.yielded) == (7 * 3 + 2, 7 * 3 + 2)
        await coordinator.until(lambda: len(coordinator.executor.keys_asked) >= 2)
        requests = coordinator.executor.requests
        assert all(request.epoch >= 7 for request in requests)
        assert (requests[0].epoch, requests[0].keys[0]) == (7, "dog/3.jpg")
        page = await coordinator.page(epoch=7, position=2, yielded=2)
        assert [batch.position for batch in page.batches] == [2]
        assert cursor.watermark == 7 * 3 + 2, "the sampler is where it said"
        await at_rest(coordinator)

    run(work)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ({"position": 4}, r"3 batches.*there is no position 4"),
        ({"epoch": 2**40 + 1}, "epoch is from 0 to"),
        ({"epoch": 2**63, "position": 2**63}, "epoch is from 0 to"),
    ],
)
def test_a_place_that_no_epoch_has_is_refused(run, source, place, reason):
    async def work(coordinator):
        dataset = await coordinator.register(source)
        with pytest.raises(PlanError, match=reason):
            await coordinator.open(dataset, **place)
        assert coordinator.engine.core.jobs == []

    run(work)
