"""What the pipeline asks of a source of objects, how one sample fails, and ``file://`` sources.

A file's key is a relative path without ``..``. Symbolic links are followed as far as the roots go: the
directories of ``SUPER_FILE_ROOTS``, or without these the source's own. A path is resolved first, then opened
part by part below its root, and no part of it may be a link any more: who swaps a directory for a link
meanwhile gains nothing by it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import weakref
from typing import TYPE_CHECKING, NamedTuple, Protocol

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import ID_BYTES, digest_version, size_of_digest
from superdl.super_wire.objects import Span
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_wire.objects import Pending

__all__ = [
    "FileSource",
    "ObjectSource",
    "SampleFailedError",
    "check_size",
    "spoiled",
]

_MAX_KEPT = 128  # open directories; those of more are opened for each file
# A directory that may only be searched, as those of homes often are, is opened by O_PATH alone, on Linux.
_DIRECTORY_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)
# Without O_NONBLOCK, opening a FIFO that somebody put there would wait for its writer.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class SampleFailedError(Exception):
    """One sample cannot be produced now, or ever; the pipeline puts its name before ``why``.

    ``reason`` is the tombstone's short code, and empty where the failure is not the fault of the object's
    bytes: those failures are tried again, so nothing about them is written to the cache.
    """

    def __init__(self, outcome: Outcome, why: str, *, reason: str = "") -> None:
        super().__init__(why)
        self.outcome = outcome
        self.why = why
        self.reason = reason


def spoiled(reason: str, why: str) -> SampleFailedError:
    """A failure for good: this version's bytes will never give a sample.

    ``reason`` is ``empty``, ``not_an_image``, ``undecodable``, ``too_large``, ``too_small`` or ``unequal``.
    """
    return SampleFailedError(Outcome.TOMBSTONE, why, reason=reason)


class ObjectSource(Protocol):
    """Reads objects; called by several threads at once."""

    @property
    def threads(self) -> int:
        """How many threads read it best."""

    @property
    def in_flight(self) -> int:
        """How many objects each of them should have begun at a time."""

    def begin(self, key: str, version: str, span: Span | None = None) -> Pending | None:
        """Ask for an object, or a span of it, whose bytes :meth:`read` is to give later.

        ``None`` if it cannot be asked for ahead; :meth:`read` gives it, or says why not.
        """

    def read(
        self,
        key: str,
        version: str,
        *,
        limit_bytes: int,
        reserve: Callable[[int], None],
        begun: Pending | None = None,
        span: Span | None = None,
    ) -> bytes | bytearray:
        """The bytes of one object in exactly this version, or of a span of it.

        Args:
            key: the object's key.
            version: what the catalog listed.
            limit_bytes: larger objects, or spans, are refused before their bytes are read.
            reserve: called once, with the size in bytes, before they are read; it may wait.
            begun: what :meth:`begin` gave for this key, version and span; it is used up.
            span: the bytes that are wanted, fewer come where the object ends before; ``None``: all.

        Raises:
            SampleFailedError: the object is missing, changed, refused or too large, or the source failed.
        """


def check_size(size_bytes: int, limit_bytes: int) -> None:
    """Refuse an object that is larger than the request allows."""
    if size_bytes > limit_bytes:
        raise spoiled("too_large", f"its {size_bytes} bytes are over the limit of {limit_bytes}")


class _Directory(NamedTuple):
    real: str
    descriptor: int


class FileSource:
    """One directory; links in it may lead to ``allowed_roots``, without any they stay in it.

    Raises:
        ConfigError: ``root`` is relative, or lies outside all of ``allowed_roots`` (where there are any).
    """

    threads = 2  # enough to read ahead of a decoder; more only fight for the interpreter
    in_flight = 1

    def __init__(self, root: str, *, allowed_roots: tuple[str, ...] = ()) -> None:
        if not root.startswith("/"):
            raise ConfigError(f"a file:// bucket names an absolute directory; not {root!r}")
        self._root = os.path.realpath(root)
        if allowed_roots and not any(_is_within(self._root, allowed) for allowed in allowed_roots):
            raise ConfigError(
                f"this function may not read {root}: SUPER_FILE_ROOTS allows {os.pathsep.join(allowed_roots)}"
            )
        self._roots = allowed_roots or (self._root,)
        self._kept: dict[str, _Directory] = {}  # by path
        weakref.finalize(self, _close, self._kept)

    def begin(self, key: str, version: str, span: Span | None = None) -> Pending | None:  # noqa: ARG002  # see the protocol
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
        span: Span | None = None,
    ) -> bytes:
        """The file's bytes; see :class:`superdl.lambda_prefetch.sources.ObjectSource`."""
        try:
            descriptor = self._open(key)
        except OSError as error:
            raise _failure(error) from error
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise SampleFailedError(Outcome.CHANGED, "it is no regular file (any more)")
            _check_status(before, version)
            found = Span(0, before.st_size) if span is None else span.within(before.st_size)
            size_bytes = found.size_bytes
            check_size(size_bytes, limit_bytes)
            reserve(size_bytes)
            data = _read_exactly(descriptor, size_bytes, found.begin)
            # A writer that was at work meanwhile leaves bytes of two versions.
            _check_status(os.fstat(descriptor), version)
        except OSError as error:
            raise _failure(error) from error
        finally:
            os.close(descriptor)
        if len(data) != size_bytes:
            raise SampleFailedError(
                Outcome.SOURCE_ERROR, f"it has {size_bytes} bytes, but only {len(data)} could be read"
            )
        if span is None and size_of_digest(version) is not None:
            digest = hashlib.blake2b(data, digest_size=ID_BYTES).digest()
            _check_version(digest_version(len(data), digest), version)
        return data

    def _open(self, key: str) -> int:
        if key.startswith("/") or "\0" in key or ".." in key.split("/"):
            raise _escape()
        directory, _, name = key.rpartition("/")
        opened, real = self._open_in(f"{self._root}/{directory}", name)
        if opened is None:  # a link
            directory, _, name = os.path.realpath(f"{real}/{name}").rpartition("/")
            opened, real = self._open_in(directory or "/", name)
        if opened is None:
            raise SampleFailedError(Outcome.REFUSED, "a link took its place while it was opened")
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

    def _open_directory(self, path: str) -> _Directory:
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
        return _Directory(real, descriptor)


def _close(kept: dict[str, _Directory]) -> None:
    while kept:
        os.close(kept.popitem()[1].descriptor)


def _escape() -> SampleFailedError:
    return SampleFailedError(
        Outcome.REFUSED,
        "its path leaves the source's directory, and SUPER_FILE_ROOTS of the function allows no other",
    )


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _check_version(found: str, listed: str) -> None:
    """Refuse a file of another version than the catalog listed, since its id would lie."""
    if found != listed:
        raise SampleFailedError(Outcome.CHANGED, f"its version is {found}; the catalog lists {listed}")


def _check_status(status: os.stat_result, version: str) -> None:
    """Refuse a file that is not the listed version, as far as its size and time can tell."""
    size = size_of_digest(version)
    if size is None:
        _check_version(f"{status.st_size}-{status.st_mtime_ns}", version)
    elif status.st_size != size:
        raise SampleFailedError(
            Outcome.CHANGED, f"it has {status.st_size} bytes; the catalog lists {version}"
        )


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


def _failure(error: OSError) -> SampleFailedError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return SampleFailedError(Outcome.MISSING, "there is no such file (any more)")
    if isinstance(error, PermissionError):
        return SampleFailedError(Outcome.REFUSED, "permission denied")
    outcome = Outcome.UNAVAILABLE if error.errno in _AWAY else Outcome.SOURCE_ERROR
    return SampleFailedError(outcome, f"it could not be read: {error.strerror or error}")
