"""Addresses of stores, and the names within a store, which are the same in a directory and in S3."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.super_wire.display import without_credentials
from superdl.super_wire.errors import (
    ConfigError,
    StoreBusyError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreGoneError,
    StoreRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK = "store.json"
PACKS, INDEX, OPEN, USED, TEMPORARY = ("packs", "index", "open", "used", "tmp")
# The state of coordinators, in the directory of a store but not part of it.
CATALOGS = "catalogs"
# An instance counts as using the store for this long after last touching it.
IN_USE_S = 600.0
# After this time, any process may remove a writer's unfinished files.
ABANDONED_S = 86400.0
# Readers load whole segments. Writers start a new one long before this size.
MAX_SEGMENT_BYTES = 2**28
MAX_MARK_BYTES = 4096

_STORE_VERSION = 1
_S3 = "s3://"
_FORMS = "a store must be a directory or s3://bucket/prefix"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_ID = re.compile(r"[0-9a-f]{32}")
# Names come from networks and shared disks, so check them before use in a path.
_NAMES = {
    PACKS: re.compile(r"[0-9a-f]{16}-[0-9a-f]{24}\.pack"),
    INDEX: re.compile(r"(?:[0-9a-f]{16}-)?[0-9a-f]{24}\.segment"),
    OPEN: re.compile(r"[A-Za-z0-9_-]{1,64}"),
    USED: re.compile(r"[0-9a-f]{16}"),
    TEMPORARY: re.compile(r"(?!\.{1,2}$)[^/\0]+"),
}

_FAILURES: dict[int | None, type[StoreError]] = {
    **dict.fromkeys((errno.ENOENT, errno.ESTALE), StoreGoneError),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), StoreFullError),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), StoreRefusedError),
    **dict.fromkeys((errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ESPIPE), StoreFormatError),
}


def parse_store(text: str) -> str:
    """Return a store's address in normal form: ``s3://bucket/prefix``, or a directory's real path.

    ``~`` stands for the user's home directory. Raises ``ConfigError`` for anything else.
    """
    if not text.strip() or "\0" in text:
        raise ConfigError(f"{_FORMS}, not {text[:80]!r}")
    if not text.startswith(_S3):
        if "://" in text:
            raise ConfigError(f"{_FORMS}, not {without_credentials(text)[:80]!r}")
        try:
            path = os.path.realpath(Path(text).expanduser())
            path.encode()
        except (RuntimeError, UnicodeEncodeError) as error:  # no such home directory, or invalid text
            raise ConfigError(f"{_FORMS}, but {text[:80]!a} cannot be used: {error}") from error
        return path
    bucket, _, rest = text.removeprefix(_S3).partition("/")
    if "@" in bucket:
        raise ConfigError("a store address must not contain credentials: remove them, and set AWS_PROFILE")
    prefix = rest.strip("/")
    if not _BUCKET.fullmatch(bucket) or (prefix and {"", ".", ".."} & set(prefix.split("/"))):
        raise ConfigError(f"{_FORMS}, not {without_credentials(text)[:80]!r}")
    return f"{_S3}{bucket}/{prefix}".rstrip("/")


def default_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of the default store, in the user's cache directory."""
    cache = environment.get("XDG_CACHE_HOME", "")
    home = environment.get("HOME", "")
    base = Path(cache) if Path(cache).is_absolute() else (Path(home) if home else Path.home()) / ".cache"
    return base / "superdl" / "store"


def is_bucket(address: str) -> bool:
    """Return whether a store is an S3 prefix, which every machine can reach."""
    return address.startswith(_S3)


def bucket_and_prefix(address: str) -> tuple[str, str]:
    """Split an S3 store's address into its bucket and its prefix, which has no trailing slash."""
    bucket, _, prefix = address.removeprefix(_S3).partition("/")
    return bucket, prefix


def is_name(folder: str, name: str) -> bool:
    """Return whether a file in a folder of the store may have this name."""
    return _NAMES[folder].fullmatch(name) is not None


def checked_name(folder: str, name: str) -> str:
    """Check and return a name, so that it cannot lead out of the store. Raises ``StoreFormatError``."""
    if not is_name(folder, name):
        raise StoreFormatError(f"{name[:80]!r} is not a valid name in {folder}/ of a store")
    return name


def new_mark(store_id: str) -> bytes:
    """Return the content of a new store's ``store.json``."""
    return json.dumps({"super_store": _STORE_VERSION, "id": store_id}).encode() + b"\n"


def read_mark(data: bytes, address: str) -> str:
    """Return the id in a ``store.json``. Raises ``StoreFormatError`` if this version cannot read it."""
    try:
        mark = json.loads(data)
        version, store_id = mark["super_store"], mark["id"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreFormatError(
            f"{address} is not a store of SUPER: its {MARK} is invalid. Use another address"
        ) from error
    if version != _STORE_VERSION:
        raise StoreFormatError(
            f"the store {address} has version {version!r:.20}, but this version of SUPER reads version "
            f"{_STORE_VERSION}: use another address, or the version of SUPER that created the store"
        )
    if not isinstance(store_id, str) or not _ID.fullmatch(store_id):
        raise StoreFormatError(f"{address} is not a store: the id in its {MARK} is not 32 hexadecimal digits")
    return store_id


def system_failure(error: OSError) -> type[StoreError]:
    """Map a system error to a store error. Errors that may be temporary become ``StoreBusyError``."""
    return _FAILURES.get(error.errno, StoreBusyError)
