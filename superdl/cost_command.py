"""``superdl cost``: estimate the cost of epochs in US dollars, for five ways of loading."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.price_table import load_prices
from superdl.cost.model import PARTS, bills, unavailable
from superdl.cost.scenario import load_scenario
from superdl.options import add_overrides

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from superdl.coordinator.executors.price_table import PriceTable
    from superdl.cost.model import Bill
    from superdl.cost.scenario import Scenario

# Options for the inputs that differ most.
_CASE = {
    "images": ("samples", int, "N", "images in the dataset (default: 1281167)"),
    "jobs": ("jobs", int, "N", "jobs that read it at the same time (default: 1)"),
    "epochs": ("epochs", int, "N", "epochs per job (default: 90)"),
    "machine": ("machine", str, "NAME", "AWS instance type that each job runs on (default: g4dn.xlarge)"),
    "images-per-s": ("images_per_s", float, "X", "images/s of one of its GPUs (default: 427, as a T4)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    for name, (field, kind, metavar, text) in _CASE.items():
        parser.add_argument(f"--{name}", dest=field, type=kind, metavar=metavar, help=text)
    add_overrides(parser, "cache_nodes=5 or x86_vcpu=0.8")
    parser.add_argument("--all", action="store_true", help="show each item of the cost, and every assumption")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Compute and print the costs."""
    from superdl.experiments.output import tell_json

    prices = load_prices(os.environ.get("SUPER_PRICES"))
    values = {field: getattr(arguments, field) for field, *_ in _CASE.values()}
    case = [f"{field}={value}" for field, value in values.items() if value is not None]
    scenario = load_scenario([*case, *arguments.overrides])
    rows = bills(scenario, prices)
    tell_json(_mapping(scenario, prices, rows), shown=arguments.json)
    if not arguments.json:
        _print(scenario, prices, rows, everything=arguments.all)
    return 0


def _print(scenario: Scenario, prices: PriceTable, rows: Sequence[Bill], *, everything: bool) -> None:
    from superdl.experiments.console import Console, print_rows, say
    from superdl.experiments.reporting.page import ABSENT
    from superdl.super_wire.display import counted

    console = Console(highlight=False)
    machine = prices.machine(scenario.machine)
    gpu = f"{machine.gpus} x {machine.gpu} at " if machine.gpus else ""
    jobs = f"{counted(scenario.jobs, 'job')} of {counted(scenario.epochs, 'epoch')}"
    trainer = f"{scenario.machine} ({gpu}{scenario.images_per_s:,.0f} images/s)"
    say(console, f"{scenario.samples:,} images, {jobs}, {trainer}")
    table = [
        (
            bill.tag,
            *(_usd(period.usd) for period in (bill.first, bill.later, bill.month)),
            f"{bill.images_per_s:,.0f}",
            bill.bound,
        )
        for bill in rows
    ]
    table += [(tag, *[ABSENT] * 4, why) for tag, why in unavailable(scenario, prices).items()]
    heads = ("US dollars", "first\nepoch", "a later\nepoch", "all\nepochs", "images/s", "limited by")
    print_rows(console, heads, table)
    say(
        console,
        f"List prices of {prices.date}, {prices.region}, for all jobs. Expect errors up to a factor of two.",
    )
    if not everything:
        say(console, "superdl cost --all shows each item and every assumption; --set changes an assumption.")
        return
    paid = [name for name in PARTS if any(getattr(bill.month, name) for bill in rows)]
    items = [(bill.tag, *(_usd(getattr(bill.month, name)) for name in paid)) for bill in rows]
    print_rows(console, ("US dollars", *(name.removesuffix("_usd") for name in paid)), items)
    say(console, "\nAssumptions (change them with --set NAME=VALUE):")
    for entry in scenario.inputs():
        amount = entry["value"] if isinstance(entry["value"], str) else f"{entry['value']:,}"
        value = f"{amount} {entry['unit']}".rstrip()
        say(console, f"  {entry['name']} = {value}: {entry['about']} ({entry['basis']})")
    verified = f"looked up: {', '.join(prices.verified)}" if prices.verified else "looked up: none"
    say(console, f"Prices {verified}; the others are from memory.")


def _mapping(scenario: Scenario, prices: PriceTable, rows: Sequence[Bill]) -> dict[str, Any]:
    loaders = []
    for bill in rows:
        periods = {"first": bill.first, "later": bill.later, "month": bill.month}
        costs = {name: asdict(period) | {"usd": period.usd} for name, period in periods.items()}
        loaders.append(asdict(bill) | costs)
    return {
        "inputs": scenario.inputs(),
        "prices": {name: getattr(prices, name) for name in ("region", "date", "source", "verified")},
        "loaders": loaders,
    }


def _usd(value: float) -> str:
    return "0" if value == 0 else f"{value:,.3f}" if value < 1 else f"{value:,.2f}"
