"""Preflight checks that find out which executors can produce a dataset before a job waits for it.

Each executor whose functions run on other machines tries three samples. No job is charged for them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.catalog.listing_bucket import bucket_region
from superdl.coordinator.catalog.source import parse_source
from superdl.coordinator.core import ExecutorsIneligible, FailureKind
from superdl.coordinator.executors.base import ExecutorError, check_present
from superdl.coordinator.executors.messages import request_for
from superdl.super_wire.cancelling import CallingThreads, cancel_and_wait
from superdl.super_wire.display import counted
from superdl.super_wire.errors import CacheError, ConfigError, SourceError, SourceForbiddenError, SuperError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.core import Event
    from superdl.coordinator.executors.base import Executor
    from superdl.super_wire.request import PrefetchResult

_log = logging.getLogger(__name__)

_REMEMBERED = 1000
_AGAIN_S = 60.0
_PAUSE_S = 1.0
_SAMPLES = 3
_AUDITED = 64
_EXPIRES_S = 20.0
_ANSWER_S = 10.0
_REGION_S = 10.0
_REGION_THREADS = 4
_NO_RIGHTS = ("NOPERM", "NOAUTH", "WRONGPASS")

_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class _Trial:
    task: asyncio.Task[None] | None = None
    passed: bool = False
    failure: SuperError | None = None
    warnings: tuple[str, ...] = ()
    again_at_s: float = -math.inf


_UNTRIED = _Trial()


class Eligibility:
    """Trials of all executors, and the resulting eligibility of each.

    A dataset is never refused if ``audit`` finds any of its records in the cache. ``region_of`` returns a
    bucket's region or an empty string, and may block.
    """

    def __init__(
        self,
        executors: Sequence[Executor],
        cache: str,
        *,
        audit: Callable[[bytes], Awaitable[NDArray[np.int64]]] | None = None,
        region_of: Callable[[str], str] = bucket_region,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executors = executors
        self._cache = cache
        self._audit = audit
        self._region_of = region_of
        # asyncio's own threads would delay the end of the process until they have a reply.
        self._threads = CallingThreads(_REGION_THREADS, "super-region")
        self._trials: OrderedDict[tuple[bytes, int], _Trial] = OrderedDict()
        self._reported: dict[bytes, frozenset[int]] = {}
        self._clock = clock

    @property
    def _decoding(self) -> list[Executor]:
        # Not cached, because a restart replaces an executor.
        return [executor for executor in self.executors if executor.decodes]

    def check_source(self, source: str) -> None:
        """Raise :class:`ConfigError` if the source is a directory here and all functions run elsewhere."""
        if all(executor.remote and parse_source(source).is_file for executor in self._decoding):
            first = self._decoding[0]
            raise ConfigError(
                f"{source} is a directory on the coordinator's machine, but the functions of the executor "
                f"{first.name} run on other machines, which cannot see it: {first.files_remedy}, or use the "
                "local executor. (A key_list may be a file, because the coordinator reads it.)"
            )

    def is_known(self, dataset: Dataset) -> bool:
        """Return whether every available executor has finished its trial of a listed dataset."""
        # Executors that start after the first job do not change this.
        return dataset.content in self._reported or not any(
            self._is_open(dataset, number) for number in self._able(dataset)
        )

    def ineligible(self, dataset: Dataset) -> frozenset[int]:
        """Return the numbers of the executors to skip for a dataset. At least one executor remains.

        An executor is skipped if it cannot produce the dataset or is still being checked.
        """
        able = self._able(dataset)
        out = {
            number
            for number in able
            if self._trial(dataset, number).failure or self._is_open(dataset, number)
        }
        unable = set(range(len(self._decoding))) - set(able)
        # If no available executor is eligible, all of them are: one has to accept the requests.
        return frozenset(unable if out.issuperset(self._present(dataset)) else unable | out)

    def opened(self, dataset: Dataset) -> frozenset[int]:
        """Return an opened dataset's ineligible executors. For later changes, use :meth:`report_changes`."""
        ineligible = self._reported[dataset.content] = self.ineligible(dataset)
        return ineligible

    def warnings(self, dataset: Dataset) -> tuple[str, ...]:
        """Return warnings for the users of a listed dataset."""
        lines: dict[str, None] = {}
        able = self._able(dataset)
        for number, executor in enumerate(self._decoding):
            trial = self._trial(dataset, number)
            if number not in able:
                reason = (
                    f"skipped, because its functions cannot see {dataset.listing.source}, a directory on the "
                    f"coordinator's machine: {executor.files_remedy}"
                )
            elif trial.failure:
                reason = f"skipped: {trial.failure}"
            elif executor.absence:
                reason = f"unavailable: {executor.absence}"
            else:
                lines.update(dict.fromkeys(trial.warnings))
                continue
            lines[f"the executor {executor.name} is {reason}"] = None
        return tuple(lines)

    async def check(self, dataset: Dataset, wait_s: float) -> None:
        """Try a listed dataset on all available executors, waiting at most ``wait_s`` seconds.

        Raises:
            SourceForbiddenError: functions are not allowed to read the source.
            CacheError: functions are not allowed to write to the cache.
            ConfigError: functions refuse the request, for example a custom step.
        """
        present = self._present(dataset)
        tasks = [task for number in present if (task := self._attempt(dataset, number)) is not None]
        if tasks:
            ended, _ = await asyncio.wait(tasks, timeout=wait_s)
            for task in ended:
                task.result()  # raises only bugs
        failures = [failure for number in present if (failure := self._trial(dataset, number).failure)]
        # Samples in the cache prove that functions can produce them. A temporary failure must not end a job
        # that a restarted coordinator resumes.
        if failures and len(failures) == len(present) and not await self._was_produced(dataset):
            # The next caller gets new trials.
            for number in self._able(dataset):
                self._trials.pop((dataset.content, number), None)
            raise failures[0]

    def report_changes(self, datasets: Iterable[Dataset], post_event: Callable[[Event], None]) -> None:
        """Try new executors and report eligibility changes to the core. Call before capacities change."""
        if len(self._decoding) == 1:  # a single executor is never ineligible
            return
        ineligible: dict[bytes, frozenset[int]] = {}
        for dataset in datasets:
            for number in self._present(dataset):
                if self._trial(dataset, number).failure is None:
                    self._attempt(dataset, number)
            ineligible[dataset.content] = self.ineligible(dataset)
            if ineligible[dataset.content] != self._reported.get(dataset.content):
                post_event(ExecutorsIneligible(dataset.content, ineligible[dataset.content]))
        self._reported = ineligible

    async def close(self) -> None:
        """Abandon the trials in progress."""
        self._threads.close(SourceError("the coordinator is shutting down"))
        await cancel_and_wait(*(trial.task for trial in self._trials.values() if trial.task is not None))

    def _able(self, dataset: Dataset) -> list[int]:
        """Return the numbers of the executors whose functions can see the source."""
        is_file = dataset.catalog.bucket.startswith("file://")
        return [number for number, executor in enumerate(self._decoding) if not (is_file and executor.remote)]

    def _present(self, dataset: Dataset) -> list[int]:
        return [number for number in self._able(dataset) if not self._decoding[number].absence]

    def _trial(self, dataset: Dataset, number: int) -> _Trial:
        return self._trials.get((dataset.content, number), _UNTRIED)

    def _is_open(self, dataset: Dataset, number: int) -> bool:
        """Return whether an executor is available and its trial is still pending."""
        trial, executor = self._trial(dataset, number), self._decoding[number]
        return executor.remote and not (executor.absence or trial.passed or trial.failure)

    def _attempt(self, dataset: Dataset, number: int) -> asyncio.Task[None] | None:
        """Return the current attempt or start a new one. Returns ``None`` if no attempt is needed yet."""
        if not self._decoding[number].remote:
            return None
        trial = self._trials.setdefault((dataset.content, number), _Trial())
        if len(self._trials) > _REMEMBERED:
            self._trials.popitem(last=False)
        if trial.task is None and trial.again_at_s <= self._clock():
            trial.task = asyncio.create_task(self._try(trial, dataset, number), name=f"preflight {number}")
        return trial.task

    async def _try(self, trial: _Trial, dataset: Dataset, number: int) -> None:
        executor, source = self._decoding[number], dataset.listing.source
        trial.again_at_s = self._clock() + _AGAIN_S
        lines = [await self._other_region(dataset, executor.region)]
        try:
            try:
                lines.append(await _try_once(executor, dataset, self._cache))
            except (CacheError, ConfigError, SourceError) as error:  # possibly temporary
                _log.info("retrying a failed preflight check: %s", error)
                await asyncio.sleep(_PAUSE_S)
                lines.append(await _try_once(executor, dataset, self._cache))
            trial.again_at_s = math.inf
        except ExecutorError as error:  # no function has tried, for example because of throttling
            lines.append(f"it was not checked because no function accepted the request ({error})")
        except SuperError as error:
            _log.warning("skipping the executor %s for %s: %s", executor.name, source, error)
            trial.failure, trial.passed = error, False
            return
        finally:
            trial.task = None
        trial.failure, trial.passed = None, True
        trial.warnings = tuple(f"{source}: {line}" for line in lines if line)
        for warning in trial.warnings:
            _log.warning("%s", warning)

    async def _other_region(self, dataset: Dataset, here: str) -> str:
        """Return a warning if the bucket and functions are in different regions, or else an empty string."""
        bucket = dataset.catalog.bucket
        if not here or not bucket.startswith("s3://"):
            return ""
        try:
            async with asyncio.timeout(_REGION_S):
                region = await self._threads.run(partial(self._region_of, bucket.removeprefix("s3://")))
        except TimeoutError:
            return f"its region is unknown (no answer within {_REGION_S:.0f} s)"
        except SourceError as error:
            return f"its region is unknown ({error})"
        if region in ("", here):
            return ""
        return (
            f"it is in the region {region}, but the functions run in {here}. AWS bills transfer between "
            "regions (about $0.02 per GB), every object takes tens of milliseconds longer, and a VPC's "
            f"gateway endpoint for S3 does not reach that region. Deploy the function in {region}"
        )

    async def _was_produced(self, dataset: Dataset) -> bool:
        """Return whether the cache holds any of a few samples, from the first epoch if they are random."""
        if self._audit is None:
            return False
        try:
            lengths = await self._audit(dataset.ids(_spread(dataset, _AUDITED), 0))
        except CacheError as error:
            _log.info("cannot check if the cache holds samples of %s: %s", dataset.listing.source, error)
            return False
        return bool((lengths > 0).any())


async def _try_once(executor: Executor, dataset: Dataset, cache: str) -> str:
    """Try to produce a few samples. Returns a warning or an empty string.

    Raises ``ExecutorError`` if no function ran.
    """
    source, samples = dataset.listing.source, _spread(dataset, _SAMPLES)
    request = request_for(
        dataset,
        samples,
        epoch=0,
        request_id=f"preflight-{next(_numbers)}",
        cache=cache,
        expires_in_s=_EXPIRES_S,
    )
    try:
        check_present(executor)
        result = await executor.invoke(request, timeout_s=_EXPIRES_S + _ANSWER_S)
    except ExecutorError as error:
        if error.kind is FailureKind.RAISED and not error.refused:
            raise ConfigError(f"functions refused the request for {source}: {error}") from error
        if error.kind is not FailureKind.TIMED_OUT:
            raise
        return (
            f"functions did not respond to a trial of {counted(samples.size, 'sample')}: {error}. A function "
            "in a VPC needs NAT to reach S3, or in its own region a gateway endpoint"
        )
    return _judged(result, source, cache)


def _judged(result: PrefetchResult, source: str, cache: str) -> str:
    outcomes = set(result.outcomes)
    reason = next(iter(result.messages.values()), "")
    if outcomes == {Outcome.REFUSED}:
        raise SourceForbiddenError(f"functions are not allowed to read {source}: {reason}")
    if outcomes == {Outcome.CACHE_ERROR} and any(word in reason for word in _NO_RIGHTS):
        raise CacheError(
            f"functions are not allowed to write to the cache at {cache} ({reason}). Check the rights of "
            "their user (docs/reference.md) and their SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD"
        )
    # After a tombstone, the sample is bad, not the function.
    if outcomes & {Outcome.CACHED, Outcome.TOMBSTONE}:
        return ""
    if outcomes == {Outcome.EXPIRED}:
        reason += (
            f". A preflight check expires after {_EXPIRES_S:.0f} s: no function was free, or the function's "
            "own time limit is too short"
        )
    return f"functions produced nothing in a trial of {counted(len(result.outcomes), 'sample')}: {reason}"


def _spread(dataset: Dataset, count: int) -> NDArray[np.int64]:
    size = len(dataset.catalog)
    return np.unique(np.linspace(0, size - 1, min(count, size)).astype(np.int64))
