"""Eligibility of executors: finds out which can produce a dataset, before a job waits for it.

Each executor whose functions run elsewhere gets a trial (:mod:`superdl.coordinator.executors.preflight`). If
all fail, the error is raised, unless the cache holds samples, which proves that a function could make them: a
temporary failure must not end a job that a restarted coordinator resumes. If one succeeds, the others are
left out for this dataset with a warning, and tried again for a later run. An executor that starts later is
tried then for open datasets, and gets no requests for them before.
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
    """The known facts of an executor and a dataset, and the current or last attempt."""

    task: asyncio.Task[None] | None = None
    passed: bool = False
    failure: SuperError | None = None
    warnings: tuple[str, ...] = ()
    again_at_s: float = -math.inf


class Eligibility:
    """The preflights of all executors, and the resulting eligibility.

    Args:
        executors: in their order.
        cache: its address, as requests carry it.
        audit: :meth:`superdl.coordinator.cache.cache.Cache.audit`. With it, no dataset is refused that has
            records in the cache.
        region_of: returns the region of a bucket, or an empty text; blocking.
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
        self._executors = [executor for executor in executors if executor.decodes]  # with the same numbers
        self._cache = cache
        self._audit = audit
        self._region_of = region_of
        # A thread of asyncio's own would delay the end until it has its answer.
        self._threads = CallingThreads(_REGION_THREADS, "super-region")
        self._trials: OrderedDict[tuple[bytes, int], _Trial] = OrderedDict()
        self._told: dict[bytes, frozenset[int]] = {}
        self._clock = asyncio.get_running_loop().time

    def check_source(self, source: str) -> None:
        """Refuse a source that no function can see from any executor.

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
        """Return whether it is known which of the present executors can produce a listed dataset.

        Once a job reads it, an executor that comes later does not change this.
        """
        is_open = any(self._is_open(dataset, number) for number in self._able(dataset))
        return not is_open or dataset.content in self._told

    def ineligible(self, dataset: Dataset) -> frozenset[int]:
        """Return the numbers of executors that cannot produce it, or not for certain; never all."""
        able = self._able(dataset)
        out = {number for number in able if self._failure(dataset, number) or self._is_open(dataset, number)}
        present = {number for number in able if not self._executors[number].absence}
        unable = set(range(len(self._executors))) - set(able)
        # If all present executors are out, none is: some executor has to take the requests.
        return frozenset(unable if present <= out else unable | out)

    def opened(self, dataset: Dataset) -> frozenset[int]:
        """Return an opened dataset's ineligible executors; :meth:`tell_changes` reports changes."""
        ineligible = self._told[dataset.content] = self.ineligible(dataset)
        return ineligible

    def warnings(self, dataset: Dataset) -> tuple[str, ...]:
        """Return the user's warnings for a listed dataset."""
        lines: dict[str, None] = {}
        able = self._able(dataset)
        for number, executor in enumerate(self._executors):
            trial = self._trials.get((dataset.content, number), _Trial())
            if number not in able:
                lines[
                    f"the executor {executor.name} is left out: its functions do not see "
                    f"{dataset.listing.source}, which is a directory of the coordinator's machine: "
                    f"{executor.files_remedy}"
                ] = None
            elif trial.failure:
                lines[f"the executor {executor.name} is left out: {trial.failure}"] = None
            elif executor.absence:
                lines[f"the executor {executor.name} is missing: {executor.absence}"] = None
            else:
                lines.update(dict.fromkeys(trial.warnings))
        return tuple(lines)

    @property
    def executors(self) -> Sequence[ManagedExecutor]:
        """All executors, by number."""
        return self._all

    async def check(self, dataset: Dataset, wait_s: float) -> None:
        """Try a listed dataset on all present executors; wait at most ``wait_s``.

        Raises:
            SourceForbiddenError: functions may not read the source.
            CacheError: functions may not write to the cache.
            ConfigError: functions refuse the request, for example a custom step.
        """
        present = [number for number in self._able(dataset) if not self._executors[number].absence]
        tasks = [task for number in present if (task := self._attempt(dataset, number)) is not None]
        if tasks:
            ended, _ = await asyncio.wait(tasks, timeout=wait_s)
            for task in ended:
                task.result()  # raises only bugs
        failures = [failure for number in present if (failure := self._failure(dataset, number))]
        if failures and len(failures) == len(present) and not await self._was_produced(dataset):
            # Drop all results, so that the next caller gets new trials.
            for number in self._able(dataset):
                self._trials.pop((dataset.content, number), None)
            raise failures[0]

    def tell_changes(self, datasets: Iterable[Dataset], post_event: Callable[[Event], None]) -> None:
        """Try new executors for open datasets, and report changed eligibility to the core.

        The core must know of it before it learns that the executors accept requests.
        """
        # A single executor is never ineligible.
        if len(self._executors) == 1:
            return
        ineligible: dict[bytes, frozenset[int]] = {}
        for dataset in datasets:
            content = dataset.content
            for number in self._able(dataset):
                if not self._executors[number].absence and self._failure(dataset, number) is None:
                    self._attempt(dataset, number)
            ineligible[content] = self.ineligible(dataset)
            if ineligible[content] != self._told.get(content):
                post_event(ExecutorsIneligible(content, ineligible[content]))
        self._told = ineligible

    async def close(self) -> None:
        """Abandon what is in progress."""
        self._threads.close(SourceError("the coordinator ends"))
        await cancel_and_wait(*(trial.task for trial in self._trials.values() if trial.task is not None))

    def _attempt(self, dataset: Dataset, number: int) -> asyncio.Task[None] | None:
        """Return the current trial or a new one; ``None`` if none is needed now."""
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
        lines = [await other_region(dataset, executor.region, self._threads, self._region_of)]
        try:
            lines.append(await try_out(executor, dataset, self._cache))
            # After a success, no other trial is needed.
            trial.again_at_s = math.inf
        except InconclusiveError as error:
            lines.append(str(error))
        except SuperError as error:
            _log.warning("the executor %s is left out for %s: %s", executor.name, source, error)
            trial.failure, trial.passed = error, False
            return
        finally:
            trial.task = None
        trial.failure, trial.passed = None, True
        trial.warnings = tuple(f"{source}: {line}" for line in lines if line)
        for warning in trial.warnings:
            _log.warning("%s", warning)

    def _is_open(self, dataset: Dataset, number: int) -> bool:
        """Return whether it is unknown if a present executor can produce a dataset."""
        trial = self._trials.get((dataset.content, number), _Trial())
        executor = self._executors[number]
        return executor.remote and not (executor.absence or trial.passed or trial.failure)

    def _failure(self, dataset: Dataset, number: int) -> SuperError | None:
        """Return why an executor cannot produce a dataset; ``None`` if unknown or it can."""
        return self._trials.get((dataset.content, number), _Trial()).failure

    async def _was_produced(self, dataset: Dataset) -> bool:
        return self._audit is not None and await was_produced(dataset, self._audit)

    def _able(self, dataset: Dataset) -> list[int]:
        """Return the executors whose functions see the source at all, by number."""
        is_file = dataset.catalog.bucket.startswith("file://")
        return [
            number for number, executor in enumerate(self._executors) if not (is_file and executor.remote)
        ]
