"""``superdl bench``: measure SUPER beside other loaders. The work is that of the folder ``benchmarks``,
which a checkout has and the wheel has not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from superdl.super_wire.errors import ConfigError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmarks as subcommands; without a checkout any words, so that :func:`run` can explain."""
    _add_checkout()
    try:
        from benchmarks.command import add_arguments as add_benchmarks
    except ModuleNotFoundError as error:
        _reraise_unless_absent(error)
        parser.add_argument("benchmark", nargs=argparse.REMAINDER, help="needs a checkout of SUPER")
    else:
        add_benchmarks(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark.

    Raises:
        ConfigError: there is no checkout.

    """
    try:
        from benchmarks.command import run as run_benchmark
    except ModuleNotFoundError as error:
        _reraise_unless_absent(error)
        raise ConfigError(
            "the benchmarks are not in the wheel, they need a checkout of SUPER: clone its repository, "
            "run 'make .venv' there, and call .venv/bin/superdl bench"
        ) from None
    return run_benchmark(arguments)


def _add_checkout() -> None:
    """Have a checkout's other folders found: an editable install shows ``superdl`` alone."""
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file() and str(root) not in sys.path:
        sys.path.append(str(root))


def _reraise_unless_absent(error: ModuleNotFoundError) -> None:
    """A module that the benchmarks themselves lack is another matter, and says its own name."""
    if error.name not in ("benchmarks", "benchmarks.command"):
        raise error
