"""The itemised bill for a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.coordinator.executors.price_table import load_prices
from superdl.super_wire.executors import EXECUTORS, RunsOn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.coordinator.executors.price_table import PriceTable
    from superdl.super_wire.stall_causes import WorkCounters

_HOUR_S = 3600.0
_MILLION = 1e6

_EXCLUDED = (
    "free tiers, discounts and taxes",
    "storage of the images",
    "disks and IP addresses of machines, endpoints and logs",
    "people's time",
)


@dataclass(frozen=True, slots=True)
class PaidByHour:
    """Resources paid for by the hour, as named in the price table. None leaves a resource out of the bill."""

    machine: str | None = None
    machines: int = 1
    data_machine: str | None = None
    data_machines: int = 1
    cache_node: str | None = None
    cache_nodes: int = 1


@dataclass(frozen=True, slots=True)
class EpochUse:
    """Resources used by an epoch and its validation. ``images`` counts only training images."""

    epoch: int
    wall_s: float
    images: int
    counted: WorkCounters


@dataclass(frozen=True, slots=True)
class BillLine:
    """The cost of one item, in total and for each epoch with its validation.

    ``how`` explains the calculation or, if ``usd`` is None, why the item is not in the bill.
    """

    name: str
    usd: float | None
    # The rest of usd was spent before, between or after the epochs.
    by_epoch: tuple[float, ...]
    how: str


@dataclass(frozen=True, slots=True)
class EpochBill:
    """The bill for one epoch with its validation. Only training images are counted."""

    epoch: int
    usd: float
    usd_per_million_images: float | None


@dataclass(frozen=True, slots=True)
class RunBill:
    """A run's bill in US dollars. ``left_out`` lists the items that it does not include."""

    usd: float
    usd_per_million_images: float | None
    lines: tuple[BillLine, ...]
    epochs: tuple[EpochBill, ...]
    left_out: tuple[str, ...]
    region: str
    date: str
    source: str
    verified: tuple[str, ...]


def prices_for(hired: PaidByHour, file: str | None = None) -> PriceTable:
    """Return the price table; raise ``ConfigError`` if it lacks anything in ``hired``."""
    prices = load_prices(file)
    for name in filter(None, (hired.machine, hired.data_machine)):
        prices.machine(name)
    if hired.cache_node is not None:
        prices.cache_node(hired.cache_node)
    return prices


def bill_of(
    epochs: Sequence[EpochUse],
    *,
    hired: PaidByHour,
    executor: str | None,
    wall_s: float,
    prices: PriceTable,
    rest: WorkCounters | None,
) -> RunBill:
    """Return the bill for a run that took ``wall_s`` seconds, based on its complete epochs.

    ``prices`` must contain everything in ``hired``. ``executor`` lists executors, separated by commas, or is
    None if the loader itself decodes. ``rest`` counts the usage outside complete epochs, or is None
    if that was not reported.
    """
    builder = _BillBuilder(epochs, hired, executor, wall_s, prices, rest)
    lines = builder.lines()
    usd = math.fsum(line.usd for line in lines if line.usd is not None)
    partial = rest is None and executor is not None
    return RunBill(
        usd=usd,
        usd_per_million_images=_each_million(usd, sum(epoch.images for epoch in epochs)),
        lines=tuple(lines),
        epochs=tuple(_epoch_bill(at, epoch, lines) for at, epoch in enumerate(epochs)),
        left_out=(*(["anything used after the coordinator's last answer"] if partial else []), *_EXCLUDED),
        region=prices.region,
        date=prices.date,
        source=prices.source,
        verified=prices.verified,
    )


@dataclass(frozen=True, slots=True)
class _BillBuilder:
    epochs: Sequence[EpochUse]
    hired: PaidByHour
    executor: str | None
    wall_s: float
    prices: PriceTable
    rest: WorkCounters | None

    def lines(self) -> list[BillLine]:
        hired = self.hired
        if hired.machine is None:
            machines = [_absent("training machine", "cost.machine is not set")]
        else:
            machines = [self._machine("training machine", hired.machine, hired.machines)]
        if hired.data_machine is not None:
            machines.append(self._machine("data machines", hired.data_machine, hired.data_machines))
        if self.executor is None:
            return [*machines, self._loader_gets()]
        transfer = self._share("transfer", "transfer_usd", "from the source, and to and from the cache")
        how = f"{self._count('store_requests'):,} GETs and PUTs"
        store = self._share("store", "store_requests_usd", how)
        return [
            *machines,
            self._functions(self.executor),
            self._share("GETs", "source_requests_usd", f"{self._count('source_requests'):,} GETs"),
            *(line for line in (transfer, store) if line.usd),
            self._cache(),
            self._share("coordinator", "coordinator_usd", "by the hour"),
        ]

    def _functions(self, executor: str) -> BillLine:
        gb_s = math.fsum(counters.gb_s for counters in self._counted())
        how = f"{self._count('invocations'):,} calls, {gb_s:,.6g} GB s"
        line = self._share("functions", "functions_usd", how)
        if line.usd or RunsOn.SERVICE in _runs_on(executor):
            return line
        if _runs_on(executor) == {RunsOn.THIS_HOST}:
            return self._nothing("functions", "run on the training machine")
        if self.hired.data_machine is not None:
            return self._nothing("functions", "run on the data machines")
        return _absent("functions", "cost.data_machine does not specify their machines")

    def _cache(self) -> BillLine:
        hired = self.hired
        # The spec's nodes replace the coordinator's accounting.
        if hired.cache_node is None:
            return self._share("cache", "cache_usd", "by the hour")
        hour = self.prices.cache_node(hired.cache_node).hour
        how = f"{hired.cache_nodes} x {hired.cache_node} at {hour:g} USD an hour, as in the spec"
        return self._hours("cache", hired.cache_nodes * hour, how)

    def _machine(self, name: str, machine: str, count: int) -> BillLine:
        price = self.prices.machine(machine)
        at = f"{count} x {machine} at {price.hour:g} USD an hour" + f" ({price.date})" * bool(price.date)
        return self._hours(name, count * price.hour, at)

    def _hours(self, name: str, hour_usd: float, how: str) -> BillLine:
        seconds = [self.wall_s, *(epoch.wall_s for epoch in self.epochs)]
        usd, *by_epoch = (duration_s * hour_usd / _HOUR_S for duration_s in seconds)
        return BillLine(name, usd, tuple(by_epoch), f"{self.wall_s / _HOUR_S:.4g} h of {how}")

    def _loader_gets(self) -> BillLine:
        request_usd = self.prices.of("local").source_request
        costs = [request_usd * counters.source_requests for counters in self._counted()]
        how = f"{self._count('source_requests'):,} at {request_usd * _MILLION:g} USD per million"
        return BillLine("GETs", math.fsum(costs), tuple(costs[: len(self.epochs)]), how)

    def _share(self, name: str, counter: str, how: str) -> BillLine:
        # The coordinator's account allocates a job's share (coordinator.core.ledger); not
        # recomputed here.
        costs: list[float] = [getattr(counters, counter) for counters in self._counted()]
        share = f"{how}: the job's share in the coordinator's accounting"
        return BillLine(name, math.fsum(costs), tuple(costs[: len(self.epochs)]), share)

    def _nothing(self, name: str, how: str) -> BillLine:
        return BillLine(name, 0.0, (0.0,) * len(self.epochs), how)

    def _count(self, counter: str) -> int:
        return sum(getattr(counters, counter) for counters in self._counted())

    def _counted(self) -> list[WorkCounters]:
        """Return the counters of each epoch, followed by those from outside complete epochs."""
        return [*(epoch.counted for epoch in self.epochs), *([] if self.rest is None else [self.rest])]


def _runs_on(executor: str) -> set[RunsOn]:
    # Unknown executors are ignored.
    names = map(str.strip, executor.split(","))
    return {EXECUTORS[name].runs_on for name in names if name in EXECUTORS}


def _absent(name: str, how: str) -> BillLine:
    return BillLine(name, None, (), f"not in the bill: {how}")


def _epoch_bill(at: int, epoch: EpochUse, lines: Sequence[BillLine]) -> EpochBill:
    usd = math.fsum(line.by_epoch[at] for line in lines if line.usd is not None)
    return EpochBill(epoch.epoch, usd, _each_million(usd, epoch.images))


def _each_million(usd: float, images: int) -> float | None:
    return usd / images * _MILLION if images else None
