"""``superdl report DIRECTORY``: make the page of a run or of a comparison from the files that it left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from superdl.experiments.comparing.comparison import Comparison
    from superdl.experiments.reporting.run_files import RunFiles

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    parser.add_argument(
        "directory", metavar="DIRECTORY", help="that superdl run or compare has written, whole or not"
    )
    parser.add_argument("--json", action="store_true", help="print where the page is, and how the run ended")


def run(arguments: argparse.Namespace) -> int:
    """Make the page."""
    # --help needs none of this
    from superdl.experiments.comparing.comparison import is_comparison, read_comparison
    from superdl.experiments.comparing.show import comparison_page
    from superdl.experiments.output import write_whole
    from superdl.experiments.reporting.page import PAGE_NAME, plots_missing
    from superdl.experiments.reporting.run_files import read_run
    from superdl.experiments.reporting.run_page import run_page
    from superdl.super_wire.errors import ConfigError

    directory = Path(arguments.directory)
    known: Comparison | RunFiles
    if is_comparison(directory):
        known = read_comparison(directory)
        page = comparison_page(known)
    else:
        known = read_run(directory)
        page = run_page(known)
    path = directory / PAGE_NAME
    try:
        write_whole(page, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; copy the run to where you may") from error
    missing = plots_missing()
    if missing is not None:
        sys.stderr.write(f"superdl report: without plots: {missing}\n")
    if arguments.json:
        sys.stdout.write(json.dumps({"page": str(path), "name": known.name, "status": known.status}) + "\n")
    else:
        sys.stdout.write(f"{path}\n")
    return 0
