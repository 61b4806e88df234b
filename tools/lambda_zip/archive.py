"""Writes a zip whose bytes depend on nothing but its files' names and contents.

Not on the order of directories, times, users, modes, the umask or the place it is built in. What remains is
zlib: another one (zlib-ng, say) may compress to other bytes, so its version is told with the digest.
"""

from __future__ import annotations

import hashlib
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["write_archive"]

_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that the format can say
_UNIX = 3
_MODE = 0o100644 << 16  # an ordinary file that all may read; libraries need no more to be loaded
_LEVEL = 9


def write_archive(path: Path, files: Mapping[str, bytes]) -> str:
    """Write ``files``, by their names in the zip, and return the SHA-256 of the zip in hex digits.

    The zip appears at ``path`` whole or not at all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    with zipfile.ZipFile(unfinished, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=_TIME)
            entry.create_system = _UNIX
            entry.external_attr = _MODE
            archive.writestr(entry, files[name], compress_type=zipfile.ZIP_DEFLATED, compresslevel=_LEVEL)
    unfinished.replace(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()
