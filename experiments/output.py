"""Write the output of runs and comparisons: new directories, strict JSON, and row logs."""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def now_text() -> str:
    """Return the current UTC time in ISO 8601 format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_directory(output: str | Path, name: str) -> Path:
    """Create ``<output>/<name>-<time>``, with a number appended if it exists. Raises ConfigError."""
    stem = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    number = 1
    while True:
        directory = Path(output).expanduser() / (stem if number == 1 else f"{stem}-{number}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            # Another run was started in the same second.
            number += 1
        except OSError as error:
            raise ConfigError(
                f"cannot create {directory}: {error.strerror}. Set output to a writable directory."
            ) from error
        else:
            return directory.resolve()


def _finite(value: object) -> object:
    if isinstance(value, float):
        # Strict JSON has no NaN, which is the loss of a model that diverged.
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def strict_json(value: object, *, indent: int | None = None) -> str:
    """Convert mappings, sequences and scalars to strict JSON. NaN and infinite numbers become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def tell_json(value: object, *, shown: bool) -> None:
    """Print a value as JSON if ``shown``."""
    if shown:
        sys.stdout.write(strict_json(value, indent=2) + "\n")


def write_json(value: object, path: Path) -> None:
    """Write ``value`` as a JSON file, atomically."""
    write_whole(strict_json(value, indent=2) + "\n", path)


def write_whole(text: str, path: Path) -> None:
    """Write a text file atomically: readers see either the old file or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    # Text may contain file names that are not valid UTF-8.
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(path)


class RowLog:
    """Append rows to ``<name>.jsonl`` in a directory, as one JSON object per line."""

    def __init__(self, directory: Path, name: str) -> None:
        # Unbuffered, because forked workers would inherit a buffer and write it again.
        self._file = (directory / f"{name}.jsonl").open("wb", buffering=0)

    def write(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows in a single write."""
        self._file.write("".join(strict_json(row) + "\n" for row in rows).encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
