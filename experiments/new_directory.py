"""The directory of a run or a comparison: named by the time, and nobody else's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from superdl.super_wire.errors import ConfigError

__all__ = ["new_directory"]

_NAMES_MAX = 1000


def new_directory(output: str | Path, name: str) -> Path:
    """Make ``<output>/<name>-<time>``, with a number after it where that is taken.

    Raises:
        ConfigError: it cannot be made.

    """
    parent = Path(output).expanduser()
    stem = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for number in range(1, _NAMES_MAX + 1):
        directory = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            directory.mkdir(parents=True)
            return directory.resolve()
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(
                f"cannot make {directory}: {error.strerror}; set output to a directory that you may write"
            ) from error
    raise ConfigError(
        f"{parent} has {_NAMES_MAX} directories named {stem} already; set another output or name"
    )
