"""``SamplerStats``: the coordinator's counters for one job since it was opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_wire.stall_causes import WorkCounters

if TYPE_CHECKING:
    from collections.abc import Iterable


class StallTotal(NamedTuple):
    """The number of batches stalled by one cause, and how long readers waited for them in total."""

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
    """A worker connected to the coordinator, with its slots and the CPU seconds it has used."""

    name: str
    slots: int
    cpu_s: float


@dataclass(slots=True)
class PageCalls:
    """Time spent fetching pages, and time that the training loop waited for them."""

    status_calls: int = 0
    status_s: float = 0.0
    status_cpu_s: float = 0.0
    status_wait_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class SamplerStats(WorkCounters):
    """Counters of one job, and the state of the cache that it reads from.

    ``epoch`` and ``position`` come from the most advanced rank. ``lapsed_ranks`` of the job's ``ranks``
    have not called recently. ``team`` comes from the sampler's token. ``budget_bytes`` to ``free_bytes``
    describe the whole cache, and ``needed_bytes`` is the budget at which nothing would be dropped.
    ``cache_trouble`` is the reason the coordinator cannot reach the cache, or empty. ``store`` is the address
    of the store below the cache, or empty without one. Its packs may take up to ``store_room_bytes``, where 0
    means no limit. ``stall_causes`` counts stalled batches by cause (docs/runs.md lists the causes), and
    ``recent_stalls`` holds the latest stalls (up to 1,024), oldest first. ``status_calls`` and the fields
    after it describe this process: its page calls, the seconds and CPU seconds they took, and how long the
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
        """Combine the coordinator's messages with this process's page calls."""

        def copied(kind: Any, messages: Iterable[Any]) -> tuple[Any, ...]:
            return tuple(kind(*(getattr(message, name) for name in kind._fields)) for message in messages)

        values: dict[str, Any] = {
            **asdict(page_calls),
            "workers": copied(WorkerUse, workers),
            "stall_causes": copied(StallTotal, job.stall_causes),
            "recent_stalls": copied(Stall, job.recent_stalls),
        }
        for name in {field.name for field in fields(cls)} - values.keys():
            values[name] = getattr(job if name in job.DESCRIPTOR.fields_by_name else cache, name)
        return cls(**values)
