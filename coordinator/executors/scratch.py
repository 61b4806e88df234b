"""A coordinator's scratch directory, next to others', removed however its process ends."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import platform
import shutil
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Scratch"]

_MOST_BYTES = 2**36


class Scratch:
    """A directory with a lock, which the system drops with the process.

    At its start, a coordinator removes the directories of killed coordinators on this host.

    Args:
        parent: created if needed; holds the directories of all coordinators.

    Raises:
        OSError: it cannot be created there.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent, wait=True):  # else it seems abandoned before it is locked
            host = f"{platform.node()}-"  # another host's locks may be invisible here
            for other in parent.glob(f"{glob.escape(host)}*"):
                with contextlib.suppress(OSError), _locked(other):
                    shutil.rmtree(other, ignore_errors=True)
            self.path = tempfile.mkdtemp(prefix=host, dir=parent)
            self._lock = contextlib.ExitStack()
            self._lock.enter_context(_locked(self.path))

    @property
    def max_bytes(self) -> int:
        """A tenth of the free space, capped: a network file system may report no limit."""
        return min(shutil.disk_usage(self.path).free // 10, _MOST_BYTES)

    def remove(self) -> None:
        """Remove the directory and its contents."""
        # The lock is held to the end, so that no other start removes the directory.
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


@contextlib.contextmanager
def _locked(directory: str | Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a directory's lock; ``OSError`` if another process holds it, unless ``wait``."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)
