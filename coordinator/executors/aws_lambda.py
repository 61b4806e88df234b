"""The ``lambda`` executor: functions as environments of AWS Lambda, invoked by boto3 in threads.

An invocation waits for its answer (``RequestResponse``); where none does, and outcomes come through the
cache, is :mod:`superdl.coordinator.executors.lambda_events`. Nothing is retried here: the core sees
throttling and adapts to it. Functions that decode otherwise than those that were warmed refuse before they
write anything; another version of SUPER is refused with the remedy.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from superdl.coordinator.executors.base import (
    ConnectionLostError,
    ExecutorError,
    FunctionTimedOutError,
    Scaling,
    ThrottledError,
)
from superdl.coordinator.executors.calling_threads import CallingThreads
from superdl.coordinator.executors.function_clock import FunctionClock
from superdl.coordinator.executors.lambda_answers import read_result, read_warmed
from superdl.coordinator.executors.lambda_client import LambdaClient, Target
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.version import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.executors.lambda_answers import Warmed
    from superdl.coordinator.executors.lambda_client import Reply
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = ["LambdaExecutor"]

_log = logging.getLogger(__name__)

_BURST = 1000
_PER_S = 100.0  # AWS adds 1,000 environments in 10 seconds
_WARM_VERSION = 1
_WARM_TIMEOUT_S = 60.0
_WARM_ATTEMPTS = 30
_THROTTLED_PAUSE_S = 1.0

_Read = TypeVar("_Read")


class LambdaExecutor:
    """A deployed function.

    Args:
        function: its name, ARN or name:alias.
        cache: address of the cache that it is to reach, as requests will name it.
        region: where it is; by default the region of its ARN or of AWS's own settings.
        endpoint_url: where Lambda's API is, if it is not AWS.
        concurrency: invocations at once, at most.
        warm: environments to start before the first request; at least one is.
        read_timeout_s: how long a connection waits for an answer, in seconds; longer than any request's own
            time limit.
        calls: how many calls are made at once, by a thread each; 0 stands for ``concurrency``, as calls that
            wait for their answer need.

    Raises:
        ConfigError: a setting cannot be meant.
    """

    name = "lambda"
    remote = True

    def __init__(
        self,
        function: str,
        *,
        cache: str,
        region: str = "",
        endpoint_url: str = "",
        concurrency: int = 100,
        warm: int = 8,
        read_timeout_s: float = 90.0,
        calls: int = 0,
    ) -> None:
        self.scaling = Scaling(concurrency, burst=min(_BURST, concurrency), per_s=_PER_S, backlog=0)
        self._cache = cache
        self._calls = min(calls or concurrency, concurrency)
        self._warm = min(max(1, warm), self._calls)
        self._golden = ""
        self._clock = FunctionClock()
        self._was_throttled = False
        self._client = LambdaClient(
            Target(function, region, endpoint_url), connections=self._calls, read_timeout_s=read_timeout_s
        )
        self._target = self._client.target
        self._threads = CallingThreads(self._calls, "super-lambda")

    @property
    def golden(self) -> str:
        """Digest of the golden images as the warmed functions decode them; empty before :meth:`start`."""
        return self._golden

    @property
    def region(self) -> str:
        """Where the function is."""
        return self._target.region

    async def start(self) -> None:
        """Start environments, each with its connection to the cache, and see that they are what is wanted.

        Raises:
            ExecutorError: none was started in time; the message says why.
            ConfigError: there is no such function, or there are no credentials, or it is another version of
                SUPER, or its environments decode differently.
        """
        answers = await asyncio.gather(*(self._warm_one() for _ in range(self._warm)), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        warmed = [answer for answer in answers if not isinstance(answer, BaseException)]
        fatal = [failure for failure in failures if not warmed or not isinstance(failure, ExecutorError)]
        if fatal:
            error = next((error for error in fatal if not isinstance(error, ThrottledError)), fatal[0])
            if isinstance(error, ExecutorError) and error.wrong_settings:
                raise ConfigError(str(error)) from error
            raise error
        digests = sorted({answer.golden for answer in warmed})
        if len(digests) > 1:
            msg = (
                f"{self._target} decodes the golden images differently from one environment to the next "
                f"({', '.join(digests)}): deploy it again, for one architecture, from one package"
            )
            raise ConfigError(msg)
        self._golden = digests[0]
        if failures:
            _log.warning("%d of %d environments did not start: %s", len(failures), self._warm, failures[0])
        _log.info("%s: %d environments are warm", self._target, len(warmed))

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run one request; see :class:`superdl.coordinator.executors.base.Executor`.

        Raises:
            ThrottledError: Lambda refused it for now.
            FunctionTimedOutError: no answer within ``timeout_s``, or within the function's own limit.
            FunctionCrashedError: its environment ended.
            ConnectionLostError: the connection broke before the answer had come.
            FunctionRaisedError: the function raised, or answered what is no result of this request.
            PayloadTooLargeError: request or result are larger than Lambda carries.
            ExecutorError: Lambda did not run it.
        """
        result = await self._call(
            self._asked(request).to_json().encode(),
            lambda reply, ran_s: read_result(reply, self._target, request.request_id, ran_s),
            timeout_s,
        )
        self._clock.told(result.clock_s)
        return result

    async def close(self) -> None:
        """Abandon what is under way: AWS ends it, and nobody waits for its threads."""
        self._threads.close(ExecutorError("the executor is closed"))
        self._client.close()

    def _asked(self, request: PrefetchRequest) -> PrefetchRequest:
        """The request by the functions' clock, to be refused by one that is not the one that was warmed."""
        return replace(
            request,
            expires_at=max(0.0, request.expires_at + self._clock.ahead_s),
            golden=self._golden,
            function_version=installed_version(),
        )

    async def _warm_one(self) -> Warmed:
        """Start an environment, or meet one that is there; one that is throttled is asked for again."""
        payload = json.dumps({"super_warm": _WARM_VERSION, "cache": self._cache}).encode()

        def read(reply: Reply, ran_s: float) -> Warmed:
            return read_warmed(reply, self._target, self._cache, ran_s)

        for _ in range(_WARM_ATTEMPTS - 1):
            try:
                return self._met(await self._call(payload, read, _WARM_TIMEOUT_S))
            except ThrottledError as error:
                if not self._was_throttled:
                    _log.warning("warming waits: %s", error)
                self._was_throttled = True
            await asyncio.sleep(_THROTTLED_PAUSE_S)
        return self._met(await self._call(payload, read, _WARM_TIMEOUT_S))

    def _met(self, warmed: Warmed) -> Warmed:
        self._clock.told(warmed.clock_s)
        return warmed

    async def _call(
        self,
        payload: bytes,
        read: Callable[[Reply, float], _Read],
        timeout_s: float,
        kind: str = "RequestResponse",
    ) -> _Read:
        """Invoke and read the answer, in a thread, so that neither holds the event loop up."""
        call = _Call(self._client, payload, read, kind)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._threads.run(call)
        except TimeoutError:
            if not call.began_s:
                msg = f"none of {self._calls} threads was free within {timeout_s} s"
                raise ThrottledError(msg) from None
            error = FunctionTimedOutError(f"{self._target} did not answer within {timeout_s:.1f} s")
            error.ran_s = time.monotonic() - call.began_s
            raise error from None


class _Call(Generic[_Read]):
    """One invocation as a thread makes it; ``began_s`` is when, on the monotonic clock, or 0."""

    def __init__(
        self, client: LambdaClient, payload: bytes, read: Callable[[Reply, float], _Read], kind: str
    ) -> None:
        self._client = client
        self._kind = kind
        self._payload = payload
        self._read = read
        self.began_s = 0.0

    def __call__(self) -> _Read:
        self.began_s = time.monotonic()
        try:
            reply = self._client.invoke(self._payload, self._kind)
        except (ConnectionLostError, FunctionTimedOutError) as error:
            if self._kind == "RequestResponse":  # the function may have run all the while
                error.ran_s = time.monotonic() - self.began_s
            raise
        return self._read(reply, time.monotonic() - self.began_s)
