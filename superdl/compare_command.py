"""``superdl compare SPEC``: run a spec's arms interleaved and say how they differ. The work is
:mod:`experiments.comparing`'s.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument("spec", help="path of a YAML spec, or the name of one that comes along (digits)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override one value of all arms, such as loader.batch_size=256; may be repeated",
    )
    parser.add_argument("--quick", action="store_true", help="the spec's small variant, its section quick")
    parser.add_argument(
        "--arms",
        metavar="A,B",
        help="these alone: names of compare.arms, or kinds of loaders (default: all arms; if there are none, "
        "super and torch)",
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="run each arm so often (compare.repeats)")
    parser.add_argument(
        "--keep-going", action="store_true", help="go on without the figures of a run that fails"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison."""
    from rich.console import Console  # --help needs none of this

    from experiments.comparing.comparison import compare
    from experiments.spec import load_spec
    from experiments.strict_json import strict_json

    overrides = list(arguments.overrides)
    if arguments.repeats is not None:
        overrides.append(f"compare.repeats={arguments.repeats}")
    spec = load_spec(arguments.spec, overrides, quick=arguments.quick)
    arms = None if arguments.arms is None else [name.strip() for name in arguments.arms.split(",")]
    console = Console(stderr=arguments.json)
    report = compare(spec, arms=arms, keep_going=arguments.keep_going, console=console)
    if arguments.json:
        sys.stdout.write(strict_json(report.to_mapping(), indent=2) + "\n")
    return 0 if report.status == "finished" else 1
