"""What the engine accounts for an invocation: time and memory as billed where they are told, else its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from superdl.coordinator.executors.base import ConnectionLostError, FunctionRaisedError, PayloadTooLargeError

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


def made(kind, **facts):
    error = kind("once")
    for name, value in facts.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("error", "gb_s", "unbilled"),
    [
        (made(FunctionRaisedError, ran_s=2.0), 2.0 * MEMORY_GB, 0),
        (made(ConnectionLostError, ran_s=3.0), 3.0 * MEMORY_GB, 0),  # it may have run before
        (made(PayloadTooLargeError, refused=True), 0.0, 1),  # before it was sent
    ],
)
def test_what_ran_and_failed_is_billed_and_what_was_never_sent_is_not(run, source, error, gb_s, unbilled):
    async def work(coordinator):
        async def fail_first(_):
            coordinator.executor.before = None
            raise error

        coordinator.executor.before = fail_first
        await coordinator.open(await coordinator.register(source))
        counters = coordinator.engine.core.job("job").counters
        await coordinator.until(lambda: counters.samples_produced == 10)
        assert counters.gb_s == pytest.approx(gb_s)
        assert counters.invocations == len(coordinator.executor.requests) - unbilled
        assert counters.samples_failed == 0

    run(work, backoff_s=0.001, backoff_max_s=0.002)


def test_an_answer_that_cannot_be_used_is_billed(run, source):
    async def work(coordinator):
        answers = iter([{"outcomes": (), "billed_us": 2_000_000}])
        coordinator.executor.edit = lambda result: replace(result, duration_us=0, **next(answers, {}))
        await coordinator.open(await coordinator.register(source))
        counters = coordinator.engine.core.job("job").counters
        await coordinator.until(lambda: counters.samples_produced == 10)
        assert counters.gb_s == pytest.approx(2.0 * MEMORY_GB)

    run(work, backoff_s=0.001, backoff_max_s=0.002)
