"""A coordinator's state: a directory of catalogs and ids that survive restarts.

Files are created atomically. Several coordinators may share a directory.

| file | content |
|---|---|
| ``DIGEST.arrow`` | a catalog (:mod:`superdl.coordinator.catalog.catalog_file`); DIGEST is its BLAKE2b-128 |
| ``CONTENT.ids`` | the ids of a dataset's samples, 16 bytes each, followed by their BLAKE2b-128 |
| ``KEY.json`` | the catalog that belongs to a listing or to a run's dataset, and the time of the listing |
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
from superdl.super_wire.run_directory import temporary_directory
from superdl.super_wire.store import default_directory, is_bucket
from superdl.super_wire.store.layout import CATALOGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.catalog import Catalog

_log = logging.getLogger(__name__)

_CATALOG, _IDS, _ENTRY, _UNFINISHED = ".arrow", ".ids", ".json", ".unfinished"
_MAX_BYTES = 2**35
# Keep a file for this long after its last use, because another coordinator may have mapped it.
_IN_USE_S = 86_400.0
_ENTRIES_S = 30 * _IN_USE_S
_AT_A_TIME = 2**16
_blake2b = partial(hashlib.blake2b, digest_size=ID_BYTES)


@dataclass(frozen=True, slots=True)
class Kept:
    """A listing's catalog file, the Unix time when it ended, and its duration in seconds."""

    file: str
    ended_s: float
    took_s: float = 0.0


class CatalogState:
    """Catalogs and ids in a directory. Methods block, and may be called from any thread.

    Args:
        directory: created when needed, but its parent must exist. ``None`` for temporary files.
        max_bytes: maximum size, above which the least recently used files are removed.
        by_default: whether the directory is the default. If so, problems with it are logged at
            level INFO.
    """

    def __init__(
        self, directory: Path | None, max_bytes: int = _MAX_BYTES, *, by_default: bool = False
    ) -> None:
        self.directory = directory
        self._max_bytes, self._by_default = max_bytes, by_default
        self._problem = ""

    def keep(self, write: Callable[[IO[bytes]], None]) -> tuple[Catalog, str]:
        """Store the catalog that ``write`` writes. Return the mapped catalog and the name of its file.

        Raises ``OSError`` if the file cannot be written.
        """
        with self._new_file() as stream:
            write(stream)
            stream.flush()
            # A mapping stays valid when the file is renamed.
            mapped = map_catalog(Path(stream.name))
            return mapped, self._named(stream, _digest_of(Path(stream.name)) + _CATALOG)

    def hold(self, catalog: Catalog) -> tuple[Catalog, str]:
        """Move a catalog to a file, like :meth:`keep`, or keep it in memory if the file cannot be written."""
        try:
            return self.keep(lambda stream: write_catalog(catalog, cast("BinaryIO", stream)))
        except OSError as error:
            self._log_problem(f"a catalog of {len(catalog):,} samples is kept in memory: {error}")
            return catalog, ""

    def load(self, kept: Kept) -> Catalog | None:
        """Return a catalog from its file, or ``None`` if the file is missing or damaged."""
        if self.directory is None:
            return None
        path = self.directory / kept.file
        try:
            # The name is the digest, which a damaged file does not match.
            if _digest_of(path) + _CATALOG == path.name:
                _touch(path)
                return map_catalog(path)
            self._log_problem(f"{path} is damaged, so the source will be listed again")
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._log_problem(f"{path} cannot be used, so the source will be listed again: {error}")
        return None

    def note(self, key: bytes, kept: Kept) -> None:
        """Record a listing's catalog under ``key``."""
        if self.directory is None or not kept.file:
            return
        try:
            with self._new_file() as stream:
                stream.write(json.dumps(asdict(kept)).encode())
                self._named(stream, key.hex() + _ENTRY)
            self._prune()
        except OSError as error:
            self._log_problem(f"a source will be listed again after a restart: {error}")

    def find(self, key: bytes) -> Kept | None:
        """Return the entry for ``key``, or ``None`` if it is missing or unreadable."""
        if self.directory is None:
            return None
        try:
            entry = Kept(**json.loads((self.directory / f"{key.hex()}{_ENTRY}").read_bytes()))
            # Others may write to the directory, so check that the name does not lead out of it.
            is_valid = Path(entry.file).name == entry.file and entry.ended_s > 0 and entry.took_s >= 0
            return entry if is_valid else None
        except (OSError, ValueError, TypeError):
            return None

    def ids(
        self, content: bytes, size: int, derive: Callable[[NDArray[np.int64]], bytes]
    ) -> NDArray[np.uint8]:
        """Return a dataset's mapped ids, of shape (size, 16). ``derive`` returns the ids at given indices."""
        name, shape = content.hex() + _IDS, (size, ID_BYTES)
        existing = self._mapped_ids(self.directory / name, size) if self.directory is not None else None
        if existing is not None:
            return existing
        chunks = (np.arange(at, min(at + _AT_A_TIME, size)) for at in range(0, size, _AT_A_TIME))
        try:
            with self._new_file() as stream:
                digest = _blake2b()
                for chunk in chunks:
                    digest.update(packed := derive(chunk))
                    stream.write(packed)
                stream.write(digest.digest())
                stream.flush()
                mapped = np.memmap(stream.name, np.uint8, "r", shape=shape)
                self._named(stream, name)
                return mapped
        except OSError as error:
            self._log_problem(f"the ids of {size:,} samples are kept in memory: {error}")
            return np.frombuffer(derive(np.arange(size)), dtype=np.uint8).reshape(shape)

    def _mapped_ids(self, path: Path, size: int) -> NDArray[np.uint8] | None:
        try:
            if path.stat().st_size != (size + 1) * ID_BYTES:
                return None
            mapped = np.memmap(path, np.uint8, "r", shape=(size + 1, ID_BYTES))
            if _blake2b(mapped[:-1].data).digest() == mapped[-1].tobytes():
                _touch(path)
                return mapped[:-1]
            self._log_problem(f"{path} is damaged, so its ids will be derived again")
        except OSError:  # writing the file again logs the error
            pass
        return None

    @contextmanager
    def _new_file(self) -> Iterator[IO[bytes]]:
        """Yield a new file that is removed on exit unless it was renamed."""
        stream = self._created(self.directory) if self.directory is not None else None
        # Without a usable directory, use temporary files, which vanish with the process.
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
            self._log_problem(f"sources will be listed again at the next start: {error}")
            return None

    def _named(self, stream: IO[bytes], name: str) -> str:
        """Rename a new file, and return its name (empty for a temporary file)."""
        path = Path(stream.name)
        if self.directory is None or path.parent != self.directory:
            return ""
        # Without fsync: a file truncated by a power failure is detected and written again.
        stream.flush()
        path.replace(self.directory / name)
        self._problem = ""
        return name

    def _prune(self) -> None:
        """Remove unfinished files and, while the state is too large, the least recently used files."""
        files = []
        for path in () if self.directory is None else self.directory.iterdir():
            with contextlib.suppress(OSError):  # another coordinator may remove it too
                if path.suffix in {_CATALOG, _IDS, _ENTRY, _UNFINISHED}:
                    status = path.stat()
                    files.append((status.st_mtime, status.st_size, path))
        total, now_s = sum(size for _, size, _ in files), time.time()
        # Loading a file updates its time.
        for used_s, size, path in sorted(files):
            unused_s = now_s - used_s
            is_old = path.suffix == _UNFINISHED or (path.suffix == _ENTRY and unused_s > _ENTRIES_S)
            if unused_s > _IN_USE_S and (is_old or total > self._max_bytes):
                path.unlink(missing_ok=True)
                total -= size

    def _log_problem(self, problem: str) -> None:
        if problem != self._problem:
            level = logging.INFO if self._by_default else logging.WARNING
            _log.log(level, "state %s: %s", self.directory or "in temporary files", problem)
        self._problem = problem


def open_state(setting: str, store: str, environment: Mapping[str, str]) -> CatalogState:
    """Open the state for a setting, which is a directory, ``none`` or ``auto``.

    ``auto`` is ``catalogs`` in the store or, if the store is not a directory, in the user's cache
    directory. Raises ``ConfigError`` if a given directory cannot be created.
    """
    if setting.lower() == "none":
        return CatalogState(None)
    if setting.lower() != "auto":
        directory = Path(setting).absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the state directory {directory} cannot be created: {error.strerror or error}"
            ) from error
        return CatalogState(directory)
    if store and not is_bucket(store):
        return CatalogState(Path(store) / CATALOGS, by_default=True)
    with contextlib.suppress(OSError, RuntimeError):  # read-only; no home directory
        directory = default_directory(environment).with_name(CATALOGS)
        directory.parent.mkdir(parents=True, exist_ok=True)
        return CatalogState(directory, by_default=True)
    return CatalogState(None)


def _touch(path: Path) -> None:
    # Touching another user's file may be refused.
    with contextlib.suppress(OSError):
        os.utime(path)


def _unfinished_in(directory: Path) -> IO[bytes]:
    return tempfile.NamedTemporaryFile(dir=directory, prefix="super-", suffix=_UNFINISHED, delete=False)


def _digest_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, _blake2b).hexdigest()
