"""``superdl run SPEC``: train from a spec and report. The work is :mod:`superdl.experiments.run`'s."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from superdl.options import add_overrides

if TYPE_CHECKING:
    import argparse

    from superdl.experiments import Spec

__all__ = ["add_arguments", "run", "spec_of"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument("spec", help="path of a YAML spec, or the name of one that comes along (digits)")
    add_overrides(parser, "data.train=s3://bucket/train")
    parser.add_argument("--quick", action="store_true", help="the spec's small variant, its section quick")
    parser.add_argument(
        "--no-page", action="store_true", help="write no report.html; superdl report DIRECTORY does it later"
    )
    parser.add_argument(
        "--find-batch-size",
        action="store_true",
        help="train nothing: find the largest loader.batch_size whose step fits into memory",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of tables")


def spec_of(arguments: argparse.Namespace) -> Spec:
    """The spec that the arguments name.

    Raises:
        ConfigError: it cannot be read, or holds what it must not.
    """
    from superdl.experiments import load_spec

    return load_spec(arguments.spec, arguments.overrides, quick=arguments.quick)


def run(arguments: argparse.Namespace) -> int:
    """Run the spec."""
    from rich.console import Console  # --help needs none of this

    from superdl.experiments.output import tell_json
    from superdl.experiments.run import run as run_spec
    from superdl.experiments.training.ranks import process_rank

    spec = spec_of(arguments)
    console = Console(stderr=True) if arguments.json else None
    if arguments.find_batch_size:
        from superdl.experiments.run import largest_batch

        told = asdict(largest_batch(spec, console=console))
    else:
        told = run_spec(spec, console=console, page=not arguments.no_page).to_mapping()
    tell_json(told, shown=arguments.json and process_rank().rank == 0)
    return 0
