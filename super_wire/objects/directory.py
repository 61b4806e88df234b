"""Directories as buckets: ``file://`` and a path that no file leaves.

A file's key is a relative path without ``..``. Symbolic links are followed as far as the roots go: those
that are given, or without these the directory itself. A path is resolved first, then opened part by part
below its root, and no part of it may be a link any more: who swaps a directory for a link meanwhile gains
nothing by it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import ID_BYTES, digest_version, size_of_digest
from superdl.super_wire.objects.base import Bucket, Fault, ObjectError, Span, check_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.super_wire.objects.base import Pending

__all__ = ["Directory", "file_version"]

_MAX_KEPT = 128  # open directories; those of more are opened for each file
# A directory that may only be searched, as those of homes often are, is opened by O_PATH alone, on Linux.
_DIRECTORY_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)
# Without O_NONBLOCK, opening a FIFO that somebody put there would wait for its writer.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class _Kept(NamedTuple):
    real: str
    descriptor: int


class Directory(Bucket):
    """One directory; links in it may lead to ``allowed_roots``, without any they stay in it.

    Raises:
        ConfigError: ``root`` is relative, or lies outside all of ``allowed_roots`` (where there are any).
    """

    threads = 2  # enough to read ahead of a decoder; more only fight for the interpreter

    def __init__(self, root: str, allowed_roots: tuple[str, ...] = ()) -> None:
        if not root.startswith("/"):
            raise ConfigError(f"a file:// bucket names an absolute directory; not {root!r}")
        self.name, self._root = f"file://{root}", os.path.realpath(root)
        if allowed_roots and not any(_is_within(self._root, allowed) for allowed in allowed_roots):
            raise ConfigError(
                f"this function may not read {root}: SUPER_FILE_ROOTS allows {os.pathsep.join(allowed_roots)}"
            )
        self._roots = allowed_roots or (self._root,)
        self._kept: dict[str, _Kept] = {}  # by path
        weakref.finalize(self, _close, self._kept)

    def read(
        self,
        key: str,
        *,
        version: str = "",
        span: Span | None = None,
        before: Callable[[int], None] = lambda _: None,
        begun: Pending | None = None,  # noqa: ARG002  # begin() returns none
    ) -> bytes:
        """The file's bytes, or a span of them."""
        with self._opened(key) as descriptor:
            status = os.fstat(descriptor)
            _check_status(status, version)
            found = Span(0, status.st_size) if span is None else span.within(status.st_size)
            before(found.size_bytes)
            data = _read_exactly(descriptor, found.size_bytes, found.begin)
            # A writer that was at work meanwhile leaves bytes of two versions.
            _check_status(os.fstat(descriptor), version)
        if len(data) != found.size_bytes:
            raise ObjectError(
                Fault.FAILED, f"it has {found.size_bytes} bytes, but only {len(data)} could be read"
            )
        if span is None and size_of_digest(version) is not None:
            digest = hashlib.blake2b(data, digest_size=ID_BYTES).digest()
            check_version(digest_version(len(data), digest), version)
        return data

    def head(self, key: str) -> tuple[str, int]:
        """The file's version, by its time, and its size."""
        with self._opened(key) as descriptor:
            status = os.fstat(descriptor)
        return file_version(status), status.st_size

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        """The descriptor of a regular file; what the system refuses is ``ObjectError``."""
        try:
            descriptor = self._open(key)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ObjectError(Fault.CHANGED, "it is no regular file (any more)")
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failure(error) from error

    def _open(self, key: str) -> int:
        if key.startswith("/") or "\0" in key or ".." in key.split("/"):
            raise _escape()
        directory, _, name = key.rpartition("/")
        opened, real = self._open_in(f"{self._root}/{directory}", name)
        if opened is None:  # a link
            directory, _, name = os.path.realpath(f"{real}/{name}").rpartition("/")
            opened, real = self._open_in(directory or "/", name)
        if opened is None:
            raise ObjectError(Fault.REFUSED, "a link took its place while it was opened")
        return opened

    def _open_in(self, directory: str, name: str) -> tuple[int | None, str]:
        """A file of a directory, ``None`` if it is a link; and the directory's real path."""
        found = self._kept.get(directory)
        if found is None:
            found = self._open_directory(directory)
            if len(self._kept) < _MAX_KEPT:
                kept = self._kept.setdefault(directory, found)
                if kept is not found:  # another thread was faster
                    os.close(found.descriptor)
                found = kept
        try:
            return os.open(name, _OPEN_FLAGS, dir_fd=found.descriptor), found.real
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return None, found.real
        finally:
            if self._kept.get(directory) is not found:
                os.close(found.descriptor)

    def _open_directory(self, path: str) -> _Kept:
        real = os.path.realpath(path)
        root = next((root for root in self._roots if _is_within(real, root)), None)
        if root is None:
            raise _escape()
        descriptor = os.open(root, _DIRECTORY_FLAGS)
        for part in filter(None, real[len(root) :].split("/")):
            try:
                inner = os.open(part, _DIRECTORY_FLAGS, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
        return _Kept(real, descriptor)


def _close(kept: dict[str, _Kept]) -> None:
    while kept:
        os.close(kept.popitem()[1].descriptor)


def _escape() -> ObjectError:
    return ObjectError(
        Fault.REFUSED,
        "its path leaves the source's directory, and SUPER_FILE_ROOTS of the function allows no other",
    )


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def file_version(status: os.stat_result) -> str:
    """The version of a file: ``size-mtime_ns``, so that a rewritten file is another sample."""
    return f"{status.st_size}-{status.st_mtime_ns}"


def _check_status(status: os.stat_result, version: str) -> None:
    """Refuse a file that is not the listed version, as far as its size and time can tell."""
    size = size_of_digest(version)
    if size is None and version:
        check_version(file_version(status), version)
    elif size is not None and status.st_size != size:
        raise ObjectError(Fault.CHANGED, f"it has {status.st_size} bytes; the catalog lists {version}")


def _read_exactly(descriptor: int, size_bytes: int, begin: int) -> bytes:
    """Up to ``size_bytes`` from ``begin`` on; fewer if the file ends before."""
    data = os.pread(descriptor, size_bytes, begin)
    while len(data) < size_bytes and (
        piece := os.pread(descriptor, size_bytes - len(data), begin + len(data))
    ):
        data += piece
    return data


# A network file system's server is away. EIO is not among them: a bad block of a disk gives it for good.
_AWAY = frozenset({errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET})
_AWAY |= {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH}


def _failure(error: OSError) -> ObjectError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ObjectError(Fault.MISSING, "there is no such file (any more)")
    if isinstance(error, PermissionError):
        return ObjectError(
            Fault.REFUSED, f"permission denied to user id {os.geteuid()}: grant it read permission"
        )
    fault = Fault.UNAVAILABLE if error.errno in _AWAY else Fault.FAILED
    return ObjectError(fault, f"it could not be read: {error.strerror or error}")
