"""Bills as tables: for a terminal, as Markdown, as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from superdl.cost.model import MONTH_HOURS, PARTS, Bill, Period, cache_samples
from superdl.super_wire.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from superdl.coordinator.executors.price_table import PriceTable
    from superdl.cost.scenario import Scenario
    from superdl.experiments.console import Console

__all__ = ["headline", "markdown", "print_bills", "to_mapping"]

_MONTH_HEADS = (
    "trainers",
    "functions",
    "GETs",
    "cache, coordinator",
    "disks, storage, transfer",
    "conversion",
)


def headline(scenario: Scenario, prices: PriceTable) -> str:
    """The workload in a line or two."""
    fit = cache_samples(scenario, prices)
    jobs = counted(scenario.jobs, "job")
    step = "" if scenario.jobs == 1 else (", in step" if scenario.in_step else ", each in its own order")
    return (
        f"{scenario.name}: {scenario.samples:,} samples, {jobs}{step}, {scenario.epochs} epochs each; "
        f"{scenario.cache_nodes} x {scenario.cache_node} hold{'s' if scenario.cache_nodes == 1 else ''} "
        f"{min(fit, scenario.samples):,} samples ({min(1.0, fit / scenario.samples):.0%})"
        + ("; the recipe is random: no epoch reuses another's" if scenario.random else "")
    )


def markdown(scenario: Scenario, prices: PriceTable, bills: Sequence[Bill]) -> str:
    """One table of all bills: an epoch, and the month by what is paid for."""
    heads = ("", "images/s", "first epoch", "later epoch", "month", *_MONTH_HEADS)
    lines = [headline(scenario, prices) + ".", "", _row(heads)]
    lines.append("|---|" + "--:|" * (len(heads) - 1))
    for bill in bills:
        month = bill.month
        parts = (
            month.trainer,
            month.functions,
            month.gets,
            month.cache + month.coordinator,
            month.disk + month.store + month.transfer,
            month.conversion,
        )
        cells = (
            bill.loader,
            f"{bill.images_per_s:,.0f}",
            _usd(bill.first.usd),
            _usd(bill.later.usd),
            f"**{_usd(month.usd)}**",
            *map(_usd, parts),
        )
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _inputs_markdown(scenario: Scenario) -> str:
    """What the bills assume, as a list."""
    lines = ["| input | value | what it is | where it is from |", "|---|--:|---|---|"]
    for one in scenario.inputs():
        unit = f" {one['unit']}" if one["unit"] else ""
        cells = (f"`{one['name']}`", f"{_shown(one['value'])}{unit}", one["about"], one["basis"])
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def print_bills(scenario: Scenario, prices: PriceTable, bills: Sequence[Bill], console: Console) -> None:
    """The table of all bills, what holds each way of loading back, then every assumption."""
    from rich.markdown import Markdown

    console.print(Markdown(markdown(scenario, prices, bills)))
    for bill in bills:
        line = f"{bill.loader}: held back by the {bill.bound}"
        if bill.functions_at_once:
            kind = "functions" if "Lambda" in bill.loader else f"hosts ({scenario.cpu_host})"
            line += f"; {kind} at once in a first epoch: {math.ceil(bill.functions_at_once)}"
        console.print(line)
    longest_h = max(bill.month.hours for bill in bills)
    if longest_h > MONTH_HOURS:
        words = f"{scenario.epochs} epochs take up to {longest_h:,.0f} hours, a month has {MONTH_HOURS:,.0f}"
        console.print(f"{words}: 'month' is then as long as they take")
    console.print("what this assumes (--set NAME=VALUE):", Markdown(_inputs_markdown(scenario)))
    verified = f"looked up: {', '.join(prices.verified)}" if prices.verified else "none was looked up"
    console.print(
        f"prices: {prices.region}, {prices.date}, list prices on demand; {verified}, others are from memory"
    )


def to_mapping(scenario: Scenario, prices: PriceTable, bills: Sequence[Bill]) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "scenario": asdict(scenario),
        "inputs": scenario.inputs(),
        "prices": {
            "region": prices.region,
            "date": prices.date,
            "source": prices.source,
            "verified": list(prices.verified),
        },
        "cache_samples": cache_samples(scenario, prices),
        "loaders": [
            {"loader": bill.loader}
            | asdict(bill)
            | {name: _period_mapping(getattr(bill, name)) for name in ("first", "later", "month")}
            for bill in bills
        ],
    }


def _period_mapping(period: Period) -> dict[str, float]:
    costs = {f"{name}_usd": getattr(period, name) for name in PARTS}
    return {"hours": period.hours, "produced": period.produced, **costs, "usd": period.usd}


def _row(cells: Iterable[str]) -> str:
    return f"|{'|'.join(cells)}|"  # no spaces: nobody edits these by hand


def _usd(value: float) -> str:
    return "0" if value == 0 else f"{value:,.3f}" if value < 1 else f"{value:,.2f}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
