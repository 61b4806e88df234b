"""Which store a coordinator has: the one that its settings name, or the user's own, and how it is opened.

A directory on a network filesystem is no default: whoever wants one there names it.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.super_wire import store
from superdl.super_wire.store import default_directory, parse_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.super_wire.store import Store

__all__ = ["AUTO", "NONE", "StoreChoice", "chosen_store", "default_store", "network_filesystem", "open_store"]

NONE, AUTO = "none", "auto"
"""What a setting says in place of an address: no store, and the user's own."""

_LEAST_FREE_BYTES = 2 * 2**30
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "gpfs", "beegfs", "afs", "efs"}
    | {"wekafs", "orangefs", "pvfs2", "fuse"}
)
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """A store's normal address; empty where there is none, and then why, for people."""

    address: str
    reason: str = ""


def open_store(address: str, *, create: bool, read_only: bool = False) -> Store:
    """Open the store at a normal address, whichever kind it is, with the coordinator's own client of S3.

    Raises:
        StoreError: it is not there, is no store, or does not answer.
    """

    def client() -> Any:
        from superdl.coordinator.catalog.s3_client import make_s3_client  # boto3 is slow to import

        return make_s3_client()

    return store.open_store(address, create=create, read_only=read_only, s3_client=client)


def chosen_store(text: str, environment: Mapping[str, str]) -> StoreChoice:
    """The store that a setting names: an address, ``none`` (or nothing), or ``auto``.

    Raises:
        ConfigError: it names none of them.
    """
    if text.lower() in ("", NONE):
        return StoreChoice("")
    return default_store(environment) if text.lower() == AUTO else StoreChoice(parse_store(text))


def default_store(environment: Mapping[str, str]) -> StoreChoice:
    """The user's own, below the cache directory; none on a network filesystem, or with little room."""
    try:
        directory = Path(os.path.realpath(default_directory(environment)))
        str(directory).encode()
        there = next(path for path in (directory, *directory.parents) if path.exists())
        kind = network_filesystem(there)
        free_bytes = shutil.disk_usage(there).free
        usable = os.access(there, os.W_OK)
    except (OSError, RuntimeError, UnicodeEncodeError) as error:  # no home; a name that messages cannot carry
        return StoreChoice("", f"the cache directory cannot be reached: {error}")
    if kind:
        return StoreChoice("", f"{there} is on a network filesystem ({kind})")
    if free_bytes < _LEAST_FREE_BYTES:
        return StoreChoice("", f"{there} has only {free_bytes / 2**30:.1f} GiB free")
    if not usable:
        return StoreChoice("", f"{there} may not be written")
    return StoreChoice(str(directory))


def network_filesystem(directory: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of network filesystem that a directory lies on; empty if it lies on a disk of this machine, or
    if the system does not tell.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real, found = Path(os.path.realpath(directory)), (-1, "")
    for line in lines:
        fields, _, rest = line.partition(" - ")
        _, _, _, _, place, *_ = [*fields.split(" "), *" " * 5]
        point = Path(_ESCAPED.sub(lambda escaped: chr(int(escaped[1], 8)), place))
        if (real == point or point in real.parents) and len(point.parts) >= found[0]:
            found = len(point.parts), rest.split(" ")[0]
    kind = found[1]
    return kind if kind in _NETWORK or kind.startswith("fuse.") else ""
