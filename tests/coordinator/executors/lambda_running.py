"""Makes a Lambda executor for the Lambda service of the tests, and runs it around a coroutine."""

from __future__ import annotations

import asyncio

from coordinator.executors.aws_lambda import LambdaExecutor
from tests.coordinator.executors import lambda_functions


def executor_for(service, cache="", function="super-prefetch", **changes):
    return LambdaExecutor(function, cache=cache, **{"warm": 1, "endpoint_url": service.url, **changes})


def handler_of(name):
    """A handler of :mod:`tests.coordinator.executors.lambda_functions` as Lambda names it."""
    return f"{lambda_functions.MODULE}.{name}"


def using(executor, work):
    """Runs ``work(executor)`` while the executor runs."""

    async def body():
        try:
            await executor.start()
            return await work(executor)
        finally:
            await executor.close()

    return asyncio.run(body())
