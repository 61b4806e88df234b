"""Which executors can produce a dataset, found out before a job waits on it.

Each that is there is tried alone (:mod:`superdl.coordinator.executors.preflight`). Where all fail, that is
told as the error that it is, unless the cache holds samples, which some function has made; where one can do
it, the others are left out for that dataset, with a warning, and tried again for a later run. One that comes
later is tried then, for datasets that are open, and gets nothing of them before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from superdl.coordinator.cancelling import cancel_and_wait
from superdl.coordinator.core import ExecutorsIneligible
from superdl.coordinator.executors.preflight import Trials, made_before, remedy_for_files
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.core import Event
    from superdl.coordinator.executors.manager import Post
    from superdl.coordinator.server.datasets import Dataset

__all__ = ["Fitness"]

_log = logging.getLogger(__name__)

_REMEMBERED = 1000
_AGAIN_S = 60.0

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Fitness:
    """The trials of all executors.

    Args:
        posts: the executors, in their order. trials: one for each. audit: tells of ids which records the
        cache holds, as :meth:`superdl.coordinator.cache.cache.Cache.audit`; with it,
            no dataset is refused of which there are some.
    """

    def __init__(
        self,
        posts: Sequence[Post],
        trials: Sequence[Trials],
        *,
        audit: Callable[[bytes], Awaitable[NDArray[np.int64]]] | None = None,
    ) -> None:
        self._posts = posts
        self._trials = trials
        self._audit = audit
        self._accepted: OrderedDict[bytes, None] = OrderedDict()
        self._again_at_s: OrderedDict[tuple[bytes, int], float] = OrderedDict()
        self._late: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._told: dict[bytes, frozenset[int]] = {}
        self._failed: OrderedDict[tuple[bytes, int], tuple[float, str]] = OrderedDict()
        self._clock = asyncio.get_running_loop().time

    @classmethod
    def of(
        cls, posts: Sequence[Post], cache: str, audit: Callable[[bytes], Awaitable[NDArray[np.int64]]]
    ) -> Fitness:
        """With trials for each, which write to the cache of that address."""
        several = len(posts) > 1
        trials = [Trials(post, cache, audit=None if several else audit) for post in posts]
        return cls(posts, trials, audit=audit if several else None)

    def admit(self, source: str) -> None:
        """Refuse a source that no function can see, wherever it fetches from.

        Raises:
            ConfigError: it is a directory of this machine, and all functions run elsewhere.
        """
        errors = []
        for trials in self._trials:
            try:
                trials.admit(source)
            except SuperError as error:
                errors.append(error)
        if len(errors) == len(self._trials):
            raise errors[0]

    def passed(self, dataset: Dataset) -> bool:
        """Whether it is known of a listed dataset which executors can produce it, of those that are there.

        Once it is, one that comes later takes nothing back.
        """
        if any(self._is_open(dataset, number) for number, _ in self._able(dataset)):
            return dataset.content in self._accepted
        _remember(self._accepted, dataset.content, None)
        return True

    def unfit(self, dataset: Dataset) -> frozenset[int]:
        """The executors, by number, that cannot produce it, or of which it is not known yet; never all."""
        able = {number for number, _ in self._able(dataset)}
        out = {number for number in able if self._failure(dataset, number) or self._is_open(dataset, number)}
        there = {number for number in able if not self._posts[number].absence}
        unable = set(range(len(self._trials))) - able
        return frozenset(unable if there <= out else unable | out)

    def verdict(self, dataset: Dataset) -> ExecutorsIneligible:
        """What the core is to be told of a dataset that is opened; :meth:`tell` tells what changes."""
        unfit = self._told[dataset.content] = self.unfit(dataset)
        return ExecutorsIneligible(dataset.content, unfit)

    def warnings(self, dataset: Dataset) -> tuple[str, ...]:
        """What is to be told of a listed dataset, for people."""
        told: dict[str, None] = {}
        able = dict(self._able(dataset))
        for number, post in enumerate(self._posts):
            if number not in able:
                told[_blind(post.name, dataset)] = None
        for number, trials in able.items():
            failure = self._failure(dataset, number)
            absence = self._posts[number].absence
            if failure:
                told[f"the executor {self._posts[number].name} is left out: {failure}"] = None
            elif absence:
                told[f"the executor {self._posts[number].name} is missing: {absence}"] = None
                continue
            told.update(dict.fromkeys(trials.warnings(dataset)))
        return tuple(told)

    @property
    def absences(self) -> list[str]:
        """Why executors are not there, by number; empty for those that are."""
        return [post.absence for post in self._posts]

    async def take(self, dataset: Dataset, wait_s: float) -> None:
        """Put a listed dataset on trial at all executors that are there, and wait, at most ``wait_s``.

        Raises:
            SuperError: none can produce it; what the first said.
        """
        tried = [
            (number, trials)
            for number, trials in self._able(dataset)
            if not self._posts[number].absence
            and self._failed.get((dataset.content, number), (0.0, ""))[0] <= self._clock()
        ]
        outcomes = await asyncio.gather(
            *(trials.take(dataset, wait_s) for _, trials in tried), return_exceptions=True
        )
        failures: dict[int, SuperError] = {}
        for (number, trials), outcome in zip(tried, outcomes, strict=True):
            if isinstance(outcome, SuperError):
                failures[number] = outcome
            elif outcome is not None:
                raise outcome
            elif trials.passed(dataset):
                self._failed.pop((dataset.content, number), None)
        if failures and self._all_failed(dataset, failures) and not await self._was_made(dataset):
            # All is forgotten, so that whoever asks again has all tried again.
            for number, _ in self._able(dataset):
                self._failed.pop((dataset.content, number), None)
            raise failures[min(failures)]
        for number, error in failures.items():
            self._leave_out(dataset, number, error)

    def tell(self, datasets: Iterable[Dataset], post_event: Callable[[Event], None]) -> None:
        """Have executors that have come tried for open datasets, and tell the core whose fitness has changed.

        It is to be told before it hears that they take requests.
        """
        if len(self._posts) == 1:
            return
        told: dict[bytes, frozenset[int]] = {}
        for dataset in datasets:
            content = dataset.content
            for number, trials in self._able(dataset):
                if self._is_open(dataset, number) or (
                    trials.unclear(dataset) and not self._posts[number].absence
                ):
                    self._try_late(dataset, number)
            told[content] = self.unfit(dataset)
            if told[content] != self._told.get(content):
                post_event(ExecutorsIneligible(content, told[content]))
        self._told = told

    def _try_late(self, dataset: Dataset, number: int) -> None:
        place = dataset.content, number
        if place in self._late or self._again_at_s.get(place, 0.0) > self._clock():
            return
        _remember(self._again_at_s, place, self._clock() + _AGAIN_S)
        task = asyncio.create_task(self._until_tried(dataset, number), name=f"late trial {number}")
        self._late[place] = task
        task.add_done_callback(partial(self._ended, place))

    async def _until_tried(self, dataset: Dataset, number: int) -> None:
        try:
            await self._trials[number].take(dataset, None, again=True)
        except SuperError as error:
            self._leave_out(dataset, number, error)

    def _ended(self, place: tuple[bytes, int], task: asyncio.Task[None]) -> None:
        del self._late[place]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a trial of the executor %s failed: a bug", self._posts[place[1]].name, exc_info=error)

    def _is_open(self, dataset: Dataset, number: int) -> bool:
        """Whether an executor is there, and it is not known whether it can produce a dataset."""
        return not (
            self._posts[number].absence
            or self._trials[number].passed(dataset)
            or (dataset.content, number) in self._failed
        )

    def _failure(self, dataset: Dataset, number: int) -> str:
        """Why an executor cannot produce a dataset; empty if it can, or where that is not known."""
        failed = self._failed.get((dataset.content, number))
        # One that has passed since did so while nobody waited for it.
        return failed[1] if failed is not None and not self._trials[number].passed(dataset) else ""

    def _leave_out(self, dataset: Dataset, number: int, error: SuperError) -> None:
        name = self._posts[number].name
        _log.warning("the executor %s is left out for %s: %s", name, dataset.listing.source, error)
        _remember(self._failed, (dataset.content, number), (self._clock() + _AGAIN_S, str(error)))

    def _all_failed(self, dataset: Dataset, failures: Mapping[int, SuperError]) -> bool:
        """Whether nobody is left of those that are there."""
        return all(
            number in failures or (dataset.content, number) in self._failed or self._posts[number].absence
            for number, _ in self._able(dataset)
        )

    async def _was_made(self, dataset: Dataset) -> bool:
        """Whether some function could do it, so that what failed may pass: a restart must end no job."""
        return self._audit is not None and await made_before(dataset, self._audit)

    async def close(self) -> None:
        """Give up trials that are under way."""
        await cancel_and_wait(*self._late.values())
        for trials in self._trials:
            await trials.close()

    def _able(self, dataset: Dataset) -> list[tuple[int, Trials]]:
        """The executors whose functions see the source at all."""
        is_file = dataset.catalog.bucket.startswith("file://")
        return [
            (number, trials)
            for number, trials in enumerate(self._trials)
            if not (is_file and self._posts[number].remote)
        ]


def _remember(known: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Keep what was learned, and no more than a bounded number of such."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)


def _blind(name: str, dataset: Dataset) -> str:
    return (
        f"the executor {name} is left out: its functions do not see {dataset.listing.source}, which is a "
        f"directory of the coordinator's machine: {remedy_for_files(name)}"
    )
