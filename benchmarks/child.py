"""Runs a module of this folder in a process of its own and gives what it printed last.

A measurement has a process to itself so that its CPU, its memory and its imports are its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.errors import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["run_child"]

_ROOT = Path(__file__).resolve().parents[1]
_TIME_LIMIT_S = 1800.0


def run_child(
    module: str, arguments: Sequence[str], *, name: str, environment: Mapping[str, str] | None = None
) -> str:
    """Run ``python -m benchmarks.<module>`` to its end; the last line of its output, or an empty text.

    Args:
        module: its name in this folder.
        arguments: its command line.
        name: for messages.
        environment: over this process's own.

    Raises:
        BenchmarkError: it failed or took too long; the message has what it said.

    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            cwd=_ROOT,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{name} was not done after {_TIME_LIMIT_S:g} s") from None
    if done.returncode != 0:
        raise BenchmarkError(
            f"{name} failed with exit code {done.returncode}; leave it out (--contenders) or mend it:\n"
            f"{done.stderr.strip()}"
        )
    lines = done.stdout.splitlines()
    return lines[-1] if lines else ""
