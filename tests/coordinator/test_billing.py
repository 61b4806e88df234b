"""What the engine accounts for an invocation: time and memory as billed where they are told, else its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.executors import FunctionRaisedError

MEMORY_GB = 1769 / 1024


@pytest.mark.parametrize(
    ("told", "gb_s"),
    [
        ({"duration_us": 500_000}, 0.5 * MEMORY_GB),
        ({"duration_us": 500_000, "billed_us": 750_000}, 0.75 * MEMORY_GB),
        ({"duration_us": 500_000, "billed_us": 750_000, "memory_mb": 512}, 0.75 * 0.5),
    ],
)
def test_gigabyte_seconds_are_those_that_are_billed(run, source, told, gb_s):
    async def work(coordinator):
        coordinator.executor.edit = lambda result: replace(result, **told)
        await coordinator.open(await coordinator.register(source))
        counters = coordinator.engine.core.job("job").counters
        await coordinator.until(lambda: counters.samples_produced == 10)
        assert counters.gb_s == pytest.approx(gb_s * counters.invocations)

    run(work)


def test_what_ran_and_failed_is_billed_too(run, source):
    async def work(coordinator):
        async def fail_first(request):
            coordinator.executor.before = None
            error = FunctionRaisedError("once")
            error.ran_s = 2.0
            raise error

        coordinator.executor.before = fail_first
        await coordinator.open(await coordinator.register(source))
        counters = coordinator.engine.core.job("job").counters
        await coordinator.until(lambda: counters.samples_produced == 10)
        assert counters.gb_s == pytest.approx(2.0 * MEMORY_GB)

    run(work, backoff_s=0.001, backoff_max_s=0.002)
