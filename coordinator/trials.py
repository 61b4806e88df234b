"""Whether a dataset and functions on other machines fit together, found out before a job waits on it.

A directory of this machine is refused at once. Of a bucket it is told where it lies in another region than
the functions, and three of its samples are asked for, once for each listing and recipe: what is refused for
all of them will be refused for the millions that follow, and the reason reaches whoever makes the sampler.
What may pass (throttling, a store that does not answer) is logged and holds nobody up: it is the core's to
try again. The three are in no job's account.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from coordinator.cancelling import cancel_and_wait
from coordinator.catalog.regions import bucket_region
from coordinator.catalog.source import parse_source
from coordinator.executors import ExecutorError, FunctionRaisedError
from coordinator.requests import request_for
from super_wire.errors import CacheError, ConfigError, SourceError, SourceForbiddenError
from super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.datasets import Dataset
    from coordinator.executors import Executor
    from super_wire.request import PrefetchResult

__all__ = ["Trials"]

_log = logging.getLogger(__name__)

_SAMPLES = 3
_ATTEMPTS = 2  # of functions that raise: the first may have met what passes
_EXPIRES_S = 20.0
_ANSWER_S = 10.0
_REMEMBERED = 1024
_MAX_WORDS = 1000
_NO_RIGHTS = ("NOPERM", "NOAUTH", "WRONGPASS")


class Trials:
    """Trials of datasets; for functions that run on this machine there are none.

    Args:
        executor: what runs functions.
        cache: its address.
        region_of: tells the region of a bucket, or an empty text; blocking.
    """

    def __init__(
        self, executor: Executor, cache: str, *, region_of: Callable[[str], str] = bucket_region
    ) -> None:
        self._executor = executor
        self._cache = cache
        self._region_of = region_of
        self._passed: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()  # with what is to be told
        self._under_way: dict[bytes, asyncio.Task[None]] = {}
        self._count = 0

    def admit(self, source: str) -> None:
        """Refuse a source that functions cannot see, wherever they fetch from.

        Raises:
            ConfigError: it is a directory of this machine, and they run elsewhere.
        """
        if self._executor.remote and parse_source(source).is_file:
            msg = (
                f"{source} is a directory of the coordinator's machine, and the functions of the executor "
                f"{self._executor.name} run on others, which do not see it: put the images into a bucket and "
                "name it as s3://bucket/prefix, or take the local executor. (A key_list may be a file: the "
                "coordinator reads it.)"
            )
            raise ConfigError(msg)

    def passed(self, dataset: Dataset) -> bool:
        """Whether a listed dataset needs no trial (any more)."""
        return not self._executor.remote or dataset.content in self._passed

    def warnings(self, dataset: Dataset) -> tuple[str, ...]:
        """What is to be told of a listed dataset, for people."""
        return self._passed.get(dataset.content, ())

    async def take(self, dataset: Dataset, wait_s: float) -> None:
        """Put a listed dataset on trial, and wait for the outcome, at most ``wait_s``.

        Raises:
            SourceForbiddenError: functions may not read the source.
            CacheError: functions may not write to the cache.
            ConfigError: functions refuse the request, for example a custom step.
        """
        if self.passed(dataset):
            return
        content = dataset.content
        task = self._under_way.get(content)
        if task is None:
            task = asyncio.create_task(self._try(dataset), name=f"trial of {dataset.listing.source}")
            self._under_way[content] = task
            task.add_done_callback(lambda ended: self._ended(content, ended))
        await asyncio.wait([task], timeout=wait_s)
        if task.done():
            task.result()

    def _ended(self, content: bytes, task: asyncio.Task[None]) -> None:
        self._under_way.pop(content, None)
        if not task.cancelled() and task.exception() is not None:  # also where nobody waits for it any more
            _log.warning("a trial has failed: %s", task.exception())

    async def close(self) -> None:
        """Give up trials that are under way."""
        await cancel_and_wait(*self._under_way.values())

    async def _try(self, dataset: Dataset) -> None:
        source = dataset.listing.source
        told = [await self._other_region(dataset), await self._tried(dataset)]
        warnings = tuple(f"{source}: {words}" for words in told if words)
        for warning in warnings:
            _log.warning("%s", warning)
        self._passed[dataset.content] = warnings
        if len(self._passed) > _REMEMBERED:
            self._passed.popitem(last=False)

    async def _tried(self, dataset: Dataset) -> str:
        """What is to be told of an attempt to produce a few samples; what will not pass is raised."""
        size = len(dataset.catalog)
        indices = np.unique(np.linspace(0, size - 1, min(_SAMPLES, size)).astype(np.int64))
        for attempt in range(1, _ATTEMPTS + 1):
            self._count += 1
            request = request_for(
                dataset,
                indices,
                epoch=0,
                request_id=f"trial-{self._count}",
                cache=self._cache,
                expires_in_s=_EXPIRES_S,
            )
            try:
                result = await self._executor.invoke(request, timeout_s=_EXPIRES_S + _ANSWER_S)
            except FunctionRaisedError as error:
                self._check_rights(str(error))  # one that may not append its outcome raises
                if attempt == _ATTEMPTS:
                    msg = f"functions refuse what {dataset.listing.source} asks of them: {error}"
                    raise ConfigError(msg) from error
            except ExecutorError as error:
                return f"it was not tried, functions have other worries: {error}"
            else:
                return self._judged(result, dataset.listing.source)
        return ""

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
                f"; a trial lasts {_EXPIRES_S:.0f} s: it waited longer for a free function, or the clocks of "
                "the function and of this machine differ, or the function's own time limit is too short"
            )
        return f"functions could produce none of {len(result.outcomes)} samples that were tried: {said}"

    def _check_rights(self, said: str) -> None:
        if any(word in said for word in _NO_RIGHTS):
            msg = (
                f"functions may not write to the cache at {self._cache} ({said[:_MAX_WORDS]}): see the "
                "rights of their user (docs/cache.md) and their SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD"
            )
            raise CacheError(msg)

    async def _other_region(self, dataset: Dataset) -> str:
        """What is to be told of a bucket in another region: it works, where a network leads there at all."""
        bucket, here = dataset.catalog.bucket, self._executor.region
        if not here or not bucket.startswith("s3://"):
            return ""
        try:
            region = await asyncio.to_thread(self._region_of, bucket.removeprefix("s3://"))
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
