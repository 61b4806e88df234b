"""The ``lambda`` executor by asynchronous invocations: the outcome comes through the cache.

For thousands of functions at once: a thread is busy for as long as Lambda takes to say 202, not for as long
as a function runs. What differs from waiting for answers (:mod:`superdl.coordinator.executors.aws_lambda`):

- Lambda queues what it has accepted, and would retry what fails. The function is to have no retries and a
  maximum event age of 60 s, as the template sets them: retries are the core's, and what is late is of no use.
  A request that reaches a function after its expiry fetches nothing.
- A function that crashes, or whose event is dropped, says nothing: that shows when the time limit is over.
  What came too soon Lambda does not refuse but keeps, tries again after 1, 2, 4 ... seconds, and drops: the
  core sees it by how late functions begin.
- A function that may not append to the stream would be silent as well. So the first invocation waits for its
  answer and for its outcome, and the next ones too, one at a time, until both have come.
- Lambda tells no bill: an invocation is accounted for with the function's own time, in whole milliseconds,
  without the start of its environment; one without an outcome not at all.
"""

from __future__ import annotations

import asyncio
import enum
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.aws_lambda import LambdaExecutor
from superdl.coordinator.executors.base import (
    ConnectionLostError,
    FunctionLostError,
    FunctionRaisedError,
    FunctionTimedOutError,
)
from superdl.coordinator.executors.lambda_answers import another_version, read_result
from superdl.coordinator.executors.lambda_errors import from_function
from superdl.super_wire.request import PrefetchFailure
from superdl.super_wire.version import installed_version

if TYPE_CHECKING:
    from superdl.coordinator.cache.outcomes import OutcomeReader
    from superdl.super_wire.outcomes import Answer
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = ["LambdaEventExecutor"]

_MAX_RUN_US = 900_000_000
"""A function of Lambda runs for 15 minutes at most."""

_CALLS = 32
"""Calls at once: with some 20 ms each, AWS is sent 1,600 requests a second."""


class _WayBack(enum.Enum):
    """What is known of whether functions reach the stream."""

    UNKNOWN = enum.auto()
    TRIED = enum.auto()  # now, by another invocation
    KNOWN = enum.auto()


class LambdaEventExecutor(LambdaExecutor):
    """A deployed function that answers through the cache.

    Args:
        function: its name, ARN or name:alias.
        outcomes: brings the answers; to be followed while requests are made.
        options: as :class:`LambdaExecutor` has them. ``concurrency`` bounds the requests whose outcome has
            not come yet.

    Raises:
        ConfigError: a setting cannot be meant.
    """

    def __init__(self, function: str, *, outcomes: OutcomeReader, **options: Any) -> None:
        super().__init__(function, calls=_CALLS, **options)
        self._outcomes = outcomes
        self.scaling = replace(self.scaling, queues=True)
        self._way_back = _WayBack.UNKNOWN

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run one request; see :class:`superdl.coordinator.executors.base.Executor`.

        Raises:
            ThrottledError: Lambda does not even queue it for now.
            FunctionLostError: no outcome came within ``timeout_s``.
            ConnectionLostError: the cache lost the stream of its outcome, or the connection broke.
            FunctionRaisedError: the function raised.
            PayloadTooLargeError: the request is larger than Lambda takes.
            ExecutorError: Lambda did not take it.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        asked = replace(self._asked(request), answer_to=self._outcomes.stream)
        with self._outcomes.expecting(request.request_id) as outcome:
            if self._way_back is _WayBack.UNKNOWN:
                return await self._try_way_back(asked, outcome, until_s, timeout_s)
            await self._call(asked.to_json().encode(), lambda _reply, _ran_s: None, timeout_s, "Event")
            taken_s = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout_at(until_s):
                    answer = await outcome
            except TimeoutError:
                msg = (
                    f"no outcome of {self._target} came through the cache within {timeout_s:.1f} s: it "
                    "crashed, could not reach the cache, or Lambda dropped the event; see its log and its "
                    "metrics Errors and AsyncEventsDropped"
                )
                raise FunctionLostError(msg) from None
            except ConnectionLostError as error:
                error.ran_s = asyncio.get_running_loop().time() - taken_s  # as long as that at most
                raise
        result = self._read(answer)
        self._clock.told(result.clock_s)
        return result

    async def _try_way_back(
        self, asked: PrefetchRequest, outcome: asyncio.Future[Answer], until_s: float, timeout_s: float
    ) -> PrefetchResult:
        """An invocation that waits, so that what keeps functions from appending outcomes is told."""
        self._way_back = _WayBack.TRIED
        try:
            result = await self._call(
                asked.to_json().encode(),
                lambda reply, ran_s: read_result(reply, self._target, asked.request_id, ran_s),
                timeout_s,
            )
            self._clock.told(result.clock_s)
            try:
                async with asyncio.timeout_at(until_s):
                    await outcome
            except TimeoutError:
                msg = (
                    f"{self._target} answered, and no outcome of it is in the cache at {self._cache}: see "
                    "that this address leads functions and the coordinator to the same cache"
                )
                error = FunctionTimedOutError(msg)
                error.ran_s = result.billed_us / 1e6
                raise error from None
            self._way_back = _WayBack.KNOWN
        finally:
            if self._way_back is _WayBack.TRIED:
                self._way_back = _WayBack.UNKNOWN
        return result

    def _read(self, answer: Answer) -> PrefetchResult:
        if answer.duration_us > _MAX_RUN_US:
            msg = f"{self._target} says that it ran for {answer.duration_us} us, which no function may"
            raise FunctionRaisedError(msg)
        billed_us = math.ceil(answer.duration_us / 1000) * 1000  # AWS bills whole milliseconds
        if isinstance(answer, PrefetchFailure):
            said = json.dumps({"errorType": answer.error, "errorMessage": answer.message}).encode()
            failed = from_function(said, self._target, memory_mb=answer.memory_mb)
        elif answer.function_version != installed_version():
            failed = FunctionRaisedError(str(another_version(answer.function_version, self._target)))
        else:
            return replace(answer, billed_us=billed_us)
        failed.ran_s = billed_us / 1e6
        raise failed
