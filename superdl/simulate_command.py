"""``superdl simulate SPEC``: predict the behaviour of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from superdl.options import add_overrides

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument(
        "spec",
        help="path of a YAML spec, or a built-in one: digits, imagenet, many_jobs, thousand_jobs",
    )
    add_overrides(parser, "cache.budget_gb=64")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the JSON to a file too")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print."""
    from superdl.experiments.console import Console  # --help does not need it
    from superdl.experiments.output import tell_json
    from superdl.experiments.simulator.predict import predict, predictions_mapping, print_predictions
    from superdl.experiments.simulator.spec import load_points

    points = load_points(arguments.spec, arguments.overrides)
    console = Console(stderr=arguments.json)
    rows = [predict(spec, swept) for swept, spec in points]
    print_predictions(points[0][1], rows, console)
    mapping = predictions_mapping(points[0][1], rows)
    tell_json(mapping, shown=arguments.json, file=arguments.output)
    return 0
