"""``superdl bench``: measure SUPER beside other loaders. The work is that of the folder ``benchmarks``,
which a checkout has and the wheel has not.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from superdl.super_wire.errors import ConfigError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmarks as subcommands; without a checkout any words, so that :func:`run` can explain."""
    benchmarks = _benchmarks()
    if benchmarks is None:
        parser.add_argument("benchmark", nargs=argparse.REMAINDER, help="needs a checkout of SUPER")
    else:
        benchmarks.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark.

    Raises:
        ConfigError: there is no checkout.
    """
    benchmarks = _benchmarks()
    if benchmarks is None:
        raise ConfigError(
            "the benchmarks are not in the wheel, they need a checkout of SUPER: clone its repository, "
            "run 'make .venv' there, and call .venv/bin/superdl bench"
        )
    for name in ("SUPER_STORE", "SUPER_STATE"):  # else the second run would measure another thing
        os.environ.setdefault(name, "none")
    return int(benchmarks.run(arguments))


def _benchmarks() -> Any:
    """Their package, ``None`` without a checkout; what they lack themselves says its own name."""
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file() and str(root) not in sys.path:
        sys.path.append(str(root))  # an editable install shows superdl alone
    try:
        import benchmarks
    except ModuleNotFoundError as error:
        if error.name != "benchmarks":
            raise
        return None
    return benchmarks
