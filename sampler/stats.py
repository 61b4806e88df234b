"""``SamplerStats``: the coordinator's counters for one job since it was opened."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_wire.waits import WorkCounters

if TYPE_CHECKING:
    from collections.abc import Iterable


class StallTotal(NamedTuple):
    """The number of batches that stalled for one cause, and how long readers waited in total."""

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
    """A worker connected to the coordinator, with its slots and its CPU seconds since it started."""

    name: str
    slots: int
    cpu_s: float


@dataclass(slots=True)
class PageCalls:
    """Time that the sampler's thread spent fetching pages, and that the training loop waited for them."""

    calls: int = 0
    call_s: float = 0.0
    cpu_s: float = 0.0
    wait_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class SamplerStats(WorkCounters):
    """Counters of one job, and the state of the cache that it reads from.

    ``epoch`` and ``position`` are those of the furthest rank. Of its ``ranks``, ``lapsed_ranks`` have not
    called recently. ``team`` is taken from the sampler's token. ``budget_bytes`` to ``free_bytes`` describe
    the whole cache; ``needed_bytes`` is the budget at which nothing would be dropped. ``cache_trouble`` is
    the reason why the cache does not answer the coordinator, and is empty while it does. ``store`` is the
    address of the store below it, or empty if there is none. Its packs may take ``store_room_bytes``, where
    0 means no limit. ``stall_causes`` counts stalled batches by cause (docs/runs.md lists them), and
    ``recent_stalls`` contains the newest stalls (up to 1,024), oldest first. ``status_calls`` and the fields
    after it describe this process: its calls for pages, their seconds and CPU seconds, and how long the
    training loop waited for pages.
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
        cls, job: Any, cache: Any, page_calls: PageCalls, workers: Iterable[Any] = ()
    ) -> SamplerStats:
        """Create the counters from the coordinator's messages and those of this sampler."""
        job_fields = {field.name for field in job.DESCRIPTOR.fields}
        names = [field.name for field in fields(cls) if field.name not in _COMPUTED]
        return cls(
            **{name: getattr(job if name in job_fields else cache, name) for name in names},
            workers=tuple(WorkerUse(worker.name, worker.slots, worker.cpu_s) for worker in workers),
            stall_causes=tuple(
                StallTotal(total.cause, total.batches, total.wait_s) for total in job.stall_causes
            ),
            recent_stalls=tuple(
                Stall(stall.rank, stall.epoch, stall.position, stall.cause, stall.wait_s)
                for stall in job.recent_stalls
            ),
            status_calls=page_calls.calls,
            status_s=page_calls.call_s,
            status_cpu_s=page_calls.cpu_s,
            status_wait_s=page_calls.wait_s,
        )


_COMPUTED = frozenset(
    {"workers", "stall_causes", "recent_stalls", "status_calls", "status_s", "status_cpu_s", "status_wait_s"}
)
