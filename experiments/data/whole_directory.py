"""Write a directory once and atomically, by renaming a complete one written beside it."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError, SourceError
from superdl.super_wire.user_text import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MANIFEST = "manifest.json"
_SPARE_BYTES = 256 * 2**20  # left free in addition
_MEGABYTE = 1e6


def manifest_of(directory: Path) -> dict[str, Any] | None:
    """Return the manifest of a directory, or None if it has none that is a JSON object."""
    try:
        manifest = read_json(directory / MANIFEST)
    except FileNotFoundError:
        return None
    except ConfigError as error:
        raise SourceError(f"{error}; delete {directory} or use another directory") from error
    return manifest if isinstance(manifest, dict) else None


def check_room(directory: Path, size_bytes: int, what: str) -> None:
    """Check that ``what``, of ``size_bytes``, fits on the disk where ``directory`` will be.

    Raises:
        ConfigError: there is not enough space; the message states the required and the free space.
    """
    free = shutil.disk_usage(next(place for place in (directory, *directory.parents) if place.is_dir())).free
    if free < size_bytes + _SPARE_BYTES:
        raise ConfigError(
            f"{what} takes about {size_bytes / _MEGABYTE:,.0f} MB in {directory}, where "
            f"{free / _MEGABYTE:,.0f} MB are free and {_SPARE_BYTES / _MEGABYTE:,.0f} MB must stay free: "
            "free some space, or use a directory on another disk"
        )


def written_once(target: Path, manifest: Mapping[str, Any], what: str, fill: Callable[[Path], None]) -> None:
    """Write a directory unless it exists with the same manifest. Concurrent processes wait.

    ``manifest`` contains the facts that determine the content, for JSON, and is stored in the directory.
    ``fill`` writes the content, called ``what`` in messages, into an empty directory.

    Raises:
        SourceError: the directory contains something else.
        ConfigError: the directory cannot be written.
    """
    # Compare what JSON gives back: tuples become lists.
    expected = json.loads(json.dumps(manifest))
    if _stands(target, expected, what):
        return
    try:
        with _alone_beside(target):
            # Another process may have written it while this one waited.
            if _stands(target, expected, what):
                return
            # A process that was killed could not delete its own.
            for remains in target.parent.glob(f".{glob.escape(target.name)}-*"):
                shutil.rmtree(remains, ignore_errors=True)
            _write(target, expected, fill)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise ConfigError(
            f"cannot write to {target}: {error.strerror or error}{where}; "
            "use a writable directory with enough space"
        ) from error


def _stands(target: Path, wanted: Mapping[str, Any], what: str) -> bool:
    try:
        if not any(target.iterdir()):
            return False
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise ConfigError(f"cannot write to {target}: it, or one of its parents, is a file") from None
    actual = manifest_of(target)
    if actual is None:
        raise SourceError(f"cannot write {what} to {target}: it contains other files; use a new directory")
    for name, value in wanted.items():
        if actual.get(name) != value:
            raise SourceError(
                f"{target} contains something other than {what} ({name} is {actual.get(name)!r} there, not "
                f"{value!r}): delete it, or use another directory"
            )
    return True


@contextmanager
def _alone_beside(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        # The kernel releases it even if this process is killed.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(target: Path, manifest: Mapping[str, Any], fill: Callable[[Path], None]) -> None:
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(staging)
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        staging.chmod(0o755)  # mkdtemp's is private; functions may be another user
        staging.replace(target)  # also replaces an empty directory
    finally:
        shutil.rmtree(staging, ignore_errors=True)
