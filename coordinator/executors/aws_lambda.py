"""The ``lambda`` executor: functions in environments of AWS Lambda, invoked by boto3 in threads.

An invocation waits for its answer (``RequestResponse``), or its outcome comes
through the cache (``Event``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from superdl.coordinator.executors.base import (
    ConnectionLostError,
    Executor,
    ExecutorError,
    FunctionLostError,
    FunctionTimedOutError,
    Scaling,
    ThrottledError,
    setting,
)
from superdl.coordinator.executors.lambda_answers import read_outcome, read_reply, read_warm_reply
from superdl.coordinator.executors.messages import FunctionClock, warm_event
from superdl.super_wire.cancelling import CallingThreads
from superdl.super_wire.errors import CacheError, ConfigError
from superdl.super_wire.protocol import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.cache.streams import OutcomeReader
    from superdl.coordinator.executors.base import ExecutorContext
    from superdl.coordinator.executors.lambda_client import Reply
    from superdl.coordinator.executors.messages import Warmed
    from superdl.super_wire.request import Answer, PrefetchRequest, PrefetchResult

__all__ = ["LambdaExecutor", "LambdaSettings"]

_log = logging.getLogger(__name__)

_BURST = 1000
_PER_S = 100.0  # AWS adds 1,000 environments in 10 seconds
_WARM_TIMEOUT_S = 60.0
_WARM_ATTEMPTS = 30
_THROTTLED_PAUSE_S = 1.0
_READ_MARGIN_S = 30.0  # the engine gives up on an answer before its connection does
# Events sent concurrently. At about 20 ms each, AWS gets 1,600 requests a second.
_EVENT_CALLS = 32

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class LambdaSettings:
    """Settings of the lambda executor."""

    lambda_function: str = setting(
        "super-prefetch", "name, ARN or alias of the deployed function (super-prefetch)"
    )
    lambda_region: str = setting("", "its AWS region, if it is not the environment's")
    lambda_endpoint_url: str = setting("", "where Lambda's API is, if it is not AWS")
    lambda_invocation: str = setting(
        "RequestResponse", "RequestResponse (default) or Event", choices=("RequestResponse", "Event")
    )
    lambda_concurrency: int = setting(100, "invocations at once, at most (100)", low=1, high=10_000)
    lambda_warm: int = setting(8, "functions to start before the first batch (8)", low=0, high=1000)


class LambdaExecutor(Executor):
    """A deployed function."""

    name = "lambda"
    remote = True
    uses_aws = True
    told = ("lambda_function", "lambda_region", "lambda_concurrency")
    first_look: ClassVar = {"lambda_warm": 1}

    def __init__(self, settings: LambdaSettings, context: ExecutorContext) -> None:
        # boto3 is slow to import, and reading settings does not need it.
        from superdl.coordinator.executors.lambda_client import LambdaClient, Target

        self._outcomes = context.outcomes if self.answers_by_stream(settings) else None
        at_once = settings.lambda_concurrency
        self.scaling = Scaling(
            at_once, burst=min(_BURST, at_once), per_s=_PER_S, backlog=0, queues=self._outcomes is not None
        )
        self._cache = context.cache
        # With events, a thread is busy only until Lambda returns 202: few suffice for many functions.
        self._calls = at_once if self._outcomes is None else min(_EVENT_CALLS, at_once)
        self._warm = min(max(1, settings.lambda_warm), self._calls)
        self.fingerprint = ""
        self._clock = FunctionClock()
        self._was_throttled = False
        self._is_trying_stream, self._reaches_stream = False, False
        self._client = LambdaClient(
            Target(settings.lambda_function, settings.lambda_region, settings.lambda_endpoint_url),
            connections=self._calls,
            read_timeout_s=context.request_timeout_s + _READ_MARGIN_S,
        )
        self.target = self._client.target
        self.region = self.target.region
        self._threads = CallingThreads(self._calls, "super-lambda")

    @classmethod
    def answers_by_stream(cls, settings: LambdaSettings) -> bool:
        """Return whether Lambda only accepts the event."""
        return settings.lambda_invocation == "Event"

    async def start(self) -> None:
        """Start environments, each with its connection to the cache, and check that they match.

        ``ConfigError``: there is no such function or there are no credentials, or the
        function is another version of SUPER, or its environments decode differently.
        """
        answers = await asyncio.gather(*(self._warm_one() for _ in range(self._warm)), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        warmed = [answer for answer in answers if not isinstance(answer, BaseException)]
        # Once an environment is warm, ExecutorErrors of others are no reason to give up.
        fatal = [failure for failure in failures if not warmed or not isinstance(failure, ExecutorError)]
        if fatal:
            # Prefer an error that says more than throttling.
            error = next((error for error in fatal if not isinstance(error, ThrottledError)), fatal[0])
            if isinstance(error, ExecutorError) and error.wrong_settings:
                raise ConfigError(str(error)) from error
            raise error
        digests = sorted({answer.fingerprint for answer in warmed})
        if len(digests) > 1:
            raise ConfigError(
                f"{self.target} decodes images differently from one environment to the next "
                f"({', '.join(digests)}): deploy it again, for one architecture, from one package"
            )
        self.fingerprint = digests[0]
        if failures:
            _log.warning("%d of %d environments did not start: %s", len(failures), self._warm, failures[0])
        _log.info("%s: %d environments are warm", self.target, len(warmed))

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run one request; see :class:`superdl.coordinator.executors.base.Executor`."""
        # In the functions' clock, and for the warmed functions alone: others refuse it.
        request = replace(
            request,
            expires_at=max(0.0, request.expires_at + self._clock.ahead_s),
            golden=self.fingerprint,
            function_version=installed_version(),
        )
        if self._outcomes is None:
            result = await self._answer(request, timeout_s)
        else:
            result = await self._outcome(request, self._outcomes, timeout_s)
        self._clock.told(result.clock_s)
        return result

    async def close(self) -> None:
        """Close without waiting for threads. AWS ends the invocations in progress."""
        self._threads.close(ExecutorError("the executor is closed"))
        self._client.close()

    async def _answer(self, request: PrefetchRequest, timeout_s: float) -> PrefetchResult:
        def read(reply: Reply, ran_s: float) -> PrefetchResult:
            return read_reply(reply, self.target, request.request_id, ran_s)

        return await self._call(request.to_json().encode(), read, timeout_s)

    async def _outcome(
        self, request: PrefetchRequest, outcomes: OutcomeReader, timeout_s: float
    ) -> PrefetchResult:
        """Run a request by an event. Its outcome comes through the cache."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        event_request = replace(request, answer_to=outcomes.stream)
        with outcomes.expecting(event_request.request_id) as outcome:
            # The first invocations wait for both answer and outcome, one at a time,
            # so that a function that may not append to the stream is reported.
            if not (self._reaches_stream or self._is_trying_stream):
                return await self._try_stream(event_request, outcome, until_s, timeout_s)
            await self._call(
                event_request.to_json().encode(), lambda _reply, _ran_s: None, timeout_s, "Event"
            )
            taken_s = loop.time()
            try:
                # Lambda queues excess events, retries them after 1, 2, 4 ... seconds and
                # drops them; a crash, too, is only noticed when the time has passed.
                async with asyncio.timeout_at(until_s):
                    answer = await outcome
            except TimeoutError:
                raise FunctionLostError(
                    f"no outcome of {self.target} came through the cache within {timeout_s:.1f} s: it "
                    "crashed, could not reach the cache, or Lambda dropped the event; see its log and its "
                    "metrics Errors and AsyncEventsDropped"
                ) from None
            except CacheError as error:
                lost = ConnectionLostError(str(error))
                lost.ran_s = loop.time() - taken_s  # an upper bound
                raise lost from error
        # Lambda reports no bill for events: the function's own time counts, without
        # its environment's start.
        return read_outcome(answer, self.target)

    async def _try_stream(
        self, request: PrefetchRequest, outcome: asyncio.Future[Answer], until_s: float, timeout_s: float
    ) -> PrefetchResult:
        """Run a request by a waiting call, to learn what keeps outcomes from being appended."""
        self._is_trying_stream = True
        try:
            result = await self._answer(request, timeout_s)
            try:
                async with asyncio.timeout_at(until_s):
                    await outcome
            except TimeoutError:
                error = FunctionTimedOutError(
                    f"{self.target} answered, and no outcome of it is in the cache at {self._cache}: see "
                    "that this address leads functions and the coordinator to the same cache"
                )
                error.ran_s = result.billed_us / 1e6
                raise error from None
            except CacheError as error:
                raise ConnectionLostError(str(error)) from error
            self._reaches_stream = True
        finally:
            self._is_trying_stream = False
        return result

    async def _warm_one(self) -> Warmed:
        payload = json.dumps(warm_event(self._cache)).encode()

        def read(reply: Reply, _ran_s: float) -> Warmed:
            return read_warm_reply(reply, self.target, self._cache)

        attempts = 1
        while True:
            try:
                warmed = await self._call(payload, read, _WARM_TIMEOUT_S)
            except ThrottledError as error:
                if attempts == _WARM_ATTEMPTS:
                    raise
                if not self._was_throttled:
                    _log.warning("warming waits: %s", error)
                self._was_throttled = True
            else:
                self._clock.told(warmed.clock_s)
                return warmed
            attempts += 1
            await asyncio.sleep(_THROTTLED_PAUSE_S)

    async def _call(
        self,
        payload: bytes,
        read: Callable[[Reply, float], _Read],
        timeout_s: float,
        kind: str = "RequestResponse",
    ) -> _Read:
        began_s = 0.0

        def call() -> _Read:
            nonlocal began_s
            began_s = time.monotonic()
            try:
                reply = self._client.invoke(payload, kind)
            except (ConnectionLostError, FunctionTimedOutError) as error:  # it may have run that long
                error.ran_s = time.monotonic() - began_s if kind == "RequestResponse" else 0.0
                raise
            return read(reply, time.monotonic() - began_s)

        try:
            async with asyncio.timeout(timeout_s):
                return await self._threads.run(call)
        except TimeoutError:
            # The call never got a thread, so nothing was sent.
            if not began_s:
                msg = f"none of {self._calls} threads was free within {timeout_s} s"
                raise ThrottledError(msg) from None
            error = FunctionTimedOutError(f"{self.target} did not answer within {timeout_s:.1f} s")
            error.ran_s = time.monotonic() - began_s
            raise error from None
        except RuntimeError as error:  # no thread is available
            raise ThrottledError(
                f"{error}: raise the limit on processes, or lower lambda_concurrency"
            ) from error
