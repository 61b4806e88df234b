"""``SamplerStats``: what the coordinator has counted for one job, as plain numbers.

Counters run from the opening of the job and go over all its ranks. Showing them is others' work.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_wire.counters import WorkCounters

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SamplerStats", "Stall", "StallTotal", "StatusChecks", "WorkerUse"]


class StallTotal(NamedTuple):
    """How many batches stalled for one cause, and how long readers waited, several at once maybe."""

    cause: str
    batches: int
    wait_s: float


class Stall(NamedTuple):
    """A batch of this job that a reader waited for."""

    rank: int
    epoch: int
    position: int
    cause: str
    wait_s: float


class WorkerUse(NamedTuple):
    """A worker that is connected to the coordinator: its slots, and CPU seconds since it was started."""

    name: str
    slots: int
    cpu_s: float


@dataclass(slots=True)
class StatusChecks:
    """What the sampler's own thread has spent on asking for pages, and how long the loop waited for one."""

    calls: int = 0
    call_s: float = 0.0
    cpu_s: float = 0.0
    wait_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class SamplerStats(WorkCounters):
    """Counters of one job, and the state of the cache that it reads from.

    ``epoch`` and ``position`` are those of the furthest rank; of its ``ranks`` the ``lapsed_ranks`` have not
    called lately. ``team`` is the one that the sampler's token names. The fields from ``budget_bytes`` to
    ``free_bytes`` describe the whole cache; ``needed_bytes`` is the budget with which nothing would be
    dropped. ``cache_trouble`` says why the cache does not answer the coordinator, and is empty while it does.
    ``store`` is the address of the store below it, empty if there is none; its packs may take
    ``store_room_bytes`` in all, 0 where that is unbounded; ``store_trouble`` is empty while all is well.

    ``workers`` are those that are connected to the coordinator. ``stall_causes`` say why batches stalled
    (docs/runs.md lists them), ``recent_stalls`` are the newest (up to 1,024), oldest first. ``status_calls``
    and the following are of this process: its calls for pages of the plan, their seconds and CPU seconds, and
    the seconds that the loop waited for a page.
    """

    job: str
    source: str
    epoch: int
    position: int
    requests_in_flight: int
    lookahead_batches: int
    interval_s: float
    lapsed: bool
    ranks: int
    lapsed_ranks: int
    team: str
    budget_bytes: int
    resident_bytes: int
    resident_samples: int
    in_flight_samples: int
    dropped_samples: int
    reproduced_samples: int
    thrashing: bool
    needed_bytes: int
    total_requests_in_flight: int
    concurrency: int
    capacity: int
    total_usd: float
    usd_per_hour: float
    spending: str
    free_bytes: int
    cache_trouble: str
    store: str
    store_used_bytes: int
    store_room_bytes: int
    store_packs: int
    store_trouble: str
    workers: tuple[WorkerUse, ...] = ()
    stall_causes: tuple[StallTotal, ...] = ()
    recent_stalls: tuple[Stall, ...] = ()
    status_calls: int = 0
    status_s: float = 0.0
    status_cpu_s: float = 0.0
    status_wait_s: float = 0.0

    @classmethod
    def from_messages(
        cls, job: Any, cache: Any, checks: StatusChecks, workers: Iterable[Any] = ()
    ) -> SamplerStats:
        """From the proto messages ``JobStats``, ``CacheStats`` and ``WorkerStats``, and what this sampler has
        counted.
        """
        of_job = {field.name for field in job.DESCRIPTOR.fields}
        told = [field.name for field in fields(cls) if field.name not in _COMPUTED]
        return cls(
            **{name: getattr(job if name in of_job else cache, name) for name in told},
            workers=tuple(WorkerUse(one.name, one.slots, one.cpu_s) for one in workers),
            stall_causes=tuple(StallTotal(one.cause, one.batches, one.wait_s) for one in job.stall_causes),
            recent_stalls=tuple(
                Stall(one.rank, one.epoch, one.position, one.cause, one.wait_s) for one in job.recent_stalls
            ),
            status_calls=checks.calls,
            status_s=checks.call_s,
            status_cpu_s=checks.cpu_s,
            status_wait_s=checks.wait_s,
        )


_COMPUTED = frozenset(
    {"workers", "stall_causes", "recent_stalls", "status_calls", "status_s", "status_cpu_s", "status_wait_s"}
)
