"""``superdl compare SPEC``: run a spec's arms interleaved and report how they differ."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from superdl.options import add_overrides

if TYPE_CHECKING:
    import argparse

    from superdl.experiments.comparing.comparison import Comparison
    from superdl.experiments.console import Console

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "spec", nargs="?", help="path of a YAML spec, or the name of one that comes along (digits)"
    )
    group.add_argument(
        "--runs",
        nargs="+",
        metavar="[NAME=]DIR",
        help="compare runs that are there already, by their directories; runs of one name are its repeats",
    )
    add_overrides(parser, "loader.batch_size=256, in all arms")
    quick_help = "the spec's small variant: its section quick, else two epochs of 20 steps"
    parser.add_argument("--quick", action="store_true", help=quick_help)
    parser.add_argument(
        "--arms",
        metavar="A,B",
        help="these alone: names of compare.arms, or kinds of loaders (default: all arms; if there are none, "
        "super and torch)",
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="run each arm so often (compare.repeats)")
    parser.add_argument(
        "--warmup-epochs", type=int, metavar="N", help="leave the first N epochs of a run out of its rates"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="go on without the figures of a run that fails"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison, or read the runs."""
    from superdl.experiments.console import Console  # --help does not need it
    from superdl.experiments.output import tell_json

    for name in ("SUPER_STORE", "SUPER_STATE"):  # otherwise samples decoded by one run would serve the next
        os.environ.setdefault(name, "none")
    console = Console(stderr=arguments.json)
    report = _of_runs(arguments, console) if arguments.runs else _of_spec(arguments, console)
    tell_json(report.to_mapping(), shown=arguments.json)
    return 0 if report.status == "finished" else 1


def _of_spec(arguments: argparse.Namespace, console: Console) -> Comparison:
    from superdl.experiments.comparing.running import compare
    from superdl.experiments.spec import load_spec

    overrides = list(arguments.overrides)
    for key, value in (("repeats", arguments.repeats), ("warmup_epochs", arguments.warmup_epochs)):
        if value is not None:
            overrides.append(f"compare.{key}={value}")
    spec = load_spec(arguments.spec, overrides, quick=arguments.quick)
    arms = None if arguments.arms is None else [name.strip() for name in arguments.arms.split(",")]
    return compare(spec, arms=arms, keep_going=arguments.keep_going, console=console)


def _of_runs(arguments: argparse.Namespace, console: Console) -> Comparison:
    from superdl.experiments.comparing.comparison import compare_runs
    from superdl.experiments.comparing.running import publish
    from superdl.experiments.output import new_directory
    from superdl.super_wire.errors import ConfigError

    given = [arguments.overrides, arguments.quick, arguments.arms, arguments.repeats, arguments.keep_going]
    if any(given):
        raise ConfigError(
            "--runs compares what is there: of the other options it takes --warmup-epochs, --json"
        )
    if arguments.warmup_epochs is not None and arguments.warmup_epochs < 0:
        raise ConfigError(f"--warmup-epochs is a whole number of at least 0, not {arguments.warmup_epochs}")
    report = compare_runs(arguments.runs, warmup_epochs=arguments.warmup_epochs)
    report = replace(report, directory=str(new_directory("runs", f"{report.name}-compare")))
    publish(report, console)
    return report
