"""The ``lambda`` executor, which invokes functions on AWS Lambda through boto3 in threads."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from superdl.coordinator.core import ExecutorResized, FailureKind
from superdl.coordinator.executors.base import DIGEST, Executor, ExecutorError, setting
from superdl.coordinator.executors.messages import encoder, read_object, read_result, shown_start
from superdl.super_wire.cancelling import CallingThreads
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.executors.base import ExecutorContext
    from superdl.coordinator.executors.lambda_client import Reply, Target
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

_WARM_VERSION = 1
_WARM_TIMEOUT_S = 60.0
_WARM_ATTEMPTS = 30
_THROTTLED_PAUSE_S = 1.0
_READ_MARGIN_S = 30.0  # the engine times out before the connection does


@dataclass(frozen=True)
class LambdaSettings:
    """Settings for the Lambda executor."""

    lambda_function: str = setting(
        "super-prefetch", "name, ARN or alias of the deployed function (super-prefetch)"
    )
    lambda_region: str = setting("", "AWS region of the function, if not the environment's")
    lambda_endpoint_url: str = setting("", "URL of the Lambda API, if not that of AWS")
    lambda_concurrency: int = setting(100, "maximum concurrent invocations (100)", low=1, high=10_000)
    lambda_warm: int = setting(8, "functions to start before the first batch (8)", low=0, high=1000)


class LambdaExecutor(Executor):
    """An executor that invokes a deployed Lambda function."""

    name = "lambda"
    remote = True
    uses_aws = True
    public_settings = ("lambda_function", "lambda_region", "lambda_concurrency")
    trial_settings: ClassVar = {"lambda_warm": 1}

    def __init__(self, settings: LambdaSettings, context: ExecutorContext) -> None:
        # boto3 is slow to import, and reading settings does not need it.
        from superdl.coordinator.executors.lambda_client import LambdaClient, Target

        self._limit = settings.lambda_concurrency
        self.scaling = ExecutorResized(self._limit, backlog=0)
        self._warm_event = json.dumps({"super_warm": _WARM_VERSION, "cache": context.cache}).encode()
        self._warm = min(max(1, settings.lambda_warm), self._limit)
        self.fingerprint = ""
        self._was_throttled = False
        self._client = LambdaClient(
            Target(settings.lambda_function, settings.lambda_region, settings.lambda_endpoint_url),
            connections=self._limit,
            read_timeout_s=context.request_timeout_s + _READ_MARGIN_S,
        )
        self.target = self._client.target
        self.region = self.target.region
        self._threads = CallingThreads(self._limit, "super-lambda")

    async def start(self) -> None:
        """Start environments, connect them to the cache, and check that their decoders match.

        Raises ``ConfigError`` if the function or credentials do not exist, if the function runs a
        different version of SUPER, or if its environments decode differently.
        """
        results = await asyncio.gather(*(self._warm_one() for _ in range(self._warm)), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        warmed = [result for result in results if not isinstance(result, BaseException)]
        # If any environment is warm, ExecutorErrors of others are not fatal.
        fatal = [failure for failure in failures if not warmed or not isinstance(failure, ExecutorError)]
        if fatal:
            # Prefer an error that says more than throttling.
            error = next((error for error in fatal if not _is_throttled(error)), fatal[0])
            if isinstance(error, ExecutorError) and error.wrong_settings:
                raise ConfigError(str(error)) from error
            raise error
        digests = sorted(set(warmed))
        if len(digests) > 1:
            raise ConfigError(
                f"the environments of {self.target} decode images differently ({', '.join(digests)}). "
                "Redeploy it from a single package for a single architecture"
            )
        self.fingerprint = digests[0]
        if failures:
            _log.warning("%d of %d environments did not start: %s", len(failures), self._warm, failures[0])
        _log.info("%s: %d environments are warm", self.target, len(warmed))

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run a request. See :class:`superdl.coordinator.executors.base.Executor`."""
        # Functions that were deployed later refuse the request.
        request = replace(request, golden=self.fingerprint, function_version=installed_version())
        read = partial(read_reply, target=self.target, request=request)
        return await self._call(encoder(request), timeout_s, read)

    async def close(self) -> None:
        """Close without waiting for threads. Invocations in progress run to completion on AWS."""
        self._threads.close(ExecutorError("the executor is closed"))
        self._client.close()

    async def _warm_one(self) -> str:
        attempts = 1
        while True:
            try:
                read = partial(read_warmed, target=self.target)
                return await self._call(lambda: self._warm_event, _WARM_TIMEOUT_S, read)
            except ExecutorError as error:
                if not _is_throttled(error) or attempts == _WARM_ATTEMPTS:
                    raise
                if not self._was_throttled:
                    _log.warning("waiting for functions to start: %s", error)
                self._was_throttled = True
            attempts += 1
            await asyncio.sleep(_THROTTLED_PAUSE_S)

    async def _call(
        self, payload: Callable[[], bytes], timeout_s: float, read: Callable[[Reply], _Answer]
    ) -> _Answer:
        began_s = 0.0

        def call() -> _Answer:
            nonlocal began_s
            began_s = time.monotonic()
            return read(self._client.invoke(payload()))  # here: megabytes of JSON would hold the event loop

        try:
            async with asyncio.timeout(timeout_s):
                return await self._threads.run(call)
        except TimeoutError:
            if not began_s:  # nothing was sent
                words = f"none of the {self._limit} threads was free within {timeout_s} s"
                raise ExecutorError(words, FailureKind.THROTTLED) from None
            words = f"{self.target} did not respond within {timeout_s:.1f} s"
            ran_s = time.monotonic() - began_s
            raise ExecutorError(words, FailureKind.TIMED_OUT, ran_s=ran_s) from None
        except RuntimeError as error:  # no thread can be started
            words = f"{error}. Raise the limit on processes, or lower lambda_concurrency"
            raise ExecutorError(words, FailureKind.THROTTLED) from error


def _is_throttled(error: BaseException) -> bool:
    return isinstance(error, ExecutorError) and error.kind is FailureKind.THROTTLED


def read_warmed(reply: Reply, target: Target) -> str:
    """Parse the reply to a warm event and return the decoder's fingerprint.

    Raises ``ExecutorError`` if the reply is not from SUPER's function, and ``ConfigError`` if it is
    from a different version of SUPER.
    """
    answer, own_version = read_object(reply.payload, str(target)), installed_version()
    version, digest = map(answer.get, ("function_version", "golden"))
    if not isinstance(version, str) or not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        shown = shown_start(json.dumps(answer))
        raise ExecutorError(f"{target} answered a warm event with {shown}. Deploy SUPER's function there")
    if version != own_version:
        raise ConfigError(
            f"{target} runs SUPER {version[:80]}, but the coordinator runs SUPER {own_version}. Deploy "
            f"version {own_version} of the function, or start a coordinator of version {version[:80]}"
        )
    return digest


def read_reply(reply: Reply, target: Target, request: PrefetchRequest) -> PrefetchResult:
    """Parse the result of a prefetch request and add the billed time.

    Raises ``ExecutorError`` if the reply is not a result for this request.
    """
    try:
        result = read_result(reply.payload, request, str(target))
    except ExecutorError as error:
        error.ran_s = reply.ran_s  # billed all the same
        raise
    # AWS bills whole milliseconds. It also bills an environment's start, which no result reports, so for a
    # cold start use the duration of the call, an upper bound.
    took_us = reply.ran_s * 1e6 if result.cold_start else result.duration_us
    return replace(result, billed_us=math.ceil(took_us / 1000) * 1000)
