"""``superdl cost``: an epoch and a month in US dollars, by way of loading. The work is :mod:`superdl.cost`'s;
what runs have cost, ``superdl compare --runs`` sets side by side.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from superdl.options import add_overrides

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]

_AWS_FILES = "https://pricing.us-east-1.amazonaws.com"
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
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--markdown", action="store_true", help="print one table, as docs/cost.md has it")


def run(arguments: argparse.Namespace) -> int:
    """Compute and print."""
    from superdl.coordinator.executors.price_table import load_prices
    from superdl.cost import bills, load_scenario
    from superdl.cost.tables import markdown, print_bills, to_mapping
    from superdl.experiments.console import Console  # --help needs none of this
    from superdl.super_wire.errors import ConfigError

    if arguments.json and arguments.markdown:
        raise ConfigError("--json and --markdown are two formats: choose one")
    prices = load_prices(arguments.prices or os.environ.get("SUPER_PRICES"))
    scenario = load_scenario(arguments.preset, arguments.overrides)
    found = bills(scenario, prices)
    if arguments.json:
        sys.stdout.write(json.dumps(to_mapping(scenario, prices, found), indent=2) + "\n")
    elif arguments.markdown:
        sys.stdout.write(markdown(scenario, prices, found))
    else:
        console = Console(highlight=False)
        console.width = max(console.width, _NARROWEST)
        print_bills(scenario, prices, found, console)
    return 0
