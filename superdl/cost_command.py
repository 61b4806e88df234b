"""``superdl cost``: an epoch and a month in US dollars, by way of loading. The work is :mod:`superdl.cost`'s;
what runs have cost, ``superdl compare --runs`` sets side by side.
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from superdl.options import add_overrides

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.table import Table

    from superdl.coordinator.executors.price_table import PriceTable
    from superdl.cost.model import Bill
    from superdl.cost.scenario import Scenario
    from superdl.experiments.console import Console

__all__ = ["add_arguments", "run"]

_NARROWEST = 120  # columns: a narrower terminal wraps the lines and loses no figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument(
        "preset",
        nargs="?",
        default="imagenet",
        help="workload to begin with: imagenet (default), tiny-imagenet-64",
    )
    add_overrides(parser, "jobs=8, machine=g5.xlarge or images_per_s=900")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Compute and print."""
    from superdl.coordinator.executors.price_table import load_prices
    from superdl.cost import bills, load_scenario
    from superdl.experiments.console import Console  # --help needs none of this

    prices = load_prices(os.environ.get("SUPER_PRICES"))
    scenario = load_scenario(arguments.preset, arguments.overrides)
    rows = bills(scenario, prices)
    if arguments.json:
        sys.stdout.write(json.dumps(_mapping(scenario, prices, rows), indent=2) + "\n")
    else:
        console = Console(highlight=False, markup=False, soft_wrap=True)
        console.width = max(console.width, _NARROWEST)
        _print(scenario, prices, rows, console)
    return 0


def _print(scenario: Scenario, prices: PriceTable, rows: Sequence[Bill], console: Console) -> None:
    """The table of all bills, what holds each way of loading back, then every assumption."""
    from superdl.cost.model import MONTH_HOURS, left_out

    console.print(_headline(scenario, prices), _table(rows))
    for bill in rows:
        functions = math.ceil(bill.functions_at_once)
        at_once = f"; functions at once in a first epoch: {functions}" if functions else ""
        console.print(f"{bill.tag}: held back by the {bill.bound}{at_once}")
    for tag, reason in left_out(scenario, prices).items():
        console.print(f"no row for {tag}: {reason}")
    longest_h = max(bill.month.hours for bill in rows)
    if longest_h > MONTH_HOURS:
        words = f"{scenario.epochs} epochs take up to {longest_h:,.0f} hours, a month has {MONTH_HOURS:,.0f}"
        console.print(f"{words}: 'month' is then as long as they take")
    console.print("\nwhat this assumes (--set NAME=VALUE):")
    for entry in scenario.inputs():
        value = f"{_shown(entry['value'])} {entry['unit']}".rstrip()
        console.print(f"  {entry['name']} = {value}: {entry['about']} ({entry['basis']})")
    verified = f"looked up: {', '.join(prices.verified)}" if prices.verified else "none was looked up"
    about = f"prices: {prices.region}, {prices.date}, list prices on demand"
    console.print(f"{about}; {verified}, others are from memory")


def _headline(scenario: Scenario, prices: PriceTable) -> str:
    """The workload in a line or two."""
    from superdl.cost.model import cache_samples
    from superdl.super_wire.sizes import counted

    fit = cache_samples(scenario, prices)
    step = "" if scenario.jobs == 1 else (", in step" if scenario.in_step else ", each in its own order")
    machine = prices.machine(scenario.machine)
    gpus = f" ({machine.gpus} x {machine.gpu})" if machine.gpus else ""
    return (
        f"{scenario.name}: {scenario.samples:,} samples, {counted(scenario.jobs, 'job')}{step}, "
        f"{scenario.epochs} epochs each on {scenario.machine}{gpus};\n"
        f"{scenario.cache_nodes} x {scenario.cache_node} hold{'s' if scenario.cache_nodes == 1 else ''} "
        f"{min(fit, scenario.samples):,} samples ({min(1.0, fit / scenario.samples):.0%})"
        + ("; the recipe is random: no epoch reuses another's" if scenario.random else "")
    )


def _table(rows: Sequence[Bill]) -> Table:
    """An epoch, and the month by what is paid for, in US dollars."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table("\nUS dollars", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for heading in ("images\n/s", *_costs(rows[0])):
        table.add_column(heading, justify="right", overflow="fold")
    for bill in rows:
        table.add_row(bill.tag, f"{bill.images_per_s:,.0f}", *map(_usd, _costs(bill).values()))
    return table


def _costs(bill: Bill) -> dict[str, float]:
    """A row of the table, by its headings."""
    month = bill.month
    return {
        "first\nepoch": bill.first.usd,
        "later\nepoch": bill.later.usd,
        "\nmonth": month.usd,
        "\ntrainers": month.trainer_usd,
        "\nfunctions": month.functions_usd,
        "\nGETs": month.gets_usd,
        "cache,\ncoordinator": month.cache_usd + month.coordinator_usd,
        "storage,\ntransfer": month.store_usd + month.transfer_usd,
        "\nconversion": month.conversion_usd,
    }


def _mapping(scenario: Scenario, prices: PriceTable, rows: Sequence[Bill]) -> dict[str, Any]:
    """As JSON has it."""
    from superdl.cost.model import cache_samples

    loaders = []
    for bill in rows:
        periods = {"first": bill.first, "later": bill.later, "month": bill.month}
        costs = {name: asdict(period) | {"usd": period.usd} for name, period in periods.items()}
        loaders.append(asdict(bill) | costs)
    return {
        "scenario": asdict(scenario),
        "inputs": scenario.inputs(),
        "prices": {name: getattr(prices, name) for name in ("region", "date", "source", "verified")},
        "cache_samples": cache_samples(scenario, prices),
        "loaders": loaders,
    }


def _usd(value: float) -> str:
    return "0" if value == 0 else f"{value:,.3f}" if value < 1 else f"{value:,.2f}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
