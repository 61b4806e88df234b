"""``python -m benchmarks.conversion CONTENDER LOADING DIRECTORY``: brings a set's images into another
loader's format, once, in a process of its own.

What a conversion costs is not measured. Its directory appears whole or not at all and is kept beside the
images; its name tells the recipe. How a format is written is its loader's module's.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.child import run_child
from benchmarks.contenders import CONTENDERS
from benchmarks.errors import BenchmarkError
from benchmarks.loading import Loading

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["convert_once"]


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
        arguments = [contender, json.dumps(asdict(loading)), str(staging)]
        run_child("conversion", arguments, name=f"the conversion for {contender}")
        staging.replace(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _main(contender: str, loading: str, directory: str) -> None:
    convert = CONTENDERS[contender].convert
    if convert is None:
        raise BenchmarkError(f"{contender} reads the images as they are")
    convert(Loading(**json.loads(loading)), Path(directory))


if __name__ == "__main__":
    _main(*sys.argv[1:])
