"""Compare the costs of SUPER with those of common alternatives: ``superdl bench``. Not in the wheel."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from types import ModuleType

__all__ = ["BENCHMARKS", "add_arguments", "run"]

# By name. Each is a module here with add_arguments and measure, to compare in one run.
BENCHMARKS: Mapping[str, str] = {
    "coordinator": "the coordinator: CPU per batch with many jobs, listing a source, and a restart",
    "function": "the function: images/s and CPU per image, compared with a bare decoding loop",
    "read": "the trainer's CPU per image, compared with other loaders that users might choose",
    "store": "what a store below the cache saves, and what reading it from memory or S3 costs",
    "train": "training on one core, with decoding on the same core or on other cores",
}

_FILE_WIDTH = 140  # for tables written to a file or a pipe, which have no width


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per benchmark."""
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, text in BENCHMARKS.items():
        benchmark = benchmarks.add_parser(name, help=text, description=f"Measure {text}.")
        benchmark.add_argument("--json", action="store_true", help="print JSON instead of a table")
        _module(name).add_arguments(benchmark)


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark, print its report, and return the exit code."""
    from rich.console import Console  # --help does not need these imports

    from benchmarks.harness.results import measured, print_report
    from superdl.experiments.output import tell_json

    # Plain lines: a spinner would take CPU from the measured code.
    progress = Console(stderr=True, highlight=False)
    report, content = measured(_module(arguments.benchmark).measure, arguments, progress.print)
    tell_json(content, shown=arguments.json)
    if not arguments.json:
        console = Console()
        print_report(report, content, console if console.is_terminal else Console(width=_FILE_WIDTH))
    return 0


def _module(benchmark: str) -> ModuleType:
    return import_module(f"benchmarks.{benchmark}")
