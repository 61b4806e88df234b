"""A loader's counters, as the coordinator or the loader itself tells them, cut into the laps of passes.

Plain values and who has them; what a step and a pass measure is in `experiments.records`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, TypeAlias

from superdl.super_wire.counters import WorkCounters
from superdl.super_wire.errors import CoordinatorError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.experiments.training.ranks import Ranks
    from superdl.sampler.stats import SamplerStats

__all__ = ["CountedLoader", "CounterLaps", "LoaderCounters", "LoaderStats", "added"]

_log = logging.getLogger(__name__)

LoaderStats: TypeAlias = "SamplerStats | LoaderCounters"
"""A job's counters since it was opened, of the coordinator or of a loader that decodes by itself."""


@dataclass(slots=True)
class LoaderCounters(WorkCounters):
    """One reading of a job's counters, or the difference of two.

    The counters of status are of this process: calls for pages of the plan, their seconds and CPU seconds in
    a thread of their own, and the seconds that the loop waited for a page.
    """

    status_calls: int = 0
    status_s: float = 0.0
    status_cpu_s: float = 0.0
    status_wait_s: float = 0.0

    @property
    def recent_stalls(self) -> tuple[()]:
        """None: a loader that decodes by itself has nobody who could tell."""
        return ()

    @classmethod
    def read(cls, stats: LoaderStats) -> LoaderCounters:
        """Copy the counters out of what a loader told."""
        return cls(**{item.name: getattr(stats, item.name) for item in fields(cls)})

    def since(self, earlier: LoaderCounters) -> LoaderCounters:
        """Return what was counted after ``earlier``.

        A counter that went down was reset (the coordinator was restarted): then all of it is new, which is
        how Prometheus treats counters. Not so dollars: a share falls when other jobs use the samples that it
        is for. They were reset if anything else was.
        """
        pairs = {item.name: (getattr(self, item.name), getattr(earlier, item.name)) for item in fields(self)}
        was_reset = any(now < before for name, (now, before) in pairs.items() if not name.endswith("usd"))
        return LoaderCounters(
            **{
                name: now if was_reset and (now < before or name.endswith("usd")) else now - before
                for name, (now, before) in pairs.items()
            }
        )

    def over_ranks(self, ranks: Ranks) -> LoaderCounters:
        """Return the sums of what each rank counted for itself."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        sums = ranks.sums([float(value) for value in values.values()])
        kinds = map(type, values.values())
        return LoaderCounters(
            **{name: kind(value) for name, kind, value in zip(values, kinds, sums, strict=True)}
        )


def added(counters: Iterable[LoaderCounters]) -> LoaderCounters:
    """All of them together."""
    parts = list(counters)
    return LoaderCounters(
        **{item.name: sum(getattr(one, item.name) for one in parts) for item in fields(LoaderCounters)}
    )


class CountedLoader(Protocol):
    """What can tell a job's counters: a sampler, or a loader that decodes by itself."""

    def job_stats(self) -> LoaderStats:
        """Return the counters as they are now."""


class CounterLaps:
    """Cuts a loader's running counters into laps, each of which begins where the last one ended.

    The first lap begins with the job, whose counters start at zero: it has what is produced ahead of the
    first epoch.
    """

    def __init__(self, loader: CountedLoader) -> None:
        """Cut the counters of ``loader``."""
        self._loader = loader
        self._last = LoaderCounters()

    def lap(self) -> LoaderCounters | None:
        """Return what was counted since the last lap.

        None if the coordinator did not answer: a training run does not end for want of a statistic. The next
        lap then covers both.
        """
        try:
            now = LoaderCounters.read(self._loader.job_stats())
        except CoordinatorError as error:
            _log.warning("the coordinator gave no job statistics: %s", error)
            return None
        lap, self._last = now.since(self._last), now
        return lap
