"""Writes a directory whole or not at all: beside its place, then renamed; with room for it looked for first.

What a process that was killed left beside the place is taken away by the next that writes there. What the
directory holds is left to those who fill it.
"""

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MANIFEST", "check_room", "is_vacant", "manifest_of", "written_whole"]

MANIFEST = "manifest.json"
_LOCK = ".being-written"
_SPARE_BYTES = 256 * 2**20  # left free beside what is written
_SPARE_FILES = 1000
_MEGABYTE = 1e6


def manifest_of(directory: Path) -> dict[str, Any] | None:
    """What the manifest of a directory says; None where there is none that is a JSON object."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{directory / MANIFEST} cannot be read ({error}); delete {directory} or name another directory"
        ) from error
    return manifest if isinstance(manifest, dict) else None


def is_vacant(directory: Path) -> bool:
    """Whether a directory can be written in this place: nothing is there, or an empty directory.

    Raises:
        ConfigError: a file is there, or the place cannot be looked at.

    """
    try:
        return not any(directory.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        raise ConfigError(
            f"cannot write to {directory}: it, or one above it, is a file; name a directory"
        ) from None
    except OSError as error:
        raise _unwritable(directory, error) from error


def check_room(directory: Path, *, size_bytes: int, files: int, what: str, less: str) -> None:
    """See that so many bytes in so many files fit where ``directory`` will be.

    Args:
        directory: the place, there or not yet.
        size_bytes: what the files take, whole blocks counted.
        files: how many there are.
        what: what is to be written, for the message.
        less: what else can be done, for the message.

    Raises:
        ConfigError: they do not fit; the message says how much is needed and how much is free.

    """
    existing = next(parent for parent in (directory, *directory.parents) if parent.is_dir())
    status = os.statvfs(existing)
    free = status.f_bavail * status.f_frsize
    if free < size_bytes + _SPARE_BYTES:
        raise ConfigError(
            f"{what} takes about {size_bytes / _MEGABYTE:,.0f} MB in {directory}, where "
            f"{free / _MEGABYTE:,.0f} MB are free, {_SPARE_BYTES / _MEGABYTE:,.0f} of which are left alone: "
            f"free some, name a directory on another disk, or {less}"
        )
    if status.f_files and status.f_favail < files + _SPARE_FILES:  # some file systems know no such limit
        raise ConfigError(
            f"{what} has {files:,} files, and the disk of {directory} can take {status.f_favail:,} more: "
            f"name a directory on another disk, or {less}"
        )


@contextmanager
def written_whole(target: Path, manifest: Mapping[str, Any]) -> Iterator[Path]:
    """Give a fresh directory to fill, and put it in ``target``'s place, manifest added, if all went well.

    If another process has put one with the same manifest there meanwhile, that one stays.

    Raises:
        ConfigError: the place cannot be written, or is taken.

    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_remains(target)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with _locked(staging):
            yield staging
            text = json.dumps(manifest, indent=2) + "\n"
            (staging / MANIFEST).write_text(text, encoding="utf-8")
            staging.chmod(0o755)  # mkdtemp makes it private; the functions that read it may be another user
            (staging / _LOCK).unlink()
            try:
                staging.replace(target)  # also onto an empty directory
            except OSError as error:
                if manifest_of(target) != json.loads(text):
                    raise _unwritable(target, error) from error
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unwritable(target: Path, error: OSError) -> ConfigError:
    where = f": {error.filename}" if error.filename else ""
    return ConfigError(
        f"cannot write to {target}: {error.strerror or error}{where}; "
        "name a directory that you may write, with room for it"
    )


@contextmanager
def _locked(staging: Path) -> Iterator[None]:
    """Hold a lock that ends with this process, however it ends; the file shows only once it is locked."""
    hidden = staging / f"{_LOCK}-new"
    with hidden.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        hidden.rename(staging / _LOCK)
        yield


def _clear_remains(target: Path) -> None:
    """Delete what writers of ``target`` left who are no more: their lock is free."""
    for remains in target.parent.glob(f".{glob.escape(target.name)}-*/{_LOCK}"):
        try:
            with remains.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(remains.parent, ignore_errors=True)
        except (BlockingIOError, FileNotFoundError):
            continue  # somebody writes it now, or has just finished
