"""A directory of one coordinator's, beside those of others, that is gone after it however it ends."""

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

    The directories of this host's coordinators that were killed are removed by the next one's start.

    Args:
        parent: where it is made, beside those of other coordinators.

    Raises:
        OSError: it cannot be made there.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent, wait=True):  # nobody takes a directory for abandoned before it is locked
            host = f"{platform.node()}-"  # another host's lock may not be seen here
            for other in parent.glob(f"{glob.escape(host)}*"):
                with contextlib.suppress(OSError), _locked(other):
                    shutil.rmtree(other, ignore_errors=True)
            self.path = tempfile.mkdtemp(prefix=host, dir=parent)
            self._lock = contextlib.ExitStack()
            self._lock.enter_context(_locked(self.path))

    @property
    def max_bytes(self) -> int:
        """A tenth of what its disk has free; a network file system may say that it has no end."""
        return min(shutil.disk_usage(self.path).free // 10, _MOST_BYTES)

    def remove(self) -> None:
        """Remove it, with all that it holds."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


@contextlib.contextmanager
def _locked(directory: str | Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a directory's lock; ``OSError`` if another process does, unless it is waited for."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)
