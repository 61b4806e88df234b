"""``superdl evaluate RUN``: evaluate a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.options import add_overrides

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument("run", metavar="RUN", help="the directory of a run that kept checkpoints")
    parser.add_argument(
        "--checkpoint",
        choices=("best", "last"),
        help="which (default: the best where it is, else the last)",
    )
    add_overrides(parser, "data.val=s3://bucket/test")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate the checkpoint."""
    from superdl.experiments.console import Console  # --help does not need it
    from superdl.experiments.output import tell_json
    from superdl.experiments.run.evaluation import evaluate, print_evaluation
    from superdl.experiments.training.ranks import process_rank

    console = Console(stderr=arguments.json)
    evaluation = evaluate(
        Path(arguments.run), arguments.overrides, checkpoint=arguments.checkpoint, console=console
    )
    leads = process_rank().rank == 0
    if leads and not arguments.json:
        print_evaluation(evaluation, console)
    tell_json(asdict(evaluation), shown=arguments.json and leads)
    return 0
