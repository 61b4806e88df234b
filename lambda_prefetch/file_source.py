"""Reads ``file://`` sources, never outside their directory.

A key is a relative path. ``..`` is refused outright, and so is every symbolic link that leads out of the
directory; links that stay inside are followed. Directories are resolved once per invocation, the last
component by the open itself.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from lambda_prefetch.failures import SampleFailedError
from lambda_prefetch.sources import check_size, check_version
from super_wire.errors import ConfigError
from super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from lambda_prefetch.sources import Pending

__all__ = ["FileSource"]

# Without O_NONBLOCK, opening a FIFO that somebody put there would wait for its writer.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FileSource:
    """One directory; ``root`` is its absolute real path.

    Raises:
        ConfigError: ``root`` is relative, or lies outside all of ``allowed_roots`` (where there are any).
    """

    threads = 2  # enough to read ahead of a decoder; more only fight for the interpreter
    in_flight = 1

    def __init__(self, root: str, *, allowed_roots: tuple[str, ...] = ()) -> None:
        if not root.startswith("/"):
            msg = f"a file:// bucket names an absolute directory; not {root!r}"
            raise ConfigError(msg)
        self._root = os.path.realpath(root)
        if allowed_roots and not any(_is_within(self._root, allowed) for allowed in allowed_roots):
            msg = (
                f"this function may not read {root}: SUPER_FILE_ROOTS allows {os.pathsep.join(allowed_roots)}"
            )
            raise ConfigError(msg)
        self._real_directories: dict[str, str] = {}

    def begin(self, key: str, version: str) -> Pending | None:  # noqa: ARG002  # see the protocol
        """Nothing: files are not asked for ahead."""
        return None

    def read(
        self,
        key: str,
        version: str,
        *,
        limit_bytes: int,
        reserve: Callable[[int], None],
        begun: Pending | None = None,  # noqa: ARG002  # see the protocol
    ) -> bytes:
        """The file's bytes; see :class:`lambda_prefetch.sources.Source`."""
        try:
            descriptor = self._open(key)
        except OSError as error:
            raise _failure(error) from error
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise SampleFailedError(Outcome.CHANGED, "it is no regular file (any more)")
            check_version(_version(before), version)
            check_size(before.st_size, limit_bytes)
            reserve(before.st_size)
            data = _read_exactly(descriptor, before.st_size)
            # A writer that was at work meanwhile leaves bytes of two versions.
            check_version(_version(os.fstat(descriptor)), version)
        except OSError as error:
            raise _failure(error) from error
        finally:
            os.close(descriptor)
        if len(data) != before.st_size:
            why = f"it has {before.st_size} bytes, but only {len(data)} could be read"
            raise SampleFailedError(Outcome.SOURCE_ERROR, why)
        return data

    def _open(self, key: str) -> int:
        if key.startswith("/") or "\0" in key or ".." in key.split("/"):
            raise _escape()
        directory, _, name = key.rpartition("/")
        real = self._real_directories.get(directory)
        if real is None:
            real = os.path.realpath(f"{self._root}/{directory}")
            if not _is_within(real, self._root):
                raise _escape()
            self._real_directories[directory] = real
        path = f"{real}/{name}"
        try:
            return os.open(path, _OPEN_FLAGS)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        # A symbolic link. Whoever swaps what it leads to for another one meanwhile gets an error, not a file
        # from elsewhere.
        path = os.path.realpath(path)
        if not _is_within(path, self._root):
            raise _escape()
        return os.open(path, _OPEN_FLAGS)


def _escape() -> SampleFailedError:
    return SampleFailedError(Outcome.REFUSED, "its path leaves the source's directory")


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


def _read_exactly(descriptor: int, size_bytes: int) -> bytes:
    """Up to ``size_bytes``; fewer if the file ends before."""
    first = os.read(descriptor, size_bytes)
    if len(first) == size_bytes or not first:
        return first
    pieces, missing = [first], size_bytes - len(first)
    while missing and (piece := os.read(descriptor, missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _failure(error: OSError) -> SampleFailedError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return SampleFailedError(Outcome.MISSING, "there is no such file (any more)")
    if isinstance(error, PermissionError):
        return SampleFailedError(Outcome.REFUSED, "permission denied")
    return SampleFailedError(Outcome.SOURCE_ERROR, f"it could not be read: {error.strerror or error}")
