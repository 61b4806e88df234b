"""``superdl cost``: an epoch and a month in US dollars, by way of loading; which way is cheapest for which
workload (``--map``); and whether AWS's prices still are those of the table (``--check-prices``). The work is
:mod:`superdl.cost`'s; what runs have cost, ``superdl compare --runs`` sets side by side.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from superdl.options import add_overrides
from superdl.super_wire.redaction import shown, shown_lines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from superdl.cost.price_files import CheckedPrice

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
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--map", action="store_true", help="print the cheapest ways, over jobs, epochs and set sizes"
    )
    what.add_argument(
        "--check-prices",
        nargs="?",
        const=_AWS_FILES,
        metavar="URL",
        help=f"compare the price table with AWS's public price files, some hundred MB at {_AWS_FILES}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--markdown", action="store_true", help="print one table, as docs/cost.md has it")
    parser.add_argument("--inputs", action="store_true", help="with --markdown: print the inputs instead")


def run(arguments: argparse.Namespace) -> int:
    """Compute and print."""
    from rich.markdown import Markdown

    from superdl.coordinator.executors.price_table import load_prices
    from superdl.cost import bills, cost_map, load_scenario
    from superdl.cost.price_files import check_prices
    from superdl.cost.tables import inputs_markdown, map_markdown, markdown, print_bills, to_mapping
    from superdl.experiments.console import Console  # --help needs none of this
    from superdl.super_wire.errors import ConfigError

    if arguments.json and arguments.markdown:
        raise ConfigError("--json and --markdown are two formats: choose one")
    if arguments.inputs and not arguments.markdown:
        raise ConfigError("--inputs goes with --markdown; the tables and JSON have them in any case")
    prices = load_prices(arguments.prices or os.environ.get("SUPER_PRICES"))
    if arguments.check_prices is not None:
        return _check(check_prices(prices, arguments.check_prices, tell=_tell), as_json=arguments.json)
    scenario = load_scenario(arguments.preset, arguments.overrides)
    console = Console(highlight=False)
    console.width = max(console.width, _NARROWEST)
    if arguments.map:
        spots = list(cost_map(scenario, prices))
        table = map_markdown(scenario, spots)
        if arguments.json:
            sys.stdout.write(json.dumps({"map": spots}, indent=2) + "\n")
        elif arguments.markdown:
            sys.stdout.write(table)
        else:
            console.print(Markdown(table))
        return 0
    found = bills(scenario, prices)
    if arguments.json:
        sys.stdout.write(json.dumps(to_mapping(scenario, prices, found), indent=2) + "\n")
    elif arguments.markdown:
        table = inputs_markdown(scenario) if arguments.inputs else markdown(scenario, prices, found)
        sys.stdout.write(table)
    else:
        print_bills(scenario, prices, found, console)
    return 0


def _check(checked: Sequence[CheckedPrice], *, as_json: bool) -> int:
    """Say what agrees; 1 if something does not."""
    if as_json:
        rows = [asdict(one) | {"theirs": sorted(one.theirs), "agrees": one.agrees} for one in checked]
        sys.stdout.write(json.dumps({"prices": rows}, indent=2) + "\n")
    else:
        agree = sum(one.agrees for one in checked)
        lines = [
            *(shown(str(price)) for price in checked),
            f"{agree} of {len(checked)} agree; of other prices AWS's files are not asked",
        ]
        sys.stdout.write("\n".join(lines) + "\n")
    return 0 if all(one.agrees for one in checked) else 1


def _tell(line: str) -> None:
    sys.stderr.write(shown_lines(line) + "\n")
