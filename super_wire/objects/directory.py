"""Directories as ``file://`` buckets. No key can escape its directory through ``..`` or a link."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import ID_BYTES, digest_version, size_of_digest
from superdl.super_wire.objects.base import Bucket, Fault, ObjectError, Span, check_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Without O_NONBLOCK, opening a FIFO would wait for its writer.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class Directory(Bucket):
    """A directory. Symbolic links may only point into ``allowed_roots``, by default the directory itself.

    Raises ``ConfigError`` if ``root`` is relative, or not inside any of ``allowed_roots``.
    """

    threads = 2  # enough to read ahead of a decoder; more would only compete for the GIL

    def __init__(self, root: str, allowed_roots: tuple[str, ...] = ()) -> None:
        if not root.startswith("/"):
            raise ConfigError(f"a file:// bucket must be an absolute directory, not {root!r}")
        self.name, self._root = f"file://{root}", os.path.realpath(root)
        if allowed_roots and not any(_is_within(self._root, allowed) for allowed in allowed_roots):
            raise ConfigError(
                f"this function may not read {root}: SUPER_FILE_ROOTS only allows "
                f"{os.pathsep.join(allowed_roots)}. Add the directory to it"
            )
        self._roots = allowed_roots or (self._root,)

    def _fetch(self, key: str, version: str, span: Span | None, before: Callable[[int], None]) -> bytes:
        with self._opened(key) as descriptor:
            status = os.fstat(descriptor)
            _check_status(status, version)
            clipped = Span(0, status.st_size) if span is None else span.within(status.st_size)
            before(clipped.size_bytes)
            data = _read_exactly(descriptor, clipped.size_bytes, clipped.begin)
            # A concurrent writer could mix the bytes of two versions.
            _check_status(os.fstat(descriptor), version)
        if len(data) != clipped.size_bytes:
            raise ObjectError(Fault.FAILED, f"read only {len(data)} of {clipped.size_bytes} bytes")
        if span is None and size_of_digest(version) is not None:
            digest = hashlib.blake2b(data, digest_size=ID_BYTES).digest()
            check_version(digest_version(len(data), digest), version)
        return data

    def head(self, key: str) -> tuple[str, int]:
        """Return a file's version (:func:`file_version`) and size."""
        with self._opened(key) as descriptor:
            status = os.fstat(descriptor)
        return file_version(status), status.st_size

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        """Open a regular file for reading, and convert ``OSError`` to ``ObjectError``."""
        try:
            descriptor = self._open(key)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ObjectError(Fault.CHANGED, "this is not a regular file")
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failure(error) from error

    def _open(self, key: str) -> int:
        if key.startswith("/") or "\0" in key or ".." in key.split("/"):
            raise _escape()
        located = os.open(f"{self._root}/{key}", os.O_PATH | os.O_CLOEXEC)
        try:
            # The kernel reports where the open file is, so swapping a directory for a link has no effect.
            resolved = os.readlink(f"/proc/self/fd/{located}")  # noqa: PTH115 # no Path for each file
            if not any(_is_within(resolved, root) for root in self._roots):
                raise _escape()
            # Reopen the checked file itself, not its path.
            return os.open(f"/proc/self/fd/{located}", _OPEN_FLAGS)
        finally:
            os.close(located)


def _escape() -> ObjectError:
    return ObjectError(
        Fault.REFUSED,
        "the path leaves the source's directory, and the function's SUPER_FILE_ROOTS does not allow that",
    )


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def file_version(status: os.stat_result) -> str:
    """Return a file's version, ``size-mtime_ns``, which changes when the file is rewritten."""
    return f"{status.st_size}-{status.st_mtime_ns}"


def _check_status(status: os.stat_result, version: str) -> None:
    """Raise the fault ``CHANGED`` if the size or modification time does not match the listed version."""
    size = size_of_digest(version)
    if size is None and version:
        check_version(file_version(status), version)
    elif size is not None and status.st_size != size:
        raise ObjectError(
            Fault.CHANGED, f"the file has {status.st_size} bytes, but the catalog lists {version}"
        )


def _read_exactly(descriptor: int, size_bytes: int, begin: int) -> bytes:
    data = os.pread(descriptor, size_bytes, begin)
    while len(data) < size_bytes and (
        piece := os.pread(descriptor, size_bytes - len(data), begin + len(data))
    ):
        data += piece
    return data


# Errors of a network filesystem whose server is down. EIO is excluded: a bad block on a disk is permanent.
_AWAY = frozenset({errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET})
_AWAY |= {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH}


def _failure(error: OSError) -> ObjectError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ObjectError(Fault.MISSING, "the file does not exist")
    if isinstance(error, PermissionError):
        return ObjectError(
            Fault.REFUSED, f"permission denied to user id {os.geteuid()}: grant it read permission"
        )
    fault = Fault.UNAVAILABLE if error.errno in _AWAY else Fault.FAILED
    return ObjectError(fault, f"cannot read the file: {error.strerror or error}")
