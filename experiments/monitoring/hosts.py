"""CPU use of a run's workers, reported to their coordinator with each heartbeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from superdl.experiments.records import CountedLoader
    from superdl.sampler.stats import WorkerUse

__all__ = ["HostUsage", "host_usages", "workers_of"]

_OWN = "local"


@dataclass(frozen=True, slots=True)
class HostUsage:
    """The use of a host's worker from the first training step to the last epoch's end.

    ``cpu_cores`` is CPU seconds per second of ``wall_s``.
    """

    host: str
    slots: int
    wall_s: float
    cpu_s: float
    cpu_cores: float


def host_usages(
    before: Iterable[WorkerUse], after: Iterable[WorkerUse], wall_s: float
) -> tuple[HostUsage, ...]:
    """Return the use of each remote host's worker, by name, between two readings.

    A worker that was started in between counts from its start. The coordinator's own worker is excluded: its
    CPU is part of the coordinator's.

    >>> from superdl.sampler.stats import WorkerUse
    >>> host_usages([WorkerUse("cpu-1", 8, 10.0)], [WorkerUse("cpu-1", 8, 40.0)], 5.0)[0].cpu_cores
    6.0
    """
    cpu_before = {worker.name: worker.cpu_s for worker in before}
    usages = []
    for worker in after:
        used_s = worker.cpu_s - cpu_before.get(worker.name, 0.0)
        # The counter of a worker that restarted begins at zero.
        cpu_s = used_s if used_s >= 0 else worker.cpu_s
        if worker.name != _OWN and wall_s > 0:
            usages.append(HostUsage(worker.name, worker.slots, wall_s, cpu_s, cpu_s / wall_s))
    return tuple(usages)


def workers_of(loader: CountedLoader) -> Sequence[WorkerUse]:
    """Return the workers of a loader's coordinator; empty if it does not answer."""
    try:
        workers: Sequence[WorkerUse] = getattr(loader.job_stats(), "workers", ())
    except SuperError:
        return ()
    return workers
