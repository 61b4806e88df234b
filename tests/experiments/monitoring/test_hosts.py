"""CPU of workers on other hosts: what they used between two looks."""

from __future__ import annotations

from superdl.experiments.monitoring import HostUsage, host_usages
from superdl.sampler.stats import WorkerUse


def test_figures_are_differences_and_the_coordinators_own_worker_is_not_among_them():
    before = [WorkerUse("cpu-1", 8, 10.0), WorkerUse("cpu-2", 8, 30.0), WorkerUse("local", 2, 1.0)]
    after = [
        WorkerUse("cpu-1", 8, 40.0),
        WorkerUse("cpu-2", 8, 3.0),  # it was started again
        WorkerUse("cpu-3", 4, 1.0),  # it came later
        WorkerUse("local", 2, 9.0),
    ]
    assert host_usages(before, after, 5.0) == (
        HostUsage("cpu-1", 8, 5.0, 30.0, 6.0),
        HostUsage("cpu-2", 8, 5.0, 3.0, 0.6),
        HostUsage("cpu-3", 4, 5.0, 1.0, 0.2),
    )
    assert host_usages(before, after, 0.0) == ()
