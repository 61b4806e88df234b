"""All ways of loading side by side, SUPER's and others, on a machine or a bigger one.

A copy or a conversion is made once, and is in the bill: requests, the host that makes it, storage of a month.
Converted sets hold the pixels that SUPER's records hold, but for WebDataset's shards, which hold the images.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from superdl.cost.model import (
    MONTH_HOURS,
    STORE_SHARE,
    Bill,
    Period,
    embedded,
    pace,
    shared,
    stored_on_nvme,
    vcpus_rate,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.coordinator.executors.price_table import PriceTable
    from superdl.cost.scenario import Scenario

__all__ = ["bills", "without_super"]

_GB = 1e9
_FREE_MB_PER_S = 125.0  # of a gp3 volume


class _Loader(NamedTuple):
    """What reads where; ``cpu`` names an input, ``brings`` the one that says what a request brings."""

    tag: str
    kind: str
    where: str
    cpu: str
    brings: str = "one"
    pixels: bool = False


_LOADERS = (
    _Loader("decoding from S3", "as they lie", "s3", "s3_cpu_ms"),
    _Loader("decoding from gp3", "a copy", "gp3", "disk_cpu_ms"),
    _Loader("decoding from NVMe", "a copy", "nvme", "disk_cpu_ms"),
    _Loader("decoding from S3 Express", "a copy", "express", "s3_cpu_ms"),
    _Loader("WebDataset from S3", "converted", "s3", "shard_cpu_ms", "shard_samples"),
    _Loader("LitData raw", "converted", "s3", "litdata_cpu_ms", "chunk_mb", pixels=True),
    _Loader("FFCV raw on gp3", "converted", "gp3", "ffcv_cpu_ms", "chunk_mb", pixels=True),
    _Loader("FFCV raw on NVMe", "converted", "nvme", "ffcv_cpu_ms", "chunk_mb", pixels=True),
)


def bills(scenario: Scenario, prices: PriceTable) -> list[Bill]:
    """The bill of every way of loading, SUPER's first. A way has a second one where a bigger machine with the
    same GPU makes its month cheaper, whether or not that reaches the GPU's pace.

    Raises:
        ConfigError: the price table has no machine or node of a name, or the training loop leaves its
            machine no vCPU.
    """
    own = prices.machine(scenario.machine)
    bigger = [
        replace(scenario, machine=name)
        for name, machine in prices.machines.items()
        if (machine.gpu, machine.gpus) == (own.gpu, own.gpus)
        and machine.vcpus > own.vcpus
        and name.startswith("ml.") == scenario.machine.startswith("ml.")
    ]
    found = list(_shared(scenario, prices))
    ways: list[Callable[[Scenario, PriceTable], Bill | None]] = [embedded, stored_on_nvme]
    ways += [partial(without_super, loader.tag) for loader in _LOADERS]
    for way in ways:
        mine = way(scenario, prices)
        best = min(filter(None, (way(one, prices) for one in bigger)), key=_month, default=None)
        found += [mine] if mine else []
        found += [best] if best and (not mine or _month(best) < _month(mine)) else []
    return found


def _month(bill: Bill) -> float:
    return bill.month.usd


def _shared(scenario: Scenario, prices: PriceTable) -> Iterator[Bill]:
    """SUPER with functions elsewhere: no bigger machine makes them cheaper."""
    yield shared(scenario, prices, "lambda")
    yield shared(scenario, prices, "ray")
    if not scenario.random:
        yield shared(scenario, prices, "lambda", stored=True)


def without_super(tag: str, scenario: Scenario, prices: PriceTable) -> Bill | None:
    """The bill of another way; ``None`` where the machine's disk does not hold the set, or random crops need
    whole images.
    """
    (loader,) = [one for one in _LOADERS if one.tag == tag]
    machine, local = prices.machine(scenario.machine), prices.of("local")
    size_bytes = scenario.record_bytes if loader.pixels else scenario.source_bytes
    set_gb, nvme_gb = scenario.samples * size_bytes / _GB, machine.nvme_gb * STORE_SHARE
    if (loader.pixels and scenario.random) or (loader.where == "nvme" and set_gb > nvme_gb):
        return None
    disk = {"gp3": scenario.disk_mb_per_s, "nvme": scenario.nvme_mb_per_s}.get(loader.where)
    others = {} if disk is None else {"disk": disk * 1e6 / size_bytes}
    bound, rate, hours = pace(scenario, prices, scenario.machine, getattr(scenario, loader.cpu), others)
    together = {"one": 1.0, "shard_samples": scenario.shard_samples}
    requests = scenario.samples / together.get(loader.brings, scenario.chunk_mb * 1e6 / size_bytes)
    express, converted = loader.where == "express", loader.kind == "converted"
    made = _made(scenario, prices, requests, set_gb, loader) if express or converted else 0.0
    gets = scenario.jobs * requests * (prices.express.get if express else local.source_request)
    gets += scenario.jobs * set_gb * prices.express.read_gb * express
    later = Period(hours=hours, trainer=scenario.jobs * machine.hour * hours, gets=gets)
    first, standing = later.plus(Period(conversion=made)), 0.0
    if disk is not None:  # each machine copies the set first, and waits
        if loader.where == "gp3":  # as fast as it must be
            disk = min(disk, max(rate * size_bytes / 1e6, _FREE_MB_PER_S))
            paid = max(disk - _FREE_MB_PER_S, 0.0) * prices.storage.disk_mb_per_s_month
            standing = scenario.jobs * (set_gb * prices.storage.disk_gb_month + paid) / MONTH_HOURS
        later = replace(later, gets=0.0, disk=standing * hours)
        copying = set_gb * 1e3 / disk / 3600
        waiting = scenario.jobs * machine.hour * copying
        copied = Period(copying, trainer=waiting, gets=gets, disk=standing * copying, conversion=made)
        first = later.plus(copied)
    month = first.plus(later.times(scenario.epochs - 1))
    if scenario.always_up:
        month = month.plus(Period(disk=standing * max(MONTH_HOURS - month.hours, 0.0)))
    if express or converted:
        gb_month = prices.express.gb_month if express else prices.storage.s3_gb_month
        month = month.plus(Period(store=set_gb * gb_month * max(1.0, month.hours / MONTH_HOURS)))
    return Bill(tag, loader.kind, scenario.machine, rate, bound, 0.0, 0.0, first, later, month)


def _made(scenario: Scenario, prices: PriceTable, requests: float, set_gb: float, loader: _Loader) -> float:
    """Dollars for a copy or a conversion in S3: a host of Ray's kind fetches all images, and decodes them
    where pixels are kept.
    """
    host, local = prices.machine(scenario.cpu_host), prices.of("local")
    cpu_ms = scenario.s3_cpu_ms - (0.0 if loader.pixels else scenario.disk_cpu_ms)
    usd = scenario.samples / vcpus_rate(scenario, host, cpu_ms) / 3600 * host.hour
    usd += scenario.samples * local.source_request
    if loader.where == "express":
        return usd + requests * prices.express.put + set_gb * prices.express.write_gb
    return usd + requests * local.store_put
