"""Whether a dataset and functions on other machines fit together, found out before a job waits on it.

A directory of this machine is refused at once. For a bucket in another region than the functions there is a
warning. Three samples are asked for, once for each listing and recipe: what is refused for all of them will
be refused for the millions that follow, and the reason reaches the user who makes the sampler. What may pass
(throttling, a store that does not answer) is logged and holds nobody up: the core tries again. The three are
in no job's account.

Where there is one executor, a dataset of which the cache holds samples is not tried: its functions have made
them, and a job that a coordinator's restart interrupts must not end by what may pass. With several, nobody
knows whose functions made them, and each is tried.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.catalog.s3_client import bucket_region
from superdl.coordinator.catalog.source import parse_source
from superdl.coordinator.executors.base import ExecutorError, FunctionRaisedError, FunctionTimedOutError
from superdl.coordinator.executors.cancelling import cancel_and_wait
from superdl.coordinator.executors.lambda_client import CallingThreads
from superdl.coordinator.executors.messages import request_for
from superdl.super_wire.errors import CacheError, ConfigError, SourceError, SourceForbiddenError, SuperError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from numpy.typing import NDArray

    from superdl.coordinator.executors.base import Executor
    from superdl.coordinator.executors.manager import ManagedExecutor
    from superdl.coordinator.executors.messages import ListedDataset
    from superdl.super_wire.request import PrefetchResult

__all__ = ["Preflight", "was_produced"]

_log = logging.getLogger(__name__)

_SAMPLES = 3
_LOOKED_AT = 64
_ATTEMPTS = 2  # the first may have met what passes
_PAUSE_S = 1.0
_REGION_S = 10.0
_REGION_THREADS = 4
_EXPIRES_S = 20.0
_ANSWER_S = 10.0
_REMEMBERED = 1024
_MAX_WORDS = 1000
_NO_RIGHTS = ("NOPERM", "NOAUTH", "WRONGPASS")


class _InconclusiveError(Exception):
    """No function had a look at a dataset: nothing is known of it."""


class _Passed(NamedTuple):
    """What a dataset has passed with; not conclusive for want of a function that had a look."""

    warnings: tuple[str, ...]
    is_conclusive: bool


class Preflight:
    """The preflight of one executor; for functions that run on this machine there is none.

    Args:
        executor: what runs functions. cache: its address. audit: tells of ids which records the cache holds,
        as :meth:`superdl.coordinator.cache.cache.Cache.audit`; without
            it every dataset is tried, as it should be with several executors.
        region_of: tells the region of a bucket, or an empty text; blocking.
    """

    def __init__(
        self,
        executor: Executor | ManagedExecutor,
        cache: str,
        *,
        audit: Callable[[bytes], Awaitable[NDArray[np.int64]]] | None = None,
        region_of: Callable[[str], str] = bucket_region,
    ) -> None:
        self._executor = executor
        self._cache = cache
        self._audit = audit
        self._region_of = region_of
        # An answer that never comes must not hold up the end, as a thread of asyncio's own would.
        self._threads = CallingThreads(_REGION_THREADS, "super-region")
        self._passed: OrderedDict[bytes, _Passed] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[None]] = {}
        self._count = 0

    def check_source(self, source: str) -> None:
        """Refuse a source that functions cannot see, wherever they fetch from.

        Raises:
            ConfigError: it is a directory of this machine, and they run elsewhere.
        """
        if self._executor.remote and parse_source(source).is_file:
            msg = (
                f"{source} is a directory of the coordinator's machine, and the functions of the executor "
                f"{self._executor.name} run on others, which do not see it: "
                f"{self._executor.files_remedy}, or take the local executor. (A key_list may be a "
                "file: the coordinator reads it.)"
            )
            raise ConfigError(msg)

    def passed(self, dataset: ListedDataset) -> bool:
        """Whether a listed dataset need not be tried (any more)."""
        return not self._executor.remote or dataset.content in self._passed

    def warnings(self, dataset: ListedDataset) -> tuple[str, ...]:
        """What people should know of a listed dataset."""
        passed = self._passed.get(dataset.content)
        return passed.warnings if passed else ()

    def inconclusive(self, dataset: ListedDataset) -> bool:
        """Whether it has passed for want of a function that had a look, so that it is to be tried again."""
        passed = self._passed.get(dataset.content)
        return passed is not None and not passed.is_conclusive

    async def check(self, dataset: ListedDataset, wait_s: float | None, *, again: bool = False) -> None:
        """Try a listed dataset, and wait for the outcome, at most ``wait_s`` if that is said.

        One that has passed is tried no more, or ``again`` where this is wanted.

        Raises:
            SourceForbiddenError: functions may not read the source.
            CacheError: functions may not write to the cache.
            ConfigError: functions refuse the request, for example a custom step.
        """
        if self.passed(dataset) and not again:
            return
        content = dataset.content
        task = self._under_way.get(content)
        if task is None:
            task = asyncio.create_task(self._try(dataset), name=f"preflight of {dataset.listing.source}")
            self._under_way[content] = task
            task.add_done_callback(lambda ended: self._ended(content, ended))
        await asyncio.wait([task], timeout=wait_s)
        if task.done():
            task.result()

    def _ended(self, content: bytes, task: asyncio.Task[None]) -> None:
        self._under_way.pop(content, None)
        if not task.cancelled() and task.exception() is not None:  # also where nobody waits for it any more
            self._passed.pop(content, None)
            _log.warning("a preflight has failed: %s", task.exception())

    async def close(self) -> None:
        """Give up what is under way."""
        self._threads.close(SourceError("the coordinator ends"))
        await cancel_and_wait(*self._under_way.values())

    async def _try(self, dataset: ListedDataset) -> None:
        source, content = dataset.listing.source, dataset.content
        told, is_conclusive = [await self._other_region(dataset)], True
        if self._audit is None or not await was_produced(dataset, self._audit):
            try:
                told.append(await self._tried(dataset))
            except _InconclusiveError as error:
                told.append(str(error))
                is_conclusive = False
        warnings = tuple(f"{source}: {words}" for words in told if words)
        for warning in warnings:
            _log.warning("%s", warning)
        self._passed[content] = _Passed(warnings, is_conclusive)
        if len(self._passed) > _REMEMBERED:
            self._passed.popitem(last=False)

    async def _tried(self, dataset: ListedDataset) -> str:
        """The warning of attempts to produce a few samples, if any; what does not pass is raised."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._try_once(dataset)
            except SuperError as error:
                _log.info("a preflight has failed, it is made again: %s", error)
            await asyncio.sleep(_PAUSE_S)
        return await self._try_once(dataset)

    async def _try_once(self, dataset: ListedDataset) -> str:
        self._count += 1
        request = request_for(
            dataset,
            _some(dataset, _SAMPLES),
            epoch=0,
            request_id=f"preflight-{self._count}",
            cache=self._cache,
            expires_in_s=_EXPIRES_S,
        )
        try:
            result = await self._executor.invoke(request, timeout_s=_EXPIRES_S + _ANSWER_S)
        except FunctionRaisedError as error:
            self._check_rights(str(error))  # one that may not append its outcome raises
            msg = f"functions refuse what {dataset.listing.source} asks of them: {error}"
            raise ConfigError(msg) from error
        except FunctionTimedOutError as error:
            return (
                f"functions did not answer for {len(request.keys)} samples that were tried: {error}; a "
                "function in a VPC reaches S3 by a gateway endpoint, which leads to the buckets of its "
                "own region, or by NAT"
            )
        except ExecutorError as error:
            msg = f"it was not tried, since no function took the request: {error}"
            raise _InconclusiveError(msg) from error
        return self._judged(result, dataset.listing.source)

    def _judged(self, result: PrefetchResult, source: str) -> str:
        outcomes = set(result.outcomes)
        said = next(iter(result.messages.values()), "")[:_MAX_WORDS]
        if outcomes == {Outcome.REFUSED}:
            raise SourceForbiddenError(f"functions may not read {source}: {said}")
        if outcomes == {Outcome.CACHE_ERROR}:
            self._check_rights(said)
        if outcomes & {Outcome.CACHED, Outcome.TOMBSTONE}:
            return ""
        if outcomes == {Outcome.EXPIRED}:
            said += (
                f"; a preflight lasts {_EXPIRES_S:.0f} s: it waited longer for a free function, or "
                "the clocks of the function and of this machine differ, or the function's own time "
                "limit is too short"
            )
        return f"functions could produce none of {len(result.outcomes)} samples that were tried: {said}"

    def _check_rights(self, said: str) -> None:
        if any(word in said for word in _NO_RIGHTS):
            msg = (
                f"functions may not write to the cache at {self._cache} ({said[:_MAX_WORDS]}): see the "
                "rights of their user (docs/cache.md) and their SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD"
            )
            raise CacheError(msg)

    async def _other_region(self, dataset: ListedDataset) -> str:
        """The warning of a bucket in another region: it works, where a network leads there at all."""
        bucket, here = dataset.catalog.bucket, self._executor.region
        if not here or not bucket.startswith("s3://"):
            return ""
        try:
            async with asyncio.timeout(_REGION_S):
                region = await self._threads.run(partial(self._region_of, bucket.removeprefix("s3://")))
        except TimeoutError:
            return f"its region is not known: no answer within {_REGION_S:.0f} s"
        except SourceError as error:
            return f"its region is not known: {error}"
        if not region or region == here:
            return ""
        return (
            f"it lies in the region {region} and the functions run in {here}: every byte that they fetch is "
            "billed as transfer between regions (some $0.02 a GB), every object takes tens of milliseconds "
            "more, and a VPC's gateway endpoint for S3 does not lead there at all: deploy the function in "
            f"{region}"
        )


async def was_produced(
    dataset: ListedDataset, audit: Callable[[bytes], Awaitable[NDArray[np.int64]]]
) -> bool:
    """Whether the cache holds any of some samples, of a random recipe as the first epoch has them."""
    try:
        found = await audit(dataset.ids(_some(dataset, _LOOKED_AT), 0))
    except CacheError as error:
        _log.info("%s: not known whether the cache holds of it: %s", dataset.listing.source, error)
        return False
    return bool((found > 0).any())


def _some(dataset: ListedDataset, count: int) -> NDArray[np.int64]:
    """Samples from all over a dataset."""
    size = len(dataset.catalog)
    return np.unique(np.linspace(0, size - 1, min(count, size)).astype(np.int64))
