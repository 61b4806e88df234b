"""Which executors are eligible for a dataset: can produce it, as found out before a job waits on it.

Each that is there is tried alone (:mod:`superdl.coordinator.executors.preflight`). Where all fail, that is
raised as the error that it is, unless the cache holds samples, which some function has made. Where one can do
it, the others are left out for that dataset, with a warning, and tried again for a later run. One that starts
later is tried then, for datasets that are open, and gets nothing of them before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from superdl.coordinator.core import ExecutorsIneligible
from superdl.coordinator.executors.cancelling import cancel_and_wait
from superdl.coordinator.executors.preflight import Preflight, was_produced
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.core import Event
    from superdl.coordinator.executors.manager import ManagedExecutor
    from superdl.coordinator.executors.messages import ListedDataset

__all__ = ["Eligibility"]

_log = logging.getLogger(__name__)

_REMEMBERED = 1000
_AGAIN_S = 60.0

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Eligibility:
    """The preflights of all executors, and what follows from them.

    Args:
        executors: in their order.
        preflights: one for each.
        audit: tells of ids which records the cache holds, as
            :meth:`superdl.coordinator.cache.cache.Cache.audit`; with it, no dataset is refused of which there
            are some.
    """

    def __init__(
        self,
        executors: Sequence[ManagedExecutor],
        preflights: Sequence[Preflight],
        *,
        audit: Callable[[bytes], Awaitable[NDArray[np.int64]]] | None = None,
    ) -> None:
        self._executors = executors
        self._preflights = preflights
        self._audit = audit
        self._accepted: OrderedDict[bytes, None] = OrderedDict()
        self._again_at_s: OrderedDict[tuple[bytes, int], float] = OrderedDict()
        self._late: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._told: dict[bytes, frozenset[int]] = {}
        self._failed: OrderedDict[tuple[bytes, int], tuple[float, str]] = OrderedDict()
        self._clock = asyncio.get_running_loop().time

    @classmethod
    def of(
        cls,
        executors: Sequence[ManagedExecutor],
        cache: str,
        audit: Callable[[bytes], Awaitable[NDArray[np.int64]]],
    ) -> Eligibility:
        """With a preflight for each, which writes to the cache of that address."""
        several = len(executors) > 1
        preflights = [Preflight(one, cache, audit=None if several else audit) for one in executors]
        return cls(executors, preflights, audit=audit if several else None)

    def check_source(self, source: str) -> None:
        """Refuse a source that no function can see, wherever it fetches from.

        Raises:
            ConfigError: it is a directory of this machine, and all functions run elsewhere.
        """
        errors = []
        for preflight in self._preflights:
            try:
                preflight.check_source(source)
            except SuperError as error:
                errors.append(error)
        if len(errors) == len(self._preflights):
            raise errors[0]

    def is_known(self, dataset: ListedDataset) -> bool:
        """Whether it is known of a listed dataset which executors can produce it, of those that are there.

        Once it is, one that comes later takes nothing back.
        """
        if any(self._is_open(dataset, number) for number, _ in self._able(dataset)):
            return dataset.content in self._accepted
        _remember(self._accepted, dataset.content, None)
        return True

    def ineligible(self, dataset: ListedDataset) -> frozenset[int]:
        """The executors, by number, that cannot produce it, or of which it is not known yet; never all."""
        able = {number for number, _ in self._able(dataset)}
        out = {number for number in able if self._failure(dataset, number) or self._is_open(dataset, number)}
        there = {number for number in able if not self._executors[number].absence}
        unable = set(range(len(self._preflights))) - able
        return frozenset(unable if there <= out else unable | out)

    def opened(self, dataset: ListedDataset) -> frozenset[int]:
        """Who is ineligible for a dataset that is opened; :meth:`tell_changes` says what changes."""
        ineligible = self._told[dataset.content] = self.ineligible(dataset)
        return ineligible

    def warnings(self, dataset: ListedDataset) -> tuple[str, ...]:
        """What people should know of a listed dataset."""
        told: dict[str, None] = {}
        able = dict(self._able(dataset))
        for number, executor in enumerate(self._executors):
            if number not in able:
                told[_sees_no_files(executor, dataset)] = None
        for number, preflight in able.items():
            failure = self._failure(dataset, number)
            absence = self._executors[number].absence
            if failure:
                told[f"the executor {self._executors[number].name} is left out: {failure}"] = None
            elif absence:
                told[f"the executor {self._executors[number].name} is missing: {absence}"] = None
                continue
            told.update(dict.fromkeys(preflight.warnings(dataset)))
        return tuple(told)

    @property
    def absences(self) -> list[str]:
        """Why executors are not there, by number; empty for those that are."""
        return [executor.absence for executor in self._executors]

    async def check(self, dataset: ListedDataset, wait_s: float) -> None:
        """Try a listed dataset at all executors that are there, and wait, at most ``wait_s``.

        Raises:
            SuperError: none can produce it; what the first said.
        """
        tried = [
            (number, preflight)
            for number, preflight in self._able(dataset)
            if not self._executors[number].absence
            and self._failed.get((dataset.content, number), (0.0, ""))[0] <= self._clock()
        ]
        outcomes = await asyncio.gather(
            *(preflight.check(dataset, wait_s) for _, preflight in tried), return_exceptions=True
        )
        failures: dict[int, SuperError] = {}
        for (number, preflight), outcome in zip(tried, outcomes, strict=True):
            if isinstance(outcome, SuperError):
                failures[number] = outcome
            elif outcome is not None:
                raise outcome
            elif preflight.passed(dataset):
                self._failed.pop((dataset.content, number), None)
        if failures and self._all_failed(dataset, failures) and not await self._was_produced(dataset):
            # All is forgotten, so that the next one to ask has all tried again.
            for number, _ in self._able(dataset):
                self._failed.pop((dataset.content, number), None)
            raise failures[min(failures)]
        for number, error in failures.items():
            self._leave_out(dataset, number, error)

    def tell_changes(self, datasets: Iterable[ListedDataset], post_event: Callable[[Event], None]) -> None:
        """Try executors that have started for open datasets, and tell the core which eligibility has changed.

        The core has to know before it hears that they take requests.
        """
        if len(self._executors) == 1:
            return
        told: dict[bytes, frozenset[int]] = {}
        for dataset in datasets:
            content = dataset.content
            for number, preflight in self._able(dataset):
                if self._is_open(dataset, number) or (
                    preflight.inconclusive(dataset) and not self._executors[number].absence
                ):
                    self._try_late(dataset, number)
            told[content] = self.ineligible(dataset)
            if told[content] != self._told.get(content):
                post_event(ExecutorsIneligible(content, told[content]))
        self._told = told

    def _try_late(self, dataset: ListedDataset, number: int) -> None:
        place = dataset.content, number
        if place in self._late or self._again_at_s.get(place, 0.0) > self._clock():
            return
        _remember(self._again_at_s, place, self._clock() + _AGAIN_S)
        task = asyncio.create_task(self._until_tried(dataset, number), name=f"late preflight {number}")
        self._late[place] = task
        task.add_done_callback(partial(self._ended, place))

    async def _until_tried(self, dataset: ListedDataset, number: int) -> None:
        try:
            await self._preflights[number].check(dataset, None, again=True)
        except SuperError as error:
            self._leave_out(dataset, number, error)

    def _ended(self, place: tuple[bytes, int], task: asyncio.Task[None]) -> None:
        del self._late[place]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "a preflight of the executor %s failed: a bug", self._executors[place[1]].name, exc_info=error
            )

    def _is_open(self, dataset: ListedDataset, number: int) -> bool:
        """Whether an executor is there, and it is not known whether it can produce a dataset."""
        return not (
            self._executors[number].absence
            or self._preflights[number].passed(dataset)
            or (dataset.content, number) in self._failed
        )

    def _failure(self, dataset: ListedDataset, number: int) -> str:
        """Why an executor cannot produce a dataset; empty if it can, or where that is not known."""
        failed = self._failed.get((dataset.content, number))
        # One that has passed since did so while nobody waited for it.
        return failed[1] if failed is not None and not self._preflights[number].passed(dataset) else ""

    def _leave_out(self, dataset: ListedDataset, number: int, error: SuperError) -> None:
        name = self._executors[number].name
        _log.warning("the executor %s is left out for %s: %s", name, dataset.listing.source, error)
        _remember(self._failed, (dataset.content, number), (self._clock() + _AGAIN_S, str(error)))

    def _all_failed(self, dataset: ListedDataset, failures: Mapping[int, SuperError]) -> bool:
        """Whether none is left of those that are there."""
        return all(
            number in failures or (dataset.content, number) in self._failed or self._executors[number].absence
            for number, _ in self._able(dataset)
        )

    async def _was_produced(self, dataset: ListedDataset) -> bool:
        """Whether some function could do it, so that what failed may pass: a restart must end no job."""
        return self._audit is not None and await was_produced(dataset, self._audit)

    async def close(self) -> None:
        """Give up what is under way."""
        await cancel_and_wait(*self._late.values())
        for preflight in self._preflights:
            await preflight.close()

    def _able(self, dataset: ListedDataset) -> list[tuple[int, Preflight]]:
        """The executors whose functions see the source at all."""
        is_file = dataset.catalog.bucket.startswith("file://")
        return [
            (number, preflight)
            for number, preflight in enumerate(self._preflights)
            if not (is_file and self._executors[number].remote)
        ]


def _remember(known: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Keep what was learned, and no more than a bounded number of such."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)


def _sees_no_files(executor: ManagedExecutor, dataset: ListedDataset) -> str:
    return (
        f"the executor {executor.name} is left out: its functions do not see {dataset.listing.source}, which "
        f"is a directory of the coordinator's machine: {executor.files_remedy}"
    )
