"""``python -m benchmarks.conversion CONTENDER LOADING DIRECTORY``: brings a set's images into another
loader's format, once, in a process of its own.

What a conversion costs is not measured. Its directory appears whole or not at all and is kept beside the
images; its name tells the recipe. How a format is written is its loader's module's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contenders import CONTENDERS
from benchmarks.errors import BenchmarkError
from benchmarks.loading import Loading

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["convert_once"]

_ROOT = Path(__file__).resolve().parents[1]
_TIME_LIMIT_S = 1800.0


def convert_once(contender: str, loading: Loading, say: Callable[[str], None]) -> None:
    """Convert the images for a contender unless that has been done.

    Raises:
        BenchmarkError: it failed; the message has what it said.

    """
    kind = CONTENDERS[contender]
    target = loading.format_directory(kind.format)
    if kind.convert is None or target.is_dir():
        return
    say(f"converting images for {kind.title}")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{kind.format}-", dir=target.parent))
    try:
        _convert(contender, loading, staging)
        staging.replace(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _convert(contender: str, loading: Loading, staging: Path) -> None:
    arguments = [contender, json.dumps(asdict(loading)), str(staging)]
    command = [sys.executable, "-m", "benchmarks.conversion", *arguments]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(
            f"the conversion for {contender} was not done after {_TIME_LIMIT_S:g} s"
        ) from None
    if done.returncode != 0:
        raise BenchmarkError(
            f"the conversion for {contender} failed; leave it out (--contenders) or mend it:\n"
            f"{done.stderr.strip()}"
        )


def _main(contender: str, loading: str, directory: str) -> None:
    convert = CONTENDERS[contender].convert
    if convert is None:
        raise BenchmarkError(f"{contender} reads the images as they are")
    convert(Loading(**json.loads(loading)), Path(directory))


if __name__ == "__main__":
    _main(*sys.argv[1:])
