"""``superdl demo [FOLDER]``: compare how fast a DataLoader and SUPER read images here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.options import above_zero

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument(
        "directory",
        nargs="?",
        metavar="FOLDER",
        help="your images, with a folder for each class (default: 1,500 that are drawn into data/demo)",
    )
    parser.add_argument(
        "--images",
        type=int,
        metavar="N",
        help="how many of them to read (default: 1,500, and fewer where decoding takes long)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure and show the result."""
    from superdl.experiments.console import Console  # --help does not need it
    from superdl.experiments.loaders.demo import demo
    from superdl.experiments.output import tell_json

    if arguments.images is not None:
        above_zero("--images", arguments.images)
    result = demo(arguments.directory, arguments.images, Console(stderr=arguments.json, highlight=False))
    tell_json(result, shown=arguments.json)
    return 0
