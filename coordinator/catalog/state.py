"""A coordinator's state: catalogs and ids in a directory, with which it goes on after a restart.

Files appear whole or not at all, and are never changed. Several coordinators may share a directory. Nothing
is forced to the disk: what a power failure cuts off is found spoilt, and made again.

| file | what |
|---|---|
| ``DIGEST.arrow`` | a catalog (:mod:`superdl.coordinator.catalog.catalog_file`), named by its BLAKE2b-128 |
| ``CONTENT.ids`` | the ids of a dataset's samples, 16 bytes each, and BLAKE2b-128 of them |
| ``KEY.json`` | which catalog a listing, or a run's dataset, has, and when it was listed |
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, cast

import numpy as np

from superdl.coordinator.catalog.catalog_file import map_catalog, write_catalog
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.store import default_directory, is_bucket
from superdl.super_wire.store.layout import CATALOGS
from superdl.super_wire.temporary import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.catalog import Catalog

__all__ = ["CatalogState", "Kept", "open_state"]

_log = logging.getLogger(__name__)

_CATALOG, _IDS, _ENTRY, _UNFINISHED = ".arrow", ".ids", ".json", ".unfinished"
_MAX_BYTES = 2**35
_IN_USE_S = 86_400.0
"""What was made or opened within so many seconds is not removed: another coordinator may have it mapped."""
_ENTRIES_S = 30 * _IN_USE_S
_AT_A_TIME = 2**16
_blake2b = partial(hashlib.blake2b, digest_size=ID_BYTES)


@dataclass(frozen=True, slots=True)
class Kept:
    """The file of a listing's catalog, when the listing ended (Unix time), and the seconds it took."""

    file: str
    ended_s: float
    took_s: float


class CatalogState:
    """The state in a directory. Its methods block, and may be called from any thread.

    Without a directory, or where nothing can be written there, catalogs lie in temporary files and are gone
    with the process; where these have no room either, catalogs stay in memory.

    Args:
        directory: where, in a directory that is there; made when it is needed. ``None``: nowhere.
        max_bytes: what it may take; what was used least recently goes first.
        by_default: nobody has named it, so that it is no trouble if it cannot be used.
    """

    def __init__(
        self, directory: Path | None, max_bytes: int = _MAX_BYTES, *, by_default: bool = False
    ) -> None:
        self.directory = directory
        self._max_bytes, self._by_default = max_bytes, by_default
        self._trouble = ""

    def keep(self, write: Callable[[IO[bytes]], None]) -> tuple[Catalog, str]:
        """Have a catalog written. Return it mapped, and the name of its file, empty if that is temporary.

        ``OSError`` if there is no room for it.
        """
        with self._new_file() as stream:
            write(stream)
            stream.flush()
            mapped = map_catalog(Path(stream.name))
            return mapped, self._named(stream, _digest_of(Path(stream.name)) + _CATALOG)

    def hold(self, catalog: Catalog) -> tuple[Catalog, str]:
        """Keep a catalog that is in memory; where there is no room for its file, it stays there."""
        try:
            return self.keep(lambda stream: write_catalog(catalog, cast("BinaryIO", stream)))
        except OSError as error:
            self._say(f"a catalog of {len(catalog):,} samples is held in memory: {error}")
            return catalog, ""

    def load(self, kept: Kept) -> Catalog | None:
        """Return a catalog that was kept; ``None`` if its file is gone, or is not what was written."""
        if self.directory is None:
            return None
        path = self.directory / kept.file
        try:
            if _digest_of(path) + _CATALOG == path.name:
                _touch(path)
                return map_catalog(path)
            self._say(f"{path} is not what was written there, so the source is listed again")
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._say(f"{path} cannot be used, so the source is listed again: {error}")
        return None

    def note(self, key: bytes, kept: Kept) -> None:
        """Remember by a key which catalog a listing has."""
        if self.directory is None or not kept.file:
            return
        try:
            with self._new_file() as stream:
                stream.write(json.dumps(asdict(kept)).encode())
                self._named(stream, key.hex() + _ENTRY)
            self._prune()
        except OSError as error:
            self._say(f"after a restart a source will be listed again: {error}")

    def find(self, key: bytes) -> Kept | None:
        """Return what was noted by a key; ``None`` if nothing was, or it cannot be read."""
        if self.directory is None:
            return None
        try:
            found = Kept(**json.loads((self.directory / f"{key.hex()}{_ENTRY}").read_bytes()))
            return found if Path(found.file).name == found.file and found.took_s + found.ended_s > 0 else None
        except (OSError, ValueError, TypeError):
            return None

    def ids(
        self, content: bytes, size: int, derive: Callable[[NDArray[np.int64]], bytes]
    ) -> NDArray[np.uint8]:
        """Return the ids of a dataset, shape (size, 16), mapped; ``derive`` makes those of some samples."""
        name, shape = content.hex() + _IDS, (size, ID_BYTES)
        found = self._mapped_ids(self.directory / name, size) if self.directory is not None else None
        if found is not None:
            return found
        places = (np.arange(at, min(at + _AT_A_TIME, size)) for at in range(0, size, _AT_A_TIME))
        try:
            with self._new_file() as stream:
                digest = _blake2b()
                for some in places:
                    digest.update(packed := derive(some))
                    stream.write(packed)
                stream.write(digest.digest())
                stream.flush()
                mapped = np.memmap(stream.name, np.uint8, "r", shape=shape)
                self._named(stream, name)
                return mapped
        except OSError as error:
            self._say(f"the ids of {size:,} samples are held in memory: {error}")
            return np.frombuffer(derive(np.arange(size)), dtype=np.uint8).reshape(shape)

    def _mapped_ids(self, path: Path, size: int) -> NDArray[np.uint8] | None:
        try:
            if path.stat().st_size != (size + 1) * ID_BYTES:
                return None
            mapped = np.memmap(path, np.uint8, "r", shape=(size + 1, ID_BYTES))
            if _blake2b(mapped[:-1].data).digest() == mapped[-1].tobytes():
                _touch(path)
                return mapped[:-1]
            self._say(f"{path} is not what was written there, so ids are derived again")
        except OSError:  # it is made anew, and what is wrong is said then
            pass
        return None

    @contextmanager
    def _new_file(self) -> Iterator[IO[bytes]]:
        """Yield a file that is gone in the end, unless it was named."""
        stream = self._created(self.directory) if self.directory is not None else None
        stream = stream or _unfinished_in(Path(temporary_directory()))
        try:
            with stream:
                yield stream
        finally:
            Path(stream.name).unlink(missing_ok=True)

    def _created(self, directory: Path) -> IO[bytes] | None:
        try:
            directory.mkdir(exist_ok=True)
            return _unfinished_in(directory)
        except OSError as error:
            self._say(f"sources will be listed again at the next start: {error}")
            return None

    def _named(self, stream: IO[bytes], name: str) -> str:
        """Give a new file its name; return that, empty for a temporary file."""
        path = Path(stream.name)
        if self.directory is None or path.parent != self.directory:
            return ""
        stream.flush()
        path.replace(self.directory / name)
        self._trouble = ""
        return name

    def _prune(self) -> None:
        """Remove what was used least recently while there is too much, and what was left unfinished."""
        found = []
        for path in () if self.directory is None else self.directory.iterdir():
            with contextlib.suppress(OSError):  # another coordinator may remove it at the same time
                if path.suffix in {_CATALOG, _IDS, _ENTRY, _UNFINISHED}:
                    status = path.stat()
                    found.append((status.st_mtime, status.st_size, path))
        total, now_s = sum(size for _, size, _ in found), time.time()
        for used_s, size, path in sorted(found):
            unused_s = now_s - used_s
            is_old = path.suffix == _UNFINISHED or (path.suffix == _ENTRY and unused_s > _ENTRIES_S)
            if unused_s > _IN_USE_S and (is_old or total > self._max_bytes):
                path.unlink(missing_ok=True)
                total -= size

    def _say(self, trouble: str) -> None:
        """Log what does not work, once."""
        if trouble != self._trouble:
            level = logging.INFO if self._by_default else logging.WARNING
            _log.log(level, "state %s: %s", self.directory or "in temporary files", trouble)
        self._trouble = trouble


def open_state(setting: str, store: str, environment: Mapping[str, str]) -> CatalogState:
    """Return the state that a setting names: a directory, ``none``, or ``auto``: ``catalogs`` in the store.

    Where the store is no directory, it is ``catalogs`` in the user's cache directory.
    ``ConfigError`` if a directory that was named cannot be made.
    """
    if setting.lower() == "none":
        return CatalogState(None)
    if setting.lower() != "auto":
        directory = Path(setting).absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the state {directory} cannot be made: {error.strerror or error}") from error
        return CatalogState(directory)
    if store and not is_bucket(store):
        return CatalogState(Path(store) / CATALOGS, by_default=True)
    with contextlib.suppress(OSError, RuntimeError):  # read-only; no home directory
        directory = default_directory(environment).with_name(CATALOGS)
        directory.parent.mkdir(parents=True, exist_ok=True)
        return CatalogState(directory, by_default=True)
    return CatalogState(None)


def _touch(path: Path) -> None:
    """Note that a file is in use, as far as it may be written."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _unfinished_in(directory: Path) -> IO[bytes]:
    return tempfile.NamedTemporaryFile(dir=directory, prefix="super-", suffix=_UNFINISHED, delete=False)


def _digest_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, _blake2b).hexdigest()
