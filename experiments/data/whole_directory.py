"""Write a directory once and atomically: complete it under a temporary name, and then rename it."""

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


def manifest_of(directory: Path) -> dict[str, Any] | None:
    """Return a directory's manifest, or None if it is missing or not a JSON object."""
    try:
        manifest = read_json(directory / MANIFEST)
    except FileNotFoundError:
        return None
    except ConfigError as error:
        raise SourceError(f"{error}. Delete {directory}, or use another directory.") from error
    return manifest if isinstance(manifest, dict) else None


def written_once(target: Path, manifest: Mapping[str, Any], what: str, fill: Callable[[Path], None]) -> None:
    """Write a directory unless it already exists with the same manifest. Concurrent processes wait.

    ``manifest`` holds the JSON values that determine the content, and is stored in the directory. ``fill``
    writes the content into an empty directory. ``what`` names the content in messages.

    Raises:
        SourceError: the directory contains something else.
        ConfigError: the directory cannot be written.
    """
    # JSON turns tuples into lists, so compare the manifest in that form.
    expected = json.loads(json.dumps(manifest))
    if _exists(target, expected, what):
        return
    try:
        with _locked_parent(target):
            # Another process may have written it while this one waited.
            if _exists(target, expected, what):
                return
            # A killed process leaves its staging directory behind.
            for remains in target.parent.glob(f".{glob.escape(target.name)}-*"):
                shutil.rmtree(remains, ignore_errors=True)
            _write(target, expected, fill)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise ConfigError(
            f"cannot write to {target}: {error.strerror or error}{where}. Use a writable directory with "
            "enough space."
        ) from error


def _exists(target: Path, manifest: Mapping[str, Any], what: str) -> bool:
    try:
        if not any(target.iterdir()):
            return False
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise ConfigError(f"cannot write to {target}: it or one of its parents is a file") from None
    actual = manifest_of(target)
    if actual is None:
        raise SourceError(f"cannot write {what} to {target}: it contains other files. Use a new directory.")
    for name, value in manifest.items():
        if actual.get(name) != value:
            raise SourceError(
                f"cannot write {what} to {target}: its content differs ({name} is {actual.get(name)!r}, not "
                f"{value!r}). Delete it, or use another directory."
            )
    return True


@contextmanager
def _locked_parent(target: Path) -> Iterator[None]:
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
        staging.chmod(0o755)  # mkdtemp makes it private, but functions may run as another user
        staging.replace(target)  # also replaces an empty directory
    finally:
        shutil.rmtree(staging, ignore_errors=True)
