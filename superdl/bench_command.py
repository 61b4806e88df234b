"""``superdl bench``: measure SUPER beside other loaders; needs a checkout."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from superdl.super_wire.errors import ConfigError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmarks as subcommands; without a checkout, accept any words."""
    benchmarks = _benchmarks()
    if benchmarks is None:
        parser.add_argument("benchmark", nargs=argparse.REMAINDER, help="needs a checkout of SUPER")
    else:
        benchmarks.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark; ``ConfigError`` without a checkout."""
    benchmarks = _benchmarks()
    if benchmarks is None:
        raise ConfigError(
            "the benchmarks are not in the wheel, they need a checkout of SUPER: clone its repository, "
            "run 'make .venv' there, and call .venv/bin/superdl bench"
        )
    for name in ("SUPER_STORE", "SUPER_STATE"):  # otherwise the second run would measure something else
        os.environ.setdefault(name, "none")
    return int(benchmarks.run(arguments))


def _benchmarks() -> Any:
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file() and str(root) not in sys.path:
        sys.path.append(str(root))  # an editable install exposes only superdl
    try:
        import benchmarks
    except ModuleNotFoundError as error:
        if error.name != "benchmarks":
            raise
        return None
    return benchmarks
