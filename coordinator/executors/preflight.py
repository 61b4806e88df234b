"""Trial of a dataset with functions on other machines, before a job waits for it.

Three samples are requested. If all of them are refused, so will be the millions that follow, and the user who
makes the sampler gets the reason. A temporary failure (throttling, a store that does not answer) is a warning
and stops no job: the core tries again. No job's account includes the three.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.catalog.source import parse_source
from superdl.coordinator.executors.base import ExecutorError, FunctionRaisedError, FunctionTimedOutError
from superdl.coordinator.executors.messages import request_for
from superdl.super_wire.errors import CacheError, ConfigError, SourceError, SourceForbiddenError, SuperError
from superdl.super_wire.redaction import counted
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.executors.manager import ManagedExecutor
    from superdl.super_wire.cancelling import CallingThreads
    from superdl.super_wire.request import PrefetchResult

__all__ = ["InconclusiveError", "check_source", "other_region", "try_out", "was_produced"]

_log = logging.getLogger(__name__)

_SAMPLES = 3
_LOOKED_AT = 64
_PAUSE_S = 1.0
_REGION_S = 10.0
_EXPIRES_S = 20.0
_ANSWER_S = 10.0
_MAX_WORDS = 1000
_NO_RIGHTS = ("NOPERM", "NOAUTH", "WRONGPASS")

_numbers = itertools.count(1)


class InconclusiveError(Exception):
    """No function looked at the dataset: nothing is known about it."""


def check_source(executor: ManagedExecutor, source: str) -> None:
    """Refuse a source that functions cannot see.

    Raises:
        ConfigError: it is a directory of this machine, and they run elsewhere.
    """
    if executor.remote and parse_source(source).is_file:
        raise ConfigError(
            f"{source} is a directory of the coordinator's machine, and the functions of the executor "
            f"{executor.name} run on others, which do not see it: {executor.files_remedy}, or take the local "
            "executor. (A key_list may be a file: the coordinator reads it.)"
        )


async def try_out(executor: ManagedExecutor, dataset: Dataset, cache: str) -> str:
    """Try to produce a few samples, twice if need be; return a warning, or nothing.

    Raises:
        SourceForbiddenError: functions may not read the source.
        CacheError: functions may not write to the cache.
        ConfigError: functions refuse the request, for example a custom step.
        InconclusiveError: no function took the request.
    """
    try:
        return await _try_once(executor, dataset, cache)
    except SuperError as error:  # it may have been temporary
        _log.info("a preflight has failed, it is made again: %s", error)
    await asyncio.sleep(_PAUSE_S)
    return await _try_once(executor, dataset, cache)


async def _try_once(executor: ManagedExecutor, dataset: Dataset, cache: str) -> str:
    request = request_for(
        dataset,
        _some(dataset, _SAMPLES),
        epoch=0,
        request_id=f"preflight-{next(_numbers)}",
        cache=cache,
        expires_in_s=_EXPIRES_S,
    )
    try:
        result = await executor.invoke(request, timeout_s=_EXPIRES_S + _ANSWER_S)
    except FunctionRaisedError as error:
        _check_rights(str(error), cache)  # a function that may not append its outcome raises
        msg = f"functions refuse what {dataset.listing.source} asks of them: {error}"
        raise ConfigError(msg) from error
    except FunctionTimedOutError as error:
        return (
            f"functions did not answer for {counted(len(request.ids), 'sample')} tried: {error}; a function "
            "in a VPC reaches S3 by a gateway endpoint, which leads to its own region's buckets, or by NAT"
        )
    except ExecutorError as error:
        raise InconclusiveError(f"it was not tried, since no function took the request: {error}") from error
    return _judged(result, dataset.listing.source, cache)


def _judged(result: PrefetchResult, source: str, cache: str) -> str:
    outcomes = set(result.outcomes)
    reason = next(iter(result.messages.values()), "")[:_MAX_WORDS]
    if outcomes == {Outcome.REFUSED}:
        raise SourceForbiddenError(f"functions may not read {source}: {reason}")
    if outcomes == {Outcome.CACHE_ERROR}:
        _check_rights(reason, cache)
    # A tombstone is a success, too: the sample is bad, not the function.
    if outcomes & {Outcome.CACHED, Outcome.TOMBSTONE}:
        return ""
    if outcomes == {Outcome.EXPIRED}:
        reason += (
            f"; a preflight lasts {_EXPIRES_S:.0f} s: it waited longer for a free function, or the clocks of "
            "the function and of this machine differ, or the function's own time limit is too short"
        )
    return f"functions could produce none of {counted(len(result.outcomes), 'sample')} tried: {reason}"


def _check_rights(said: str, cache: str) -> None:
    if any(word in said for word in _NO_RIGHTS):
        raise CacheError(
            f"functions may not write to the cache at {cache} ({said[:_MAX_WORDS]}): see the rights of their "
            "user (docs/reference.md) and their SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD"
        )


async def other_region(
    dataset: Dataset, here: str, threads: CallingThreads, region_of: Callable[[str], str]
) -> str:
    """Return a warning if the bucket is in another region, to which a network must lead."""
    bucket = dataset.catalog.bucket
    if not here or not bucket.startswith("s3://"):
        return ""
    try:
        async with asyncio.timeout(_REGION_S):
            region = await threads.run(partial(region_of, bucket.removeprefix("s3://")))
    except TimeoutError:
        return f"its region is not known: no answer within {_REGION_S:.0f} s"
    except SourceError as error:
        return f"its region is not known: {error}"
    if not region or region == here:
        return ""
    return (
        f"it lies in the region {region} and the functions run in {here}: every byte that they fetch is "
        "billed as transfer between regions (some $0.02 a GB), every object takes tens of milliseconds more, "
        f"and a VPC's gateway endpoint for S3 does not lead there at all: deploy the function in {region}"
    )


async def was_produced(dataset: Dataset, audit: Callable[[bytes], Awaitable[NDArray[np.int64]]]) -> bool:
    """Return whether the cache holds any of a few samples; if random, of the first epoch."""
    try:
        lengths = await audit(dataset.ids(_some(dataset, _LOOKED_AT), 0))
    except CacheError as error:
        _log.info("%s: not known whether the cache holds of it: %s", dataset.listing.source, error)
        return False
    return bool((lengths > 0).any())


def _some(dataset: Dataset, count: int) -> NDArray[np.int64]:
    """Return samples spread over a dataset."""
    size = len(dataset.catalog)
    return np.unique(np.linspace(0, size - 1, min(count, size)).astype(np.int64))
