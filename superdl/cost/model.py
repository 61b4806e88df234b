"""Bills for five ways of loading: for the first epoch, a later epoch, and a month of identical jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.cache import CacheInfo, combined
from superdl.coordinator.core import footprint
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.coordinator.executors.price_table import Machine, PriceTable
    from superdl.cost.scenario import Scenario

_MONTH_HOURS = 730.0

_STORED = "SUPER embedded, store on NVMe"
_CONVERTED = "LitData raw"

_GB = 1e9
_GIB = 2**30
_MIB_PER_GIB = 1024
_MS = 1e-3
_VCPU_MB = 1769  # MB of a function's memory per vCPU
_TASK_VCPUS, _TASK_GB = 1, 2  # the stack's smallest coordinator
_EMBEDDED_SHARE = 0.25  # share of a machine's memory that the embedded default uses for its cache
_STORE_SHARE = 0.9  # largest share of a disk for a store


@dataclass(frozen=True, slots=True)
class Period:
    """A time period across all jobs: samples produced, and costs in USD."""

    hours: float = 0.0
    produced: float = 0.0
    trainer_usd: float = 0.0
    functions_usd: float = 0.0
    gets_usd: float = 0.0
    cache_usd: float = 0.0
    coordinator_usd: float = 0.0
    transfer_usd: float = 0.0
    store_usd: float = 0.0
    conversion_usd: float = 0.0

    @property
    def usd(self) -> float:
        """Return the total cost."""
        return math.fsum(getattr(self, name) for name in PARTS)

    def plus(self, other: Period, times: float = 1.0) -> Period:
        """Return this period plus ``other`` multiplied by ``times``."""
        names = [entry.name for entry in fields(self)]
        return Period(*(getattr(self, name) + times * getattr(other, name) for name in names))


# The costs of a period, by cost item.
PARTS = tuple(entry.name for entry in fields(Period) if entry.name.endswith("_usd"))


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of one way of loading, identified by ``tag``."""

    tag: str
    # Images/s of each job in an epoch after the first, and the resource that limits them.
    images_per_s: float
    bound: str
    first: Period
    later: Period
    month: Period
    # Share of samples that need not be produced after the first epoch.
    reuse: float = 0.0


class _Epoch(NamedTuple):
    """One epoch of all jobs, with each job's bottleneck and images/s."""

    period: Period
    bound: str
    images_per_s: float


def bills(scenario: Scenario, prices: PriceTable) -> list[Bill]:
    """Return a bill for each possible way of loading; raise ``ConfigError`` if a machine has no price."""
    absent = unavailable(scenario, prices)
    rows = [_with_lambda(scenario, prices), _embedded(scenario, prices)]
    if _STORED not in absent:
        rows.append(_embedded(scenario, prices, store_share=_store_share(scenario, prices)))
    rows.append(_decoding(scenario, prices))
    rows.append(_converted(scenario, prices))
    return rows


def unavailable(scenario: Scenario, prices: PriceTable) -> dict[str, str]:
    """Map the tag of each way of loading that has no bill to the reason."""
    if not prices.machine(scenario.machine).nvme_gb:
        return {_STORED: f"{scenario.machine} has no NVMe"}
    if _store_share(scenario, prices) <= _embedded_reuse(scenario, prices):
        return {_STORED: "the machine's memory already holds as many samples"}
    return {}


def cache_samples(scenario: Scenario, prices: PriceTable) -> int:
    """Return how many samples fit in the cache, not counting reserved memory and buffers."""
    node_gib = prices.cache_node(scenario.cache_node).memory_gib * (1 - scenario.reserved_share)
    return _fitting(scenario, node_gib, scenario.cache_nodes)


def _fitting(scenario: Scenario, node_gib: float, nodes: int) -> int:
    """Return how many samples fit in a cache of ``nodes`` nodes with ``node_gib`` of maxmemory each."""
    maxmemory = int(node_gib * _GIB)
    infos = [
        CacheInfo(frozenset({str(number)}), 0, maxmemory, "noeviction", maxmemory, 0)
        for number in range(nodes)
    ]
    # The budget is computed as in production.
    info = infos[0] if nodes == 1 else combined(infos, [1] * nodes, nodes)
    return info.budget(0) // int(footprint(np.array([scenario.record_bytes]))[0])


def _embedded_reuse(scenario: Scenario, prices: PriceTable) -> float:
    fits = _fitting(scenario, prices.machine(scenario.machine).memory_gib * _EMBEDDED_SHARE, 1)
    return min(1.0, fits / scenario.samples)


def _store_share(scenario: Scenario, prices: PriceTable) -> float:
    room_bytes = prices.machine(scenario.machine).nvme_gb * _GB * _STORE_SHARE
    return min(1.0, room_bytes / (scenario.samples * scenario.record_bytes))


def _vcpus_rate(scenario: Scenario, machine: Machine, cpu_ms: float, *, reserved: float = 0.0) -> float:
    """Return a machine's images/s on its unreserved vCPUs, at ``cpu_ms`` per image on the measured core."""
    speed = scenario.arm_vcpu if machine.arm else scenario.x86_vcpu
    return max(machine.vcpus - reserved, 0.0) * speed / (cpu_ms * _MS)


def _epoch(scenario: Scenario, prices: PriceTable, cpu_ms: float, gets: float, **limits: float) -> _Epoch:
    """Return an epoch with ``gets`` GETs, limited by its slowest part, including ``limits`` in images/s."""
    machine = prices.machine(scenario.machine)
    bounds = {
        "GPU": scenario.images_per_s * max(machine.gpus, 1),
        "trainer's CPU": _vcpus_rate(scenario, machine, cpu_ms, reserved=scenario.trainer_vcpus),
        **limits,
    }
    bound, rate = min(bounds.items(), key=lambda entry: entry[1])
    if not rate > 0:
        raise ConfigError(
            f"{scenario.machine} has no vCPUs left for loading with trainer_vcpus="
            f"{scenario.trainer_vcpus:g}: lower it or use a larger machine"
        )
    hours = scenario.samples / rate / 3600
    trainer = scenario.jobs * machine.hour * hours
    period = Period(hours=hours, trainer_usd=trainer, gets_usd=gets * prices.of("local").source_request)
    return _Epoch(period, bound, rate)


def _bill(scenario: Scenario, tag: str, first: _Epoch, later: _Epoch, reuse: float = 0.0) -> Bill:
    return Bill(
        tag=tag,
        images_per_s=later.images_per_s,
        bound=later.bound,
        first=first.period,
        later=later.period,
        month=first.period.plus(later.period, times=scenario.epochs - 1),
        reuse=reuse,
    )


def _with_lambda(scenario: Scenario, prices: PriceTable) -> Bill:
    # Functions and cache are outside the trainers, and shared by jobs that read each sample together.
    share = min(1.0, cache_samples(scenario, prices) / scenario.samples)
    first, later = (
        _lambda_epoch(scenario, prices, decoded * scenario.samples) for decoded in (1.0, 1.0 - share)
    )
    return _bill(scenario, "SUPER with Lambda", first, later, reuse=share)


def _lambda_epoch(scenario: Scenario, prices: PriceTable, count: float) -> _Epoch:
    """Return an epoch in which functions produce ``count`` samples."""
    units, read, done = prices.of("lambda"), float(scenario.samples * scenario.jobs), count * scenario.spare
    bandwidth = scenario.cache_nodes * prices.cache_node(scenario.cache_node).network_gbps * _GB / 8
    network = bandwidth / scenario.record_bytes * scenario.samples / (read + count)
    epoch = _epoch(scenario, prices, scenario.read_cpu_ms, 0.0, **{"cache's network": network})
    gb_s = count * _function_s(scenario) * scenario.function_mb / _MIB_PER_GIB
    priced_bytes = done * scenario.source_bytes * units.source_gb
    priced_bytes += (done + read) * scenario.record_bytes * units.record_gb
    paid = Period(
        produced=count,
        functions_usd=gb_s * units.gb_s + done / scenario.request_samples * units.invocation,
        gets_usd=done * units.source_request,
        transfer_usd=priced_bytes / _GB,
    )
    standing = _standing(scenario, prices, epoch.period.hours)
    return epoch._replace(period=epoch.period.plus(paid).plus(standing))


def _function_s(scenario: Scenario) -> float:
    """Return a function's running time per sample in seconds, including hedges and retries."""
    # Lambda allocates CPU in proportion to memory; the model assumes at most one vCPU.
    vcpus = min(scenario.function_mb / _VCPU_MB, 1.0)
    work_s = scenario.function_cpu_ms * _MS / (scenario.lambda_vcpu * vcpus)
    return scenario.spare * (work_s + scenario.request_s / scenario.request_samples)


def _standing(scenario: Scenario, prices: PriceTable, hours: float) -> Period:
    """Return the cost of the cache and the coordinator for ``hours``, whether they are used or not."""
    task = _TASK_VCPUS * prices.fargate["vcpu_hour"] + _TASK_GB * prices.fargate["gb_hour"]
    task += scenario.endpoints * prices.endpoint["hour"]
    cache = scenario.cache_nodes * prices.cache_node(scenario.cache_node).hour
    return Period(cache_usd=cache * hours, coordinator_usd=task * hours)


def _embedded(scenario: Scenario, prices: PriceTable, *, store_share: float = 0.0) -> Bill:
    """Return the bill for SUPER with functions and cache on the training machine."""
    # The share stored on the machine's NVMe is decoded once and read from there.
    share = max(_embedded_reuse(scenario, prices), store_share)

    def epoch(decoded: float) -> _Epoch:
        cpu_ms = decoded * scenario.function_cpu_ms + scenario.read_cpu_ms
        disk = scenario.nvme_mb_per_s * 1e6 / scenario.record_bytes
        bounds = {"NVMe": disk / (1.0 - decoded)} if store_share and decoded < 1 else {}
        count = decoded * scenario.samples * scenario.jobs
        result = _epoch(scenario, prices, cpu_ms, count, **bounds)
        return result._replace(period=replace(result.period, produced=count))

    tag = _STORED if store_share else "SUPER embedded"
    return _bill(scenario, tag, epoch(1.0), epoch(1.0 - share), reuse=share)


def _decoding(scenario: Scenario, prices: PriceTable) -> Bill:
    """Return the bill for fetching and decoding with Pillow in every epoch."""
    epoch = _epoch(scenario, prices, scenario.s3_cpu_ms, scenario.jobs * scenario.samples)
    return _bill(scenario, "decoding from S3", epoch, epoch)


def _converted(scenario: Scenario, prices: PriceTable) -> Bill:
    """Return the bill for LitData, which reads files in S3 with the same pixels as SUPER's records."""
    host, units = prices.machine(scenario.cpu_host), prices.of("local")
    set_bytes = scenario.samples * scenario.record_bytes
    requests = set_bytes / (scenario.chunk_mb * 1e6)
    # A CPU host converts the images once.
    usd = scenario.samples / _vcpus_rate(scenario, host, scenario.s3_cpu_ms) / 3600 * host.hour
    usd += scenario.samples * units.source_request + requests * units.store_put
    later = _epoch(scenario, prices, scenario.litdata_cpu_ms, scenario.jobs * requests)
    first = later._replace(period=replace(later.period, conversion_usd=usd))
    bill = _bill(scenario, _CONVERTED, first, later)
    # Storage is paid for a month, or for the duration of the jobs.
    stored = set_bytes / _GB * prices.storage["s3_gb_month"] * max(1.0, bill.month.hours / _MONTH_HOURS)
    return replace(bill, month=replace(bill.month, store_usd=stored))
