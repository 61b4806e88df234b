"""``superdl cost``: an epoch and a month in US dollars, by way of loading; or what training costs on other
machines, by two runs. The arithmetic is :mod:`superdl.cost`'s.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.options import add_overrides

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]

_NARROWEST = 140  # columns: a narrower terminal wraps the lines and loses no figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument(
        "preset",
        nargs="?",
        default="imagenet",
        help="workload to begin with: imagenet (default), tiny-imagenet-64",
    )
    add_overrides(parser, "jobs=8, machine=g5.xlarge or images_per_s=900")
    parser.add_argument(
        "--prices", metavar="FILE", help="price table that replaces what it names; default SUPER_PRICES"
    )
    parser.add_argument(
        "--runs",
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="two runs of one training on other machines: what it costs after, of what it did before",
    )
    parser.add_argument(
        "--hourly",
        nargs=2,
        type=float,
        metavar=("USD", "USD"),
        help="with --runs: what all machines of each cost in an hour; default by cost of their specs",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--markdown", action="store_true", help="print one table, as docs/cost.md has it")
    parser.add_argument("--inputs", action="store_true", help="with --markdown: print the inputs instead")


def run(arguments: argparse.Namespace) -> int:
    """Compute and print."""
    from rich.console import Console  # --help needs none of this

    from superdl.coordinator.executors.price_table import load_prices
    from superdl.cost import bills, load_scenario
    from superdl.cost.tables import inputs_markdown, markdown, print_bills, to_mapping
    from superdl.super_wire.errors import ConfigError

    if arguments.json and arguments.markdown:
        raise ConfigError("--json and --markdown are two formats: choose one")
    if arguments.inputs and not arguments.markdown:
        raise ConfigError("--inputs goes with --markdown; the tables and JSON have them in any case")
    if arguments.runs or arguments.hourly:
        return _compare_runs(arguments)
    prices = load_prices(arguments.prices or os.environ.get("SUPER_PRICES"))
    scenario = load_scenario(arguments.preset, arguments.overrides)
    found = bills(scenario, prices)
    if arguments.json:
        sys.stdout.write(json.dumps(to_mapping(scenario, prices, found), indent=2) + "\n")
    elif arguments.markdown:
        table = inputs_markdown(scenario) if arguments.inputs else markdown(scenario, prices, found)
        sys.stdout.write(table)
    else:
        console = Console(highlight=False)
        console.width = max(console.width, _NARROWEST)
        print_bills(scenario, prices, found, console)
    return 0


def _compare_runs(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from superdl.cost.training import TrainingCosts, print_costs, step_time, to_mapping
    from superdl.super_wire.errors import ConfigError

    if not arguments.runs or arguments.markdown or arguments.overrides or arguments.prices:
        raise ConfigError("--hourly goes with --runs, and no other option but --json does")
    hourly = arguments.hourly or (None, None)
    if any(usd is not None and not 0 < usd < float("inf") for usd in hourly):
        raise ConfigError(f"--hourly are two prices above 0, not {hourly[0]:g} and {hourly[1]:g}")
    before, after = map(step_time, map(Path, arguments.runs), hourly)
    costs = TrainingCosts(before, after)
    if arguments.json:
        sys.stdout.write(json.dumps(to_mapping(costs), indent=2) + "\n")
    else:
        print_costs(costs, Console(highlight=False))
    return 0
