"""Digests of files that were read before, so that a listing reads again what is new or has changed alone.

A file is known by its real path and by what the filesystem says of it: its number, its length, and when its
content and its inode changed. Who writes to it or replaces it changes one of these. What has changed within
the last seconds is not remembered, since one more change could show the same time.

One file for each source, below the user's cache directory, holds 32 bytes for each of the source's and no
name. Losing it costs one reading.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from superdl.super_wire.ids import ID_BYTES, digest128
from superdl.super_wire.store import default_directory

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["KnownDigests"]

_SETTLED_S = 10.0
"""A file that has not changed for so long shows another time once it does."""

_ROW = np.dtype([("file", "<u8", 2), ("digest", f"V{ID_BYTES}")])


class KnownDigests:
    """The digests of the files below one directory, for any number of threads."""

    def __init__(self, directory: str) -> None:
        try:
            base = default_directory(os.environ).parent
        except RuntimeError:  # nobody's home: nothing is remembered
            base = Path(os.devnull)
        self._path = base / "digests" / digest128(os.fsencode(directory)).hex()
        self._before = _read(self._path)
        self._lock = threading.Lock()
        self._rows = bytearray()
        self._new = 0

    def find(self, path: str, status: os.stat_result) -> bytes | None:
        """The digest of a file that was read before, and is the same by all that the filesystem says."""
        file = _file(path, status)
        first, second = (int.from_bytes(half, "little") for half in (file[:8], file[8:]))
        at = int(np.searchsorted(self._before["file"][:, 0], np.uint64(first)))
        if at == len(self._before) or self._before["file"][at].tolist() != [first, second]:
            return None
        digest: bytes = self._before["digest"][at].tobytes()
        with self._lock:
            self._rows += file + digest
        return digest

    def add(self, path: str, before: os.stat_result, after: os.stat_result, digest: bytes) -> None:
        """A file was read, of which the filesystem said that before and after."""
        file, changed_s = _file(path, before), max(after.st_mtime, after.st_ctime)
        if file == _file(path, after) and time.time() - changed_s > _SETTLED_S:
            with self._lock:
                self._rows += file + digest
                self._new += 1

    def keep(self) -> None:
        """Remember the files of this listing for the next, as far as that can be written."""
        if not self._new and len(self._rows) == self._before.nbytes:
            return
        temporary = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(bytes(self._rows) + _seal(self._rows))
                temporary.replace(self._path)
            finally:
                temporary.unlink(missing_ok=True)


def _file(path: str, status: os.stat_result) -> bytes:
    numbers = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return digest128(os.fsencode(path), *(b"%d" % number for number in numbers))


def _seal(rows: bytes | bytearray) -> bytes:
    return hashlib.blake2b(rows, digest_size=ID_BYTES).digest()


def _read(path: Path) -> NDArray[np.void]:
    """The rows that were kept, sorted; none where they are not whole."""
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    rows = content[:-ID_BYTES]
    whole = len(rows) % _ROW.itemsize == 0 and _seal(rows) == content[-ID_BYTES:]
    found = np.frombuffer(rows if whole else b"", dtype=_ROW)
    return found[np.argsort(found["file"][:, 0], kind="stable")]
