"""Which executors can produce a dataset, found out before a job waits on it.

Each is tried alone (:mod:`coordinator.trials`). Where all fail, that is told as the error that it is; where
one can do it, the others are left out for that dataset, with a warning, and tried again for a later run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.crew import Post
    from coordinator.datasets import Dataset
    from coordinator.trials import Trials

__all__ = ["Fitness"]

_log = logging.getLogger(__name__)

_REMEMBERED = 1000
_AGAIN_S = 60.0


class Fitness:
    """The trials of all executors.

    Args:
        posts: the executors, in their order.
        trials: one for each.
    """

    def __init__(self, posts: Sequence[Post], trials: Sequence[Trials]) -> None:
        self._posts = posts
        self._trials = trials
        self._failed: OrderedDict[tuple[bytes, int], tuple[float, str]] = OrderedDict()
        self._clock = asyncio.get_running_loop().time

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
        """Whether it is known of a listed dataset which executors can produce it."""
        return all(
            trials.passed(dataset) or (dataset.content, number) in self._failed
            for number, trials in self._able(dataset)
        )

    def unfit(self, dataset: Dataset) -> frozenset[int]:
        """The executors, by number, that cannot produce it; never all."""
        able = dict(self._able(dataset))
        failed = {number for number in able if (dataset.content, number) in self._failed}
        return frozenset(set(range(len(self._trials))) - set(able) | failed)

    def warnings(self, dataset: Dataset) -> tuple[str, ...]:
        """What is to be told of a listed dataset, for people."""
        told: dict[str, None] = {}
        for number, trials in self._able(dataset):
            failure = self._failed.get((dataset.content, number))
            absence = self._posts[number].absence
            if failure is not None:
                told[f"the executor {self._posts[number].name} is left out: {failure[1]}"] = None
            elif absence:
                told[f"the executor {self._posts[number].name} is missing: {absence}"] = None
            told.update(dict.fromkeys(trials.warnings(dataset)))
        return tuple(told)

    @property
    def absences(self) -> list[str]:
        """Why executors are not there, by number; empty for those that are."""
        return [post.absence for post in self._posts]

    async def take(self, dataset: Dataset, wait_s: float) -> None:
        """Put a listed dataset on trial at all executors, and wait for the outcome, at most ``wait_s``.

        Raises:
            SuperError: none can produce it; what the first said.
        """
        tried = [
            (number, trials)
            for number, trials in self._able(dataset)
            if self._failed.get((dataset.content, number), (0.0, ""))[0] <= self._clock()
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
        if failures and self._all_failed(dataset, failures):
            raise failures[min(failures)]
        for number, error in failures.items():
            name = self._posts[number].name
            _log.warning("the executor %s is left out for %s: %s", name, dataset.listing.source, error)
            self._failed[dataset.content, number] = (self._clock() + _AGAIN_S, str(error))
            if len(self._failed) > _REMEMBERED:
                self._failed.popitem(last=False)

    def _all_failed(self, dataset: Dataset, failures: Mapping[int, SuperError]) -> bool:
        """Whether nobody is left; then all is forgotten, so that whoever asks again has all tried again."""
        able = [(dataset.content, number) for number, _ in self._able(dataset)]
        if not all(number in failures or (content, number) in self._failed for content, number in able):
            return False
        for place in able:
            self._failed.pop(place, None)
        return True

    async def close(self) -> None:
        """Give up trials that are under way."""
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
