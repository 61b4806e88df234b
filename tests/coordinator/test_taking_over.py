"""Who comes second to a cache starts no function: it would cost money, and be for nothing."""

from __future__ import annotations

import asyncio

import pytest

from superdl.coordinator.cache.cache import Cache, LockHeldError
from superdl.coordinator.server.upkeep import warm_and_take_over
from superdl.super_wire.cancelling import cancel_and_wait
from tests.coordinator.executors.lambda_running import executor_for

RENEWAL_S = 0.1


def test_no_function_is_warmed_for_a_cache_that_another_coordinator_owns(lambda_service, valkey):
    async def own(cache: Cache) -> None:
        while True:
            await cache.hold_lock()
            await asyncio.sleep(RENEWAL_S)

    async def body() -> None:
        first, second = Cache(valkey.url, owner=""), Cache(valkey.url, owner="")
        executor = executor_for(lambda_service, valkey.url)
        await first.hold_lock()
        owning = asyncio.create_task(own(first))
        try:
            with pytest.raises(LockHeldError, match="name it by SUPER_COORDINATOR"):
                await warm_and_take_over(executor, second)
        finally:
            await cancel_and_wait(owning)
            await executor.close()
            await second.close()
            await first.close()

    asyncio.run(body())
    assert not lambda_service.invocations


def test_the_lock_is_kept_while_functions_are_warmed(lambda_service, valkey, monkeypatch):
    monkeypatch.setattr("superdl.coordinator.server.upkeep.LOCK_TTL_S", 0.04)
    held = []

    class Counting(Cache):
        async def hold_lock(self) -> bool:
            held.append(lambda_service.refused)
            return await super().hold_lock()

    async def body() -> None:
        cache = Counting(valkey.url, owner="")
        executor = executor_for(lambda_service, valkey.url)
        lambda_service.throttle_next(1)  # warming goes on after a second
        try:
            await warm_and_take_over(executor, cache)
        finally:
            await executor.close()
            await cache.close()

    asyncio.run(body())
    assert held.count(1) > 1  # again and again after the throttling
    assert len(lambda_service.invocations) == 1
