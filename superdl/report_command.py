"""``superdl report DIRECTORY``: write the page of a run, a comparison, or all runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import shown_lines

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
    parser.add_argument(
        "--book", action="store_true", help="write book.html and book.csv, a row for each run below DIRECTORY"
    )
    parser.add_argument("--json", action="store_true", help="print where the page is, and what it tells of")


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    # --help does not need these imports
    from superdl.experiments.comparing.comparison import is_comparison, read_comparison
    from superdl.experiments.comparing.show import comparison_page
    from superdl.experiments.output import write_whole
    from superdl.experiments.reporting.page import PAGE_NAME, plots_missing
    from superdl.experiments.reporting.run_files import read_run
    from superdl.experiments.reporting.run_page import run_page

    directory = Path(arguments.directory)
    if arguments.book:
        return _book(directory, as_json=arguments.json)
    measured: Comparison | RunFiles
    if is_comparison(directory):
        measured = read_comparison(directory)
        page = comparison_page(measured)
    else:
        measured = read_run(directory)
        page = run_page(measured)
    path = directory / PAGE_NAME
    try:
        write_whole(page, path)
    except OSError as error:
        raise _unwritten(path, error) from error
    missing = plots_missing()
    if missing is not None:
        sys.stderr.write(f"superdl report: without plots: {missing}\n")
    if arguments.json:
        sys.stdout.write(
            json.dumps({"page": str(path), "name": measured.name, "status": measured.status}) + "\n"
        )
    else:
        sys.stdout.write(f"{path}\n")
    return 0


def _book(directory: Path, *, as_json: bool) -> int:
    from superdl.experiments.reporting.run_files import read_book, write_book

    book = read_book(directory)
    try:
        page, table = write_book(book)
    except OSError as error:
        raise _unwritten(directory, error) from error
    if as_json:
        result = {"page": str(page), "table": str(table), "rows": book.rows, "broken": book.broken}
        sys.stdout.write(json.dumps(result) + "\n")
        return 0
    for name, reason in sorted(book.broken.items()):
        sys.stderr.write(shown_lines(f"superdl report: {name}: {reason}\n"))
    sys.stdout.write(f"{page}\n{table}\n")
    return 0


def _unwritten(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write {path}: {error.strerror}; copy the runs to where you may")
