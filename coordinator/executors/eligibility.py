"""Which executors are eligible for a dataset: can produce it, as found out before a job waits on it.

Each whose functions run elsewhere is tried alone (:mod:`superdl.coordinator.executors.preflight`). Where all
fail, that is raised as the error that it is, unless the cache holds samples, which some function has made: a
job that a coordinator's restart interrupts must not end by what may pass. Where one can do it, the others are
left out for that dataset, with a warning, and tried again for a later run. One that starts later is tried
then, for datasets that are open, and gets nothing of them before.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.coordinator.catalog.listing_bucket import bucket_region
from superdl.coordinator.core import ExecutorsIneligible
from superdl.coordinator.executors.preflight import (
    InconclusiveError,
    check_source,
    other_region,
    try_out,
    was_produced,
)
from superdl.super_wire.cancelling import CallingThreads, cancel_and_wait
from superdl.super_wire.errors import SourceError, SuperError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.core import Event
    from superdl.coordinator.executors.manager import ManagedExecutor

__all__ = ["Eligibility"]

_log = logging.getLogger(__name__)

_REMEMBERED = 1000
_AGAIN_S = 60.0
_REGION_THREADS = 4


@dataclass(slots=True, eq=False)
class _Trial:
    """What is known of an executor and a dataset, and the attempt that is under way or was the last."""

    task: asyncio.Task[None] | None = None
    passed: bool = False
    failure: SuperError | None = None
    warnings: tuple[str, ...] = ()
    again_at_s: float = -math.inf


class Eligibility:
    """The preflights of all executors, and what follows from them.

    Args:
        executors: in their order.
        cache: its address, as requests name it.
        audit: tells of ids which records the cache holds, as
            :meth:`superdl.coordinator.cache.cache.Cache.audit`; with it, no dataset is refused of which there
            are some.
        region_of: tells the region of a bucket, or an empty text; blocking.
    """

    def __init__(
        self,
        executors: Sequence[ManagedExecutor],
        cache: str,
        *,
        audit: Callable[[bytes], Awaitable[NDArray[np.int64]]] | None = None,
        region_of: Callable[[str], str] = bucket_region,
    ) -> None:
        self._all = executors
        self._executors = [executor for executor in executors if executor.decodes]  # by the same numbers
        self._cache = cache
        self._audit = audit
        self._region_of = region_of
        # An answer that never comes must not hold up the end, as a thread of asyncio's own would.
        self._threads = CallingThreads(_REGION_THREADS, "super-region")
        self._trials: OrderedDict[tuple[bytes, int], _Trial] = OrderedDict()
        self._told: dict[bytes, frozenset[int]] = {}
        self._clock = asyncio.get_running_loop().time

    def check_source(self, source: str) -> None:
        """Refuse a source that no function can see, wherever it fetches from.

        Raises:
            ConfigError: it is a directory of this machine, and all functions run elsewhere.
        """
        errors = []
        for executor in self._executors:
            try:
                check_source(executor, source)
            except SuperError as error:
                errors.append(error)
        if len(errors) == len(self._executors):
            raise errors[0]

    def is_known(self, dataset: Dataset) -> bool:
        """Whether it is known of a listed dataset which executors can produce it, of those that are there.

        Once a job reads it, an executor that comes later takes nothing back.
        """
        is_open = any(self._is_open(dataset, number) for number in self._able(dataset))
        return not is_open or dataset.content in self._told

    def ineligible(self, dataset: Dataset) -> frozenset[int]:
        """The executors, by number, that cannot produce it, or of which it is not known yet; never all."""
        able = self._able(dataset)
        out = {number for number in able if self._failure(dataset, number) or self._is_open(dataset, number)}
        there = {number for number in able if not self._executors[number].absence}
        unable = set(range(len(self._executors))) - set(able)
        return frozenset(unable if there <= out else unable | out)

    def opened(self, dataset: Dataset) -> frozenset[int]:
        """Who is ineligible for a dataset that is opened; :meth:`tell_changes` says what changes."""
        ineligible = self._told[dataset.content] = self.ineligible(dataset)
        return ineligible

    def warnings(self, dataset: Dataset) -> tuple[str, ...]:
        """What people should know of a listed dataset."""
        told: dict[str, None] = {}
        able = self._able(dataset)
        for number, executor in enumerate(self._executors):
            trial = self._trials.get((dataset.content, number), _Trial())
            if number not in able:
                told[
                    f"the executor {executor.name} is left out: its functions do not see "
                    f"{dataset.listing.source}, which is a directory of the coordinator's machine: "
                    f"{executor.files_remedy}"
                ] = None
            elif trial.failure:
                told[f"the executor {executor.name} is left out: {trial.failure}"] = None
            elif executor.absence:
                told[f"the executor {executor.name} is missing: {executor.absence}"] = None
            else:
                told.update(dict.fromkeys(trial.warnings))
        return tuple(told)

    @property
    def executors(self) -> Sequence[ManagedExecutor]:
        """All of them, by number."""
        return self._all

    async def check(self, dataset: Dataset, wait_s: float) -> None:
        """Try a listed dataset at all executors that are there, and wait, at most ``wait_s``.

        Raises:
            SourceForbiddenError: functions may not read the source.
            CacheError: functions may not write to the cache.
            ConfigError: functions refuse the request, for example a custom step.
        """
        there = [number for number in self._able(dataset) if not self._executors[number].absence]
        tasks = [task for number in there if (task := self._attempt(dataset, number)) is not None]
        if tasks:
            ended, _ = await asyncio.wait(tasks, timeout=wait_s)
            for task in ended:
                task.result()  # raises nothing but bugs
        failures = [failure for number in there if (failure := self._failure(dataset, number))]
        if failures and len(failures) == len(there) and not await self._was_produced(dataset):
            # All is forgotten, so that the next one to ask has all tried again.
            for number in self._able(dataset):
                self._trials.pop((dataset.content, number), None)
            raise failures[0]

    def tell_changes(self, datasets: Iterable[Dataset], post_event: Callable[[Event], None]) -> None:
        """Try executors that have started for open datasets, and tell the core which eligibility has changed.

        The core has to know before it hears that they take requests.
        """
        if len(self._executors) == 1:
            return
        told: dict[bytes, frozenset[int]] = {}
        for dataset in datasets:
            content = dataset.content
            for number in self._able(dataset):
                if not self._executors[number].absence and self._failure(dataset, number) is None:
                    self._attempt(dataset, number)
            told[content] = self.ineligible(dataset)
            if told[content] != self._told.get(content):
                post_event(ExecutorsIneligible(content, told[content]))
        self._told = told

    async def close(self) -> None:
        """Give up what is under way."""
        self._threads.close(SourceError("the coordinator ends"))
        await cancel_and_wait(*(trial.task for trial in self._trials.values() if trial.task is not None))

    def _attempt(self, dataset: Dataset, number: int) -> asyncio.Task[None] | None:
        """The trial that is under way, or one that begins, unless what is known needs none now."""
        trial = self._trials.get((dataset.content, number))
        if not self._executors[number].remote:
            return None
        if trial is None:
            trial = self._trials[dataset.content, number] = _Trial()
            if len(self._trials) > _REMEMBERED:
                self._trials.popitem(last=False)
        if trial.task is None and trial.again_at_s <= self._clock():
            trial.task = asyncio.create_task(self._try(trial, dataset, number), name=f"preflight {number}")
        return trial.task

    async def _try(self, trial: _Trial, dataset: Dataset, number: int) -> None:
        executor, source = self._executors[number], dataset.listing.source
        trial.again_at_s = self._clock() + _AGAIN_S
        told = [await other_region(dataset, executor.region, self._threads, self._region_of)]
        try:
            told.append(await try_out(executor, dataset, self._cache))
            trial.again_at_s = math.inf
        except InconclusiveError as error:
            told.append(str(error))
        except SuperError as error:
            _log.warning("the executor %s is left out for %s: %s", executor.name, source, error)
            trial.failure, trial.passed = error, False
            return
        finally:
            trial.task = None
        trial.failure, trial.passed = None, True
        trial.warnings = tuple(f"{source}: {words}" for words in told if words)
        for warning in trial.warnings:
            _log.warning("%s", warning)

    def _is_open(self, dataset: Dataset, number: int) -> bool:
        """Whether an executor is there, and it is not known whether it can produce a dataset."""
        trial = self._trials.get((dataset.content, number), _Trial())
        executor = self._executors[number]
        return executor.remote and not (executor.absence or trial.passed or trial.failure)

    def _failure(self, dataset: Dataset, number: int) -> SuperError | None:
        """Why an executor cannot produce a dataset; ``None`` if it can, or where that is not known."""
        return self._trials.get((dataset.content, number), _Trial()).failure

    async def _was_produced(self, dataset: Dataset) -> bool:
        return self._audit is not None and await was_produced(dataset, self._audit)

    def _able(self, dataset: Dataset) -> list[int]:
        """The executors whose functions see the source at all, by number."""
        is_file = dataset.catalog.bucket.startswith("file://")
        return [
            number for number, executor in enumerate(self._executors) if not (is_file and executor.remote)
        ]
