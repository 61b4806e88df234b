"""``superdl simulate SPEC``: predict a deployment without it. The work is
:mod:`superdl.experiments.simulator`'s.
"""

from __future__ import annotations

import sys
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
        help="path of a YAML spec, or the name of one that comes along (digits, imagenet, thousand_jobs)",
    )
    add_overrides(parser, "cache.budget_gb=64")
    parser.add_argument(
        "--beside",
        metavar="RUN",
        help="the directory of a run by superdl run, or its report.json: take speeds from its records, and "
        "show what was measured beside what is predicted",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the JSON to a file too")
    parser.add_argument("--check", action="store_true", help="check every promise after every event (slow)")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print."""
    from rich.console import Console  # --help needs none of this

    from superdl.experiments.output import strict_json
    from superdl.experiments.simulator.beside import beside_each_other, print_beside, with_measured
    from superdl.experiments.simulator.predict import predict, predictions_mapping, print_predictions
    from superdl.experiments.simulator.spec import load_points
    from superdl.super_wire.errors import ConfigError

    points = load_points(arguments.spec, arguments.overrides)
    console = Console(stderr=arguments.json)
    measured = None
    if arguments.beside:
        if len(points) > 1:
            raise ConfigError("--beside compares one run with one prediction; take the sweep out of the spec")
        measured, spec = with_measured(points[0][1], Path(arguments.beside))
        points = [({}, spec)]
    rows = [predict(spec, swept, checked=arguments.check) for swept, spec in points]
    mapping = predictions_mapping(points[0][1], rows)
    print_predictions(points[0][1], rows, console)
    if measured is not None:
        figures = beside_each_other(measured, rows[0])
        print_beside(measured["name"], figures, console)
        told = [{**figure._asdict(), "ratio": figure.ratio} for figure in figures]
        mapping["beside"] = {"run": measured["name"], "figures": told}
    text = strict_json(mapping, indent=2) + "\n"
    if arguments.output:
        try:
            arguments.output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {arguments.output}: {error.strerror}") from error
    if arguments.json:
        sys.stdout.write(text)
    return 0
