"""Choose and open a coordinator's store, which is the configured one or the user's default."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from superdl.super_wire.errors import StoreFullError, StoreGoneError, StoreRefusedError
from superdl.super_wire.store import default_directory, is_bucket, open_store, parse_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.super_wire.store import Store

_log = logging.getLogger(__name__)

# Settings other than an address: no store, and the user's default.
NONE, AUTO = "none", "auto"

_LEAST_FREE_BYTES = 2 * 2**30
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "gpfs", "beegfs", "afs", "efs"}
    | {"wekafs", "orangefs", "pvfs2", "fuse"}
)


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """The normalised address of a store, or an empty address and a human-readable ``reason``."""

    address: str
    reason: str = ""
    # Whether the store is the default, which a coordinator can start without.
    by_default: bool = False


def open_own(address: str, instance: str, *, create: bool, read_only: bool) -> Store:
    """Open the coordinator's store, read-only if necessary, and mark it as used. See ``open_store``."""
    try:
        store = open_store(address, create=create, read_only=read_only)
        if not store.read_only:
            with contextlib.suppress(StoreFullError):  # it can be read, and will have room soon
                store.touch(instance)
    except StoreRefusedError as error:
        if read_only:
            raise
        store = open_store(address, create=False, read_only=True)
        _log.warning("the store is read but not written: %s", error)
    return store


def filesystem_of(address: str) -> int:
    """Return the device number of a directory's filesystem, or 0 for a bucket. The path need not exist."""
    if is_bucket(address):
        return 0
    path = Path(address)
    return next(ancestor for ancestor in (path, *path.parents) if os.path.lexists(ancestor)).lstat().st_dev


def is_gone(address: str, store_id: str) -> bool:
    """Return whether a store's directory is missing or has been replaced. May raise ``StoreError``."""
    try:
        return not is_bucket(address) and open_store(address, create=False, read_only=True).id != store_id
    except StoreGoneError:
        return True


def chosen_store(text: str, environment: Mapping[str, str]) -> StoreChoice:
    """Return the store for an address, ``none`` (or empty), or ``auto``. May raise ``ConfigError``."""
    if text.lower() in ("", NONE):
        return StoreChoice("")
    return default_store(environment) if text.lower() == AUTO else StoreChoice(parse_store(text))


def default_store(environment: Mapping[str, str]) -> StoreChoice:
    """Return the user's default store, or none if its filesystem is remote, read-only or low on space."""
    try:
        directory = Path(os.path.realpath(default_directory(environment)))
        str(directory).encode()  # raises if messages cannot contain the name
        existing = next(path for path in (directory, *directory.parents) if path.exists())
        kind = network_filesystem(existing)
        read_only_reason = _read_only_reason(existing)
        free_bytes = shutil.disk_usage(existing).free
    except (OSError, RuntimeError, UnicodeEncodeError) as error:  # no home directory, or an undecodable name
        return StoreChoice("", f"the cache directory cannot be reached: {error}")
    if kind:
        return StoreChoice("", f"{existing} is on a network filesystem ({kind})")
    if read_only_reason:  # check this first, because a read-only filesystem has no free space
        return StoreChoice("", read_only_reason)
    if free_bytes < _LEAST_FREE_BYTES:
        return StoreChoice("", f"{existing} has only {free_bytes / 2**30:.1f} GiB free")
    return StoreChoice(str(directory), by_default=True)


def _read_only_reason(directory: Path) -> str:
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f"{directory} is on a read-only filesystem"
    usable = os.access(directory, os.W_OK | os.X_OK)
    return "" if usable else f"{directory} is read-only for this user (id {os.geteuid()})"


def network_filesystem(directory: Path) -> str:
    """Return the type of a directory's network filesystem, or an empty string if local or unknown."""
    real, best = Path(os.path.realpath(directory)), (-1, "")
    for mount in psutil.disk_partitions(all=True):
        point = Path(mount.mountpoint)
        # The last of several identical mount points hides the others.
        if (real == point or point in real.parents) and len(point.parts) >= best[0]:
            best = len(point.parts), mount.fstype
    kind = best[1]
    return kind if kind in _NETWORK or kind.startswith("fuse.") else ""
