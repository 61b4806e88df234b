"""``superdl run SPEC``: train from a spec and report."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from superdl.options import add_overrides

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.experiments import Spec

__all__ = ["add_arguments", "run", "spec_of"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument("spec", help="path of a YAML spec, or the name of one that comes along (digits)")
    add_overrides(parser, "data.train=s3://bucket/train")
    _add_keys(parser)
    quick_help = "the spec's small variant: its section quick, else two epochs of 20 steps"
    parser.add_argument("--quick", action="store_true", help=quick_help)
    parser.add_argument(
        "--no-page", action="store_true", help="write no report.html; superdl report DIRECTORY does it later"
    )
    parser.add_argument(
        "--find-batch-size",
        action="store_true",
        help="train nothing: find the largest loader.batch_size whose step fits into the GPU",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of tables")


def _add_keys(parser: argparse.ArgumentParser) -> None:
    """Add ``--epochs 25`` for ``--set epochs=25``."""
    # Services pass hyper-parameters in this form.
    from superdl.experiments.spec import spec_keys

    keys = spec_keys()
    ends = [key.rpartition(".")[2] for key in keys]
    for key, end in zip(keys, ends, strict=True):
        # A key that only one section has also works without it: --batch-size 64.
        alone = end not in keys and ends.count(end) == 1
        names = dict.fromkeys([key, *([end, end.replace("_", "-")] if alone else [])])
        parser.add_argument(
            *(f"--{name}" for name in names),
            action="append",
            dest="overrides",
            default=argparse.SUPPRESS,
            type=f"{key}={{}}".format,
            help=argparse.SUPPRESS,
        )


def spec_of(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Spec:
    """Return the spec of arguments and environment; ``ConfigError`` if invalid."""
    from superdl.experiments import load_spec
    from superdl.experiments.spec import placed

    return placed(load_spec(arguments.spec, arguments.overrides, quick=arguments.quick), environment)


def run(arguments: argparse.Namespace) -> int:
    """Run the spec."""
    from superdl.experiments.console import Console  # --help does not need it
    from superdl.experiments.output import tell_json
    from superdl.experiments.run import run as run_spec
    from superdl.experiments.training.ranks import process_rank

    spec = spec_of(arguments)
    console = Console(stderr=True) if arguments.json else None
    if arguments.find_batch_size:
        from superdl.experiments.run.batch_search import largest_batch

        result = asdict(largest_batch(spec, console=console))
    else:
        result = run_spec(spec, console=console, page=not arguments.no_page).to_mapping()
    tell_json(result, shown=arguments.json and process_rank().rank == 0)
    return 0
