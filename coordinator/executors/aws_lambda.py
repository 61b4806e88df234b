"""The ``lambda`` executor: functions in environments of AWS Lambda, invoked by boto3 in threads."""

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
    FunctionTimedOutError,
    Scaling,
    ThrottledError,
    setting,
)
from superdl.coordinator.executors.lambda_answers import read_reply, read_warm_reply
from superdl.coordinator.executors.messages import FunctionClock, warm_event
from superdl.super_wire.cancelling import CallingThreads
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.executors.base import ExecutorContext
    from superdl.coordinator.executors.lambda_client import Reply
    from superdl.coordinator.executors.messages import Warmed
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = ["LambdaExecutor", "LambdaSettings"]

_log = logging.getLogger(__name__)

_BURST = 1000
_PER_S = 100.0  # AWS adds 1,000 environments in 10 seconds
_WARM_TIMEOUT_S = 60.0
_WARM_ATTEMPTS = 30
_THROTTLED_PAUSE_S = 1.0
_READ_MARGIN_S = 30.0  # the engine gives up on an answer before its connection does

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class LambdaSettings:
    """Settings of the lambda executor."""

    lambda_function: str = setting(
        "super-prefetch", "name, ARN or alias of the deployed function (super-prefetch)"
    )
    lambda_region: str = setting("", "its AWS region, if it is not the environment's")
    lambda_endpoint_url: str = setting("", "where Lambda's API is, if it is not AWS")
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

        self._calls = at_once = settings.lambda_concurrency
        self.scaling = Scaling(at_once, burst=min(_BURST, at_once), per_s=_PER_S, backlog=0)
        self._cache = context.cache
        self._warm = min(max(1, settings.lambda_warm), self._calls)
        self.fingerprint = ""
        self._clock = FunctionClock()
        self._was_throttled = False
        self._client = LambdaClient(
            Target(settings.lambda_function, settings.lambda_region, settings.lambda_endpoint_url),
            connections=self._calls,
            read_timeout_s=context.request_timeout_s + _READ_MARGIN_S,
        )
        self.target = self._client.target
        self.region = self.target.region
        self._threads = CallingThreads(self._calls, "super-lambda")

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

        def read(reply: Reply, ran_s: float) -> PrefetchResult:
            return read_reply(reply, self.target, request.request_id, ran_s)

        result = await self._call(request.to_json().encode(), read, timeout_s)
        self._clock.told(result.clock_s)
        return result

    async def close(self) -> None:
        """Close without waiting for threads. AWS ends the invocations in progress."""
        self._threads.close(ExecutorError("the executor is closed"))
        self._client.close()

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
    ) -> _Read:
        began_s = 0.0

        def call() -> _Read:
            nonlocal began_s
            began_s = time.monotonic()
            try:
                reply = self._client.invoke(payload)
            except (ConnectionLostError, FunctionTimedOutError) as error:  # it may have run that long
                error.ran_s = time.monotonic() - began_s
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
