"""A source that is a directory of this machine: its class folders, and one of its files."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["find_object", "first_folders"]

_LOOKED_AT = 10_000


def first_folders(directory: str, count: int) -> list[str]:
    """Names of the first folders in a directory, sorted, of at most ``count`` entries that are looked at.

    Raises:
        OSError: it is not there, or may not be read.
    """
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in islice(entries, count) if entry.is_dir())


def find_object(directory: str, *, images_only: bool) -> str:
    """A file below a directory, as a key; empty if none is found soon."""
    from superdl.coordinator.catalog.listing import is_image

    for path in islice(_files(directory), _LOOKED_AT):
        if is_image(path) or not images_only:
            return Path(path).relative_to(directory).as_posix()
    return ""


def _files(directory: str) -> Iterator[str]:
    for folder, folders, files in os.walk(directory):
        folders.sort()
        yield from (str(Path(folder) / name) for name in sorted(files))
