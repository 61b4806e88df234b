"""What a run cost, by what is paid for: machines by the hour, functions, GETs, cache and coordinator.

Pure arithmetic over what was counted and the price table. What training would cost elsewhere is
`experiments.cost`'s, what a coordinator's jobs cost while they run `coordinator.core.ledger`'s. The latter
tells a job's dollars in one sum, with its share of what works for several jobs; here that sum is taken apart
and never added to, so that nothing is counted twice.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.coordinator.executors.price_table import load_prices
from superdl.experiments.records import LoaderCounters, added
from superdl.super_wire.executors import EXECUTORS, RunsOn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.coordinator.core import Prices
    from superdl.coordinator.executors.price_table import PriceTable
    from superdl.experiments.records import EpochSummary
    from superdl.experiments.spec import CostSpec

__all__ = ["BillLine", "EpochBill", "RunBill", "bill_of", "prices_for"]

_GIB = 2**30
_HOUR_S = 3600.0
_MILLION = 1e6
_ROUNDING_USD = 1e-9
_TASK_VCPUS, _TASK_GB = 1, 2  # the stack's smallest coordinator, as in experiments.cost

_NEVER_IN_IT = (
    "free tiers, discounts and taxes",
    "storage of the images",
    "disks and addresses of machines, endpoints and logs",
    "people's time",
)


@dataclass(frozen=True, slots=True)
class BillLine:
    """What is paid for one thing: in all, and in each epoch with its validation.

    ``usd`` None: it is not in the bill, and ``how`` says why; else ``how`` is the arithmetic in words. What
    ``by_epoch`` leaves of ``usd`` was spent before, between and after the epochs.
    """

    name: str
    usd: float | None
    by_epoch: tuple[float, ...]
    how: str


@dataclass(frozen=True, slots=True)
class EpochBill:
    """One epoch with its validation; the images are those trained on."""

    epoch: int
    usd: float
    usd_per_million_images: float | None


@dataclass(frozen=True, slots=True)
class RunBill:
    """A run's bill in US dollars; ``left_out`` says what it does not have."""

    usd: float
    usd_per_million_images: float | None
    lines: tuple[BillLine, ...]
    epochs: tuple[EpochBill, ...]
    left_out: tuple[str, ...]
    region: str
    date: str
    source: str
    verified: tuple[str, ...]


def prices_for(cost: CostSpec, file: str | None = None) -> PriceTable:
    """The price table (``file`` replaces what it names), once it has all that a spec names.

    Raises:
        ConfigError: the table cannot be read, or lacks a machine or a node; the message names it.

    """
    prices = load_prices(file)
    for name in (cost.machine, cost.data_machine):
        if name is not None:
            prices.machine(name)
    if cost.cache_node is not None:
        prices.cache_node(cost.cache_node)
    return prices


def bill_of(
    epochs: Sequence[EpochSummary],
    *,
    cost: CostSpec,
    executor: str | None,
    wall_s: float,
    prices: PriceTable,
    rest: LoaderCounters | None = None,
) -> RunBill:
    """The bill of a run of so many seconds; ``executor`` as the run's report names it.

    ``rest`` is what was counted after the epochs, or in one that did not end; None: nobody told.

    Raises:
        ConfigError: the table lacks a machine or a node that ``cost`` names.

    """
    time = _Time(wall_s, tuple(sum(one.wall_s for _, one in epoch.splits()) for epoch in epochs))
    counted = [added([one.job for _, one in epoch.splits() if one.job is not None]) for epoch in epochs]
    counted.append(rest or LoaderCounters())
    lines = [_training_machine(time, cost, prices)]
    if cost.data_machine is not None:
        lines.append(_hired(time, "data machines", cost.data_machine, cost.data_machines, prices))
    left_out = [] if rest is not None else _untold(epochs)
    if rest is None and executor is not None:
        left_out.append("what was used after the last whole epoch, of which the coordinator told nothing")
    if executor is None or (executor in prices.by_executor and executor in EXECUTORS):
        lines += _loading(time, counted, cost, executor, prices)
    else:
        lines.append(_account(counted, executor))
        if cost.cache_node is not None:
            left_out.append(
                f"cost.cache_node ({cost.cache_node}), so that nothing is counted twice: the coordinator's "
                "account may have it"
            )
    usd = math.fsum(line.usd for line in lines if line.usd is not None)
    return RunBill(
        usd=usd,
        usd_per_million_images=_each_million(usd, sum(epoch.train.samples for epoch in epochs)),
        lines=tuple(lines),
        epochs=tuple(_epoch_bill(at, epoch, lines) for at, epoch in enumerate(epochs)),
        left_out=(*left_out, *_NEVER_IN_IT),
        region=prices.region,
        date=prices.date,
        source=prices.source,
        verified=prices.verified,
    )


@dataclass(frozen=True, slots=True)
class _Time:
    """Seconds of the run, and of each of its epochs."""

    wall_s: float
    by_epoch_s: tuple[float, ...]

    def nothing(self, name: str, how: str) -> BillLine:
        """What costs nothing more."""
        return BillLine(name, 0.0, (0.0,) * len(self.by_epoch_s), how)

    def hours(self, name: str, hour_usd: float, how: str) -> BillLine:
        """What is paid by the hour all the time."""
        usd, *by_epoch = (seconds * hour_usd / _HOUR_S for seconds in (self.wall_s, *self.by_epoch_s))
        return BillLine(name, usd, tuple(by_epoch), f"{self.wall_s / _HOUR_S:.4g} h of {how}")


def _absent(name: str, how: str) -> BillLine:
    return BillLine(name, None, (), f"not in the bill: {how}")


def _spent(name: str, parts: Sequence[float], how: str) -> BillLine:
    """What each epoch has spent, and, as the last part, what was spent outside of whole epochs."""
    return BillLine(name, math.fsum(parts), tuple(parts[:-1]), how)


def _training_machine(time: _Time, cost: CostSpec, prices: PriceTable) -> BillLine:
    if cost.machine is None:
        return _absent("training machine", "cost.machine names none")
    return _hired(time, "training machine", cost.machine, cost.machines, prices)


def _hired(time: _Time, name: str, machine: str, machines: int, prices: PriceTable) -> BillLine:
    hour = prices.machine(machine).hour
    return time.hours(name, machines * hour, f"{machines} x {machine} at {hour:g} USD an hour")


def _account(counted: Sequence[LoaderCounters], executor: str) -> BillLine:
    """The coordinator's account of the job, where its parts cannot be told: other prices, or several."""
    return _spent(
        "functions, GETs, cache and coordinator",
        [one.usd for one in counted],
        f"the job's share by the coordinator's account, in one sum, since functions run {executor}",
    )


def _loading(
    time: _Time, counted: Sequence[LoaderCounters], cost: CostSpec, executor: str | None, prices: PriceTable
) -> list[BillLine]:
    """Functions, GETs, cache and coordinator, by the prices of the one executor that there was."""
    of, total = prices.of(executor or "local"), added(counted)
    calls = [of.invocation * one.invocations + of.gb_s * one.gb_s for one in counted]
    gets = [of.source_request * one.source_requests for one in counted]
    moved = [
        of.source_gb * one.source_bytes / _GIB + of.record_gb * (one.record_bytes + one.read_bytes) / _GIB
        for one in counted
    ]
    lines = [
        _functions(time, cost, executor, calls, total, of),
        _spent("GETs", gets, f"{total.source_requests:,} at {_millions(of.source_request)}"),
    ]
    if any(moved):
        bytes_moved = f"{total.source_bytes:,} and {total.record_bytes + total.read_bytes:,} bytes"
        lines.append(
            _spent("transfer", moved, f"{bytes_moved} out of the source, and into the cache and out")
        )
    if executor is None:
        none = "none was used"
        return [*lines, time.nothing("cache", none), time.nothing("coordinator", none)]
    rest = [one.usd - math.fsum(parts) for one, *parts in zip(counted, calls, gets, moved, strict=True)]
    if abs(math.fsum(rest)) < _ROUNDING_USD:
        rest = [0.0] * len(rest)
    return [*lines, *_standing(time, rest, cost, executor, prices)]


def _functions(
    time: _Time,
    cost: CostSpec,
    executor: str | None,
    calls: Sequence[float],
    total: LoaderCounters,
    of: Prices,
) -> BillLine:
    if executor is None:
        return time.nothing("functions", "none were called")
    runs_on = EXECUTORS[executor].runs_on
    if runs_on is RunsOn.SERVICE or any(calls):
        how = (
            f"{total.invocations:,} calls at {of.invocation:g} USD and {total.gb_s:,.6g} GB s at {of.gb_s:g}"
        )
        return _spent("functions", calls, how)
    if runs_on is RunsOn.THIS_HOST:
        return time.nothing("functions", "they run on the training machine")
    if cost.data_machine is not None:
        return time.nothing("functions", "they run on the data machines")
    return _absent("functions", f"they run on hosts of {executor}, which cost.data_machine does not name")


def _standing(
    time: _Time, rest: Sequence[float], cost: CostSpec, executor: str, prices: PriceTable
) -> list[BillLine]:
    """Cache and coordinator; ``rest`` is what the account has for them, and what other jobs have moved."""
    of = prices.of(executor)
    task_hour = _TASK_VCPUS * prices.fargate.vcpu_hour + _TASK_GB * prices.fargate.gb_hour
    task = f"a container of {_TASK_VCPUS} vCPU and {_TASK_GB} GB at {task_hour:g} USD an hour"
    runs_on = EXECUTORS[executor].runs_on
    is_here = runs_on is RunsOn.THIS_HOST
    named = cost.machine is not None or (not is_here and cost.data_machine is not None)
    here = "it runs on a machine of the bill" if named else "it runs on a machine that cost does not name"
    if cost.cache_node is not None:
        node_hour = prices.cache_node(cost.cache_node).hour
        nodes = f"{cost.cache_nodes} x {cost.cache_node} at {node_hour:g} USD an hour, by the spec"
        lines = [time.hours("cache", cost.cache_nodes * node_hour, nodes)]
        if (
            runs_on is RunsOn.SERVICE
        ):  # the nodes of the spec stand in the place of those that the account has
            return [*lines, time.hours("coordinator", task_hour, task)]
        return [*lines, time.nothing("coordinator", here), *_others(rest)]
    if of.hour and math.fsum(rest) >= 0:
        return _standing_by_account(time, rest, of)
    if of.hour:
        zero = "less than nothing is left of the account: other jobs bear it"
        return [time.nothing("cache", zero), time.nothing("coordinator", zero), *_others(rest)]
    if is_here or cost.data_machine is not None:
        return [time.nothing("cache", here), time.nothing("coordinator", here), *_others(rest)]
    why = f"[{executor}] of the price table has no hour, and cost.cache_node names none"
    return [_absent("cache", why), _absent("coordinator", why), *_others(rest)]


def _standing_by_account(time: _Time, rest: Sequence[float], of: Prices) -> list[BillLine]:
    """What the account has by the hour, apart where the price table says what is the coordinator's."""
    left = "what the account has beside functions and GETs, shared by the jobs at the time"
    if not of.coordinator_hour:
        both = f"{left}: {of.hour:g} USD an hour for cache and coordinator together"
        return [_spent("cache", rest, both), time.nothing("coordinator", "in the line of the cache")]
    share = of.coordinator_hour / of.hour
    of_cache, of_task = [usd * (1 - share) for usd in rest], [usd * share for usd in rest]
    return [
        _spent("cache", of_cache, f"{left}: nodes at {of.hour - of.coordinator_hour:g} USD an hour"),
        _spent("coordinator", of_task, f"{left}: a container at {of.coordinator_hour:g} USD an hour"),
    ]


def _millions(usd: float) -> str:
    return f"{usd * _MILLION:g} USD a million"


def _others(rest: Sequence[float]) -> list[BillLine]:
    """What was produced for this job and used by others, or the other way round."""
    if not any(rest):
        return []
    return [_spent("other jobs", rest, "samples that jobs share are paid for by those who read them")]


def _untold(epochs: Sequence[EpochSummary]) -> list[str]:
    """The last passes that nobody told of: what was not told of earlier ones was counted for the next."""
    missing = 0
    for split in ("train", "val"):
        passes = [one for epoch in epochs for name, one in epoch.splits() if name == split]
        missing += sum(1 for _ in itertools.takewhile(lambda one: one.job is None, reversed(passes)))
    return [f"what {missing} pass(es) cost, of which the coordinator told nothing"] if missing else []


def _epoch_bill(at: int, epoch: EpochSummary, lines: Sequence[BillLine]) -> EpochBill:
    usd = math.fsum(line.by_epoch[at] for line in lines if line.usd is not None)
    return EpochBill(epoch.epoch, usd, _each_million(usd, epoch.train.samples))


def _each_million(usd: float, images: int) -> float | None:
    return usd / images * _MILLION if images else None
