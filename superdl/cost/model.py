"""What each way of loading costs: for a first epoch, a later one, and a month. Pure functions.

Jobs are alike: each has a machine, trains the same number of epochs, and all begin together. How fast each
goes is the least of what its GPU takes, its CPUs load and the cache's network brings. What a cache holds is
the production's own arithmetic of memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.cache import CacheInfo, combined
from superdl.coordinator.core import footprint
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.coordinator.executors.price_table import Machine, PriceTable
    from superdl.cost.scenario import Scenario

__all__ = [
    "MONTH_HOURS",
    "PARTS",
    "STORE_SHARE",
    "Bill",
    "Period",
    "cache_samples",
    "embedded",
    "embedded_reuse",
    "pace",
    "produced",
    "reuse",
    "shared",
    "stored_on_nvme",
    "vcpus_rate",
]

MONTH_HOURS = 730.0

_GB = 1e9
_GIB = 2**30
_MIB_PER_GIB = 1024
_MS = 1e-3
_VCPU_MB = 1769  # of a function's memory, for one vCPU
_TASK_VCPUS, _TASK_GB = 1, 2  # the stack's smallest coordinator
_EMBEDDED_SHARE = 0.25  # of a machine's memory: what the embedded default takes for its cache
STORE_SHARE = 0.9  # of a disk: what a store may take of it at most


@dataclass(frozen=True, slots=True)
class Period:
    """A span of time of all jobs: what is produced and fetched in it, and what that costs in US dollars."""

    hours: float = 0.0
    produced: float = 0.0
    trainer: float = 0.0
    functions: float = 0.0
    gets: float = 0.0
    cache: float = 0.0
    coordinator: float = 0.0
    transfer: float = 0.0
    disk: float = 0.0
    store: float = 0.0
    conversion: float = 0.0

    @property
    def usd(self) -> float:
        """All of it."""
        return math.fsum(getattr(self, name) for name in PARTS)

    def times(self, count: float) -> Period:
        """So many of it."""
        return Period(*(getattr(self, entry.name) * count for entry in fields(self)))

    def plus(self, other: Period) -> Period:
        """Both."""
        return Period(*(getattr(self, entry.name) + getattr(other, entry.name) for entry in fields(self)))


PARTS = ("trainer", "functions", "gets", "cache", "coordinator", "transfer", "disk", "store", "conversion")
"""The costs of a period, by what is paid for."""


@dataclass(frozen=True, slots=True)
class Bill:
    """A way of loading, and what it costs.

    ``tag`` names the way on any machine, ``kind`` what becomes of the images (:mod:`superdl.cost.choices`).
    ``images_per_s`` of each job in an epoch after the first; ``bound`` says what keeps it from more;
    ``functions_at_once`` as many as Lambda runs, or hosts of Ray, in the first epoch.
    """

    tag: str
    kind: str
    machine: str
    images_per_s: float
    bound: str
    reuse: float
    functions_at_once: float
    first: Period
    later: Period
    month: Period

    @property
    def loader(self) -> str:
        """Machine and way."""
        return f"{self.machine}, {self.tag}"


def cache_samples(scenario: Scenario, prices: PriceTable) -> int:
    """Samples that the cache's nodes hold, after what is reserved and the room for clients' buffers."""
    node = prices.cache_node(scenario.cache_node)
    maxmemory = int(node.memory_gib * _GIB * (1 - scenario.reserved_share))
    infos = [_node(str(number), maxmemory) for number in range(scenario.cache_nodes)]
    info = infos[0] if len(infos) == 1 else combined(infos, [1] * len(infos), len(infos))
    return _fitting(info.budget(0), scenario)


def reuse(scenario: Scenario, prices: PriceTable) -> float:
    """The share of a sample's later uses that find it in the shared cache."""
    return min(1.0, cache_samples(scenario, prices) / scenario.samples)


def embedded_reuse(scenario: Scenario, machine: Machine) -> float:
    """The same for the cache that the embedded default starts on a training machine."""
    if scenario.random:
        return 0.0
    info = _node("embedded", int(machine.memory_gib * _GIB * _EMBEDDED_SHARE))
    return min(1.0, _fitting(info.budget(0), scenario) / scenario.samples)


def _node(name: str, maxmemory: int) -> CacheInfo:
    return CacheInfo(frozenset({name}), 0, maxmemory, "noeviction", maxmemory, 0)


def _fitting(budget_bytes: int, scenario: Scenario) -> int:
    return budget_bytes // int(footprint(np.array([scenario.record_bytes]))[0])


def produced(scenario: Scenario, share: float) -> tuple[float, float]:
    """Samples that functions make for all jobs, in a first epoch and in a later one.

    The first use of a sample makes it; of all others a part, as much as the cache does not hold. Jobs in step
    use a sample once together.
    """
    size = float(scenario.samples)
    uses = size if scenario.in_step else size * scenario.jobs
    first = size + (uses - size) * (1 - share)
    return (first, first) if scenario.random else (first, uses * (1 - share))


def vcpus_rate(scenario: Scenario, machine: Machine, cpu_ms: float, *, kept: float = 0.0) -> float:
    """Images/s that a machine's vCPUs handle at ``cpu_ms`` each on the core measured, some ``kept`` apart."""
    worth = scenario.arm_vcpu if machine.arm else scenario.x86_vcpu
    return max(machine.vcpus - kept, 0.0) * worth / (cpu_ms * _MS)


def pace(
    scenario: Scenario,
    prices: PriceTable,
    name: str,
    cpu_ms: float,
    others: Mapping[str, float] | None = None,
) -> tuple[str, float, float]:
    """What holds a training machine back, its images/s, and the hours that an epoch takes it."""
    machine = prices.machine(name)
    bounds = {
        "GPU": scenario.images_per_s * max(machine.gpus, 1),
        "trainer's CPU": vcpus_rate(scenario, machine, cpu_ms, kept=scenario.trainer_vcpus),
        **(others or {}),
    }
    bound, rate = min(bounds.items(), key=lambda one: one[1])
    if not rate > 0:
        kept = f"trainer_vcpus is {scenario.trainer_vcpus:g}"
        raise ConfigError(f"{name} has no vCPU left to load with: {kept}; take fewer, or another machine")
    return bound, rate, scenario.samples / rate / 3600


def shared(scenario: Scenario, prices: PriceTable, executor: str, *, stored: bool = False) -> Bill:
    """SUPER, functions and cache apart from the trainers and shared by them; what is ``stored`` in S3 is
    decoded once, and restored from there.
    """
    share, hosts = reuse(scenario, prices), executor == "ray"
    kind = f"{'Ray' if hosts else 'Lambda'}{', store in S3' if stored else ''}"
    needs = zip(produced(scenario, share), (scenario.samples, 0), strict=True)
    epochs = [
        _shared_epoch(scenario, prices, executor, least if stored else made, made - least if stored else 0.0)
        for made, least in needs
    ]
    (first, _, _), (later, bound, rate) = epochs
    at_once = first.produced / (first.hours * 3600) * _function_s(scenario, prices, executor)
    stay = scenario.samples * scenario.record_bytes / _GB * prices.storage.s3_gb_month / MONTH_HOURS * stored
    puts = scenario.samples / scenario.request_samples * prices.of(executor).store_put * stored
    first = first.plus(Period(store=stay * first.hours + puts))
    later = later.plus(Period(store=stay * later.hours))
    month = first.plus(later.times(scenario.epochs - 1))
    month = month.plus(Period(store=stay * max(MONTH_HOURS - month.hours, 0.0)))  # the jobs have ended then
    if scenario.always_up:
        month = _with_standing(scenario, prices, executor, month, max(MONTH_HOURS, month.hours))
    return Bill(
        tag=f"SUPER with {kind}",
        kind="SUPER",
        machine=scenario.machine,
        images_per_s=rate,
        bound=bound,
        reuse=0.0 if scenario.random else share,
        functions_at_once=math.ceil(at_once / prices.machine(scenario.cpu_host).vcpus) if hosts else at_once,
        first=first,
        later=later,
        month=month,
    )


def _function_s(scenario: Scenario, prices: PriceTable, executor: str, cpu_ms: float | None = None) -> float:
    """Seconds of a vCPU that one sample takes there, what is done in vain included; to be decoded, unless
    ``cpu_ms`` says otherwise.
    """
    cpu_ms = scenario.function_cpu_ms if cpu_ms is None else cpu_ms
    if executor == "lambda":
        # Lambda gives CPU in proportion to memory; more than one vCPU is not counted on.
        vcpus = scenario.function_mb / _VCPU_MB
        work_s = cpu_ms * _MS / (scenario.lambda_vcpu * min(vcpus, 1.0))
        return scenario.spare * (work_s + scenario.request_s / scenario.request_samples)
    host = prices.machine(scenario.cpu_host)
    return scenario.spare * host.vcpus / vcpus_rate(scenario, host, cpu_ms)


def _shared_epoch(
    scenario: Scenario, prices: PriceTable, executor: str, made: float, restored: float = 0.0
) -> tuple[Period, str, float]:
    """One epoch of all jobs in which so many samples are produced and restored; what bounds each job, and its
    pace. A restored sample takes a GET of its own: neighbours in a pack are seldom wanted together.
    """
    node, of = prices.cache_node(scenario.cache_node), prices.of(executor)
    read, done = float(scenario.samples * scenario.jobs), made * scenario.spare
    come, fetched = made + restored, restored * scenario.spare
    network = scenario.cache_nodes * node.network_gbps * _GB / 8 / scenario.record_bytes
    bound, rate, hours = pace(
        scenario,
        prices,
        scenario.machine,
        scenario.read_cpu_ms,
        {"cache's network": network * scenario.samples / (read + come)},
    )
    if executor == "lambda":
        memory_gb = scenario.function_mb / _MIB_PER_GIB
        restoring_s = restored * _function_s(scenario, prices, executor, scenario.restore_cpu_ms)
        functions = (made * _function_s(scenario, prices, executor) + restoring_s) * memory_gb * of.gb_s
        functions += (done + fetched) / scenario.request_samples * of.invocation
    else:
        host = prices.machine(scenario.cpu_host)
        vcpus = made / (hours * 3600) * _function_s(scenario, prices, executor)
        functions = math.ceil(vcpus / host.vcpus) * host.hour * hours
    crossing = 0.0 if scenario.one_zone else (read + come) * scenario.record_bytes / _GB
    moved = done * scenario.source_bytes * of.source_gb
    moved += (done + fetched + read) * scenario.record_bytes * of.record_gb
    period = Period(
        hours=hours,
        produced=made,
        trainer=scenario.jobs * prices.machine(scenario.machine).hour * hours,
        functions=functions,
        gets=done * of.source_request,
        transfer=crossing * prices.transfer.between_zones_gb + moved / _GB,
        store=fetched * of.source_request,
    )
    return _with_standing(scenario, prices, executor, period, hours), bound, rate


def _with_standing(
    scenario: Scenario, prices: PriceTable, executor: str, period: Period, hours: float
) -> Period:
    """The same with what is paid by the hour whether it is used or not, for so many hours."""
    task = _TASK_VCPUS * prices.fargate.vcpu_hour + _TASK_GB * prices.fargate.gb_hour
    endpoints = scenario.endpoints * prices.endpoint.hour if executor == "lambda" else 0.0
    cache = scenario.cache_nodes * prices.cache_node(scenario.cache_node).hour * hours
    return replace(period, cache=cache, coordinator=(task + endpoints) * hours)


def embedded(scenario: Scenario, prices: PriceTable, *, stored: float = 0.0) -> Bill:
    """SUPER without a deployment: functions and cache in the training machine, each job for itself. A share
    that is ``stored`` on its NVMe is decoded once and read from there.
    """
    machine = prices.machine(scenario.machine)
    share = max(embedded_reuse(scenario, machine), stored)
    disk = scenario.nvme_mb_per_s * 1e6 / scenario.record_bytes

    def epoch(made: float) -> tuple[Period, str, float]:
        cpu_ms = made * scenario.function_cpu_ms + scenario.read_cpu_ms
        others = {"NVMe": disk / (1.0 - made)} if stored and made < 1 else {}
        bound, rate, hours = pace(scenario, prices, scenario.machine, cpu_ms, others)
        count = made * scenario.samples * scenario.jobs
        trainer, gets = scenario.jobs * machine.hour * hours, count * prices.of("local").source_request
        return Period(hours=hours, produced=count, trainer=trainer, gets=gets), bound, rate

    (first, _, _), (later, bound, rate) = epoch(1.0), epoch(1.0 - share)
    month = first.plus(later.times(scenario.epochs - 1))
    tag = f"SUPER embedded{', store on NVMe' if stored else ''}"
    return Bill(tag, "SUPER", scenario.machine, rate, bound, share, 0.0, first, later, month)


def stored_on_nvme(scenario: Scenario, prices: PriceTable) -> Bill | None:
    """The same with a store on the machine's own disk; ``None`` where that holds no more than memory does."""
    machine = prices.machine(scenario.machine)
    room_bytes = 0.0 if scenario.random else machine.nvme_gb * _GB * STORE_SHARE
    share = min(1.0, room_bytes / (scenario.samples * scenario.record_bytes))
    more = share > embedded_reuse(scenario, machine)
    return embedded(scenario, prices, stored=share) if more else None
