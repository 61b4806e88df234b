"""The directory in which a run's local ranks find their coordinator."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError, EmbeddedError
from superdl.super_wire.ids import ID_BYTES, digest128

if TYPE_CHECKING:
    from collections.abc import Container, Iterator


def temporary_directory() -> str:
    """Return the directory for temporary files. Raises ``ConfigError`` if none is usable."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no usable temporary directory ({error.strerror}): set TMPDIR to a writable directory "
            "with free space"
        ) from error


_LONGEST_SOCKET_PATH = 100  # a little less than Linux's limit of 107 bytes
_LOCK_PAUSE_S = 0.02
_LOG_TAIL_LINES = 15
_LOG_TAIL_BYTES = 8192


class RunDirectory:
    """The directory and files of a run. The constructor does not create any."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Ranks keep the coordinator alive with the first socket, and send calls to the second.
        self.ranks_socket = path / "ranks.sock"
        self.coordinator_socket = path / "coordinator.sock"
        self.cache_socket = path / "redis.sock"
        self.log = path / "log"  # of coordinator, cache and worker
        # Locked while a rank looks for or starts the coordinator, and while the coordinator shuts down.
        self.start_lock = path.with_suffix(".lock")

    @classmethod
    def of_run(cls, run: str, variant: str = "") -> RunDirectory:
        """Return the directory of a run. All of this user's ranks derive the same one."""
        identity = (run.encode(), *([variant.encode()] if variant else []))
        return cls(_parent() / digest128(*identity).hex())

    @classmethod
    def of_this_user(cls) -> list[RunDirectory]:
        """Return the directories of this user's runs whose coordinators are listening, newest first."""
        runs = [cls(path) for path in _newest_first(_parent())]
        return [run for run in runs if _listens(run.coordinator_socket)]

    @classmethod
    def sweep(cls, kept: Container[Path]) -> None:
        """Remove the directories of runs whose processes were all killed, except those in ``kept``."""
        # They must include this process's own: trying their locks would release them.
        for run in (cls(path) for path in _newest_first(_parent()) if path not in kept):
            with contextlib.suppress(EmbeddedError, OSError), run.locked_for_start(0.0):
                if not _listens(run.ranks_socket):
                    run.remove()

    def create(self) -> None:
        """Create the directory, private to this user. Call with the start lock held."""
        _make_private(self.path)

    def identity(self) -> tuple[int, int] | None:
        """Return a value that no later directory at this path has, or ``None`` if there is no directory."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def remove(self) -> None:
        """Remove the directory and the start lock. Call with the lock held."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.start_lock.unlink(missing_ok=True)

    def log_tail(self) -> str:
        """Return the last lines of the log, for the end of an error message."""
        try:
            lines = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").splitlines()
        except OSError:
            return f" (there is no log {self.log})"
        return f"; the end of {self.log}:\n  " + "\n  ".join(lines[-_LOG_TAIL_LINES:])

    @contextlib.contextmanager
    def locked_for_start(self, wait_s: float) -> Iterator[None]:
        """Hold the start lock. It does not exclude other threads of the same process.

        Raises ``EmbeddedError`` if another process still holds it after ``wait_s``, or if the parent
        directory is not private to this user.
        """
        _make_private(self.path.parent)
        deadline_s = time.monotonic() + wait_s
        while (descriptor := self._try_start_lock()) is None:
            if time.monotonic() >= deadline_s:
                raise EmbeddedError(
                    f"another process has held {self.start_lock} for {wait_s:g} s. It seems to be stuck "
                    f"while starting or stopping this run's embedded coordinator: see {self.log}"
                )
            # Poll with jitter, because file locks have no timeout.
            time.sleep(_LOCK_PAUSE_S * random.SystemRandom().uniform(0.5, 1.5))
        try:
            yield
        finally:
            os.close(descriptor)

    def _try_start_lock(self) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.start_lock, flags, 0o600)
        try:
            # A POSIX lock belongs to the process, so a forked worker cannot keep it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A coordinator unlinks the file when it exits. A lock on an unlinked file is useless.
            if os.path.samestat(os.fstat(descriptor), self.start_lock.stat()):
                return descriptor
        except (BlockingIOError, PermissionError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None


def _parent() -> Path:
    # <temporary directory>/superdl-<user>/<digest of the run id> contains a run's sockets and log.
    parent = Path(temporary_directory()) / f"superdl-{os.getuid()}"
    longest = RunDirectory(parent / ("0" * 2 * ID_BYTES)).coordinator_socket
    if len(os.fsencode(longest)) <= _LONGEST_SOCKET_PATH:
        return parent
    # The path of the temporary directory is too long for a socket.
    return "/tmp" / Path(parent.name)  # noqa: S108  # owner and mode are checked


def _newest_first(parent: Path) -> list[Path]:
    stamped = []
    with contextlib.suppress(OSError):  # the parent does not exist, or a run has just ended
        if _is_private(parent.lstat()):
            stamped = [(path.stat().st_mtime_ns, path) for path in parent.iterdir() if path.is_dir()]
    return [path for _, path in sorted(stamped, reverse=True)]


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, contextlib.suppress(OSError):
        client.settimeout(1.0)
        client.connect(str(path))
        return True
    return False


def _is_private(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise EmbeddedError(
            f"cannot create {directory}: {error}. Set TMPDIR to a directory of your own"
        ) from error
    if not _is_private(status):
        raise EmbeddedError(
            f"{directory} must be a directory private to this user, but has owner {status.st_uid} and mode "
            f"{stat.filemode(status.st_mode)}: remove it, or set TMPDIR to another directory"
        )
