"""A store in a directory, on a local disk or a shared filesystem. Its files may be copied."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.super_wire.errors import StoreError, StoreFormatError, StoreGoneError, StoreRefusedError
from superdl.super_wire.store.base import Listed, Store
from superdl.super_wire.store.layout import (
    CATALOGS,
    MARK,
    MAX_MARK_BYTES,
    PACKS,
    TEMPORARY,
    checked_name,
    is_name,
    new_mark,
    read_mark,
    system_failure,
)
from superdl.super_wire.store.pack import PackInProgress, new_pack_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from superdl.super_wire.store.pack import PackMeta

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO would wait for its writer
# Errors of filesystems without hard links.
_WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class DirectoryStore(Store):
    """A store in a directory. It keeps no files open and can be pickled."""

    address: str
    id: str
    read_only: bool = False

    @classmethod
    def open(cls, path: str | Path, *, create: bool, read_only: bool = False) -> DirectoryStore:
        """Open the store in a directory. With ``create``, create it with mode 0700 if necessary.

        Raises:
            StoreGoneError: the store does not exist and may not be created.
            StoreFormatError: the directory contains other files, or a store of a different version.
            StoreRefusedError: the store is private to another user, or permission is denied.
        """
        root = os.path.realpath(path)
        with _failures(root):
            if create and not read_only and not os.path.lexists(root):
                Path(root).parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    Path(root).mkdir(mode=0o700)
            _refuse_private(root)
            if not os.path.lexists(_below(root, MARK)):
                _write_mark(root, create=create and not read_only)
            store_id = read_mark(_contents(_below(root, MARK), MAX_MARK_BYTES), root)
        return cls(root, store_id, read_only)

    def open_pack(self, pack: str) -> int:
        """Open a pack for reading. The caller must close the descriptor."""
        with self._folder(PACKS, pack) as folder:
            return os.open(pack, _READ, dir_fd=folder)

    def read_many(self, pack: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read (offset, length) spans of a pack. Each result may be cut off."""
        descriptor = self.open_pack(pack)
        try:
            with _failures(_below(self.address, PACKS, pack)):
                return [_read_at(descriptor, offset, length) for offset, length in spans]
        finally:
            os.close(descriptor)

    def begin_pack(self, meta: PackMeta) -> PackInProgress:
        """Start a pack. It is invisible until it is committed."""
        name = new_pack_name(meta.collection)
        temporary = f"{name}.{secrets.token_hex(8)}"
        with self._folder(TEMPORARY, writing=True) as folder:
            file = os.fdopen(os.open(temporary, _NEW, 0o666, dir_fd=folder), "wb", buffering=65536)

        # Renaming makes only complete files visible. They are not synced to disk: a file that a power
        # failure cut off is detected as corrupt, and rebuilt.
        def publish() -> None:
            file.close()
            self._rename(temporary, PACKS, name)

        def discard() -> None:
            with contextlib.suppress(StoreError):  # a later sweep will remove it
                self._remove(TEMPORARY, temporary)

        path = _below(self.address, TEMPORARY, temporary)
        return PackInProgress(
            name, file, meta, publish=publish, discard=discard, failures=lambda: _failures(path)
        )

    @contextlib.contextmanager
    def _folder(self, folder: str, name: str | None = None, *, writing: bool = False) -> Iterator[int]:
        """Open the folder for the file ``name``. The first writer creates the folder."""
        if writing:
            self._check_writing()
        path = _below(self.address, folder)
        with _failures(path if name is None else _below(path, checked_name(folder, name))):
            if writing and not os.path.lexists(path) and self._is_store():
                with contextlib.suppress(FileExistsError):
                    Path(path).mkdir()
            # A link could lead out of the store, so _READ has O_NOFOLLOW.
            descriptor = os.open(path, _READ | os.O_DIRECTORY)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def _list(self, folder: str) -> list[Listed]:
        files: list[Listed] = []
        if not os.path.lexists(_below(self.address, folder)) and self._is_store():
            return files
        with self._folder(folder) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                if is_name(folder, entry.name):
                    with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            files.append(Listed(entry.name, status.st_size, status.st_mtime))
        return files

    def _is_store(self) -> bool:
        return os.path.lexists(_below(self.address, MARK))

    def _contents(self, folder: str, name: str, most: int) -> bytes:
        with self._folder(folder, name) as descriptor:
            return _contents(name, most, dir_fd=descriptor)

    def _put(self, folder: str, name: str, data: bytes) -> None:
        temporary = f"{checked_name(folder, name)}.{secrets.token_hex(8)}"
        with self._folder(TEMPORARY, writing=True) as descriptor:
            try:
                _write_new(temporary, data, dir_fd=descriptor)
                self._rename(temporary, folder, name)
            except (OSError, StoreError):
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=descriptor)
                raise

    def _rename(self, temporary: str, folder: str, name: str) -> None:
        with self._folder(TEMPORARY) as source, self._folder(folder, name, writing=True) as target:
            os.rename(temporary, name, src_dir_fd=source, dst_dir_fd=target)

    def _remove(self, folder: str, name: str) -> None:
        with self._folder(folder, name, writing=True) as descriptor, contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=descriptor)


def _below(root: str, *names: str) -> str:
    return os.path.join(root, *names)  # noqa: PTH118 # no Path for each of many thousand packs


def _refuse_private(root: str) -> None:
    try:
        status = os.stat(root)  # noqa: PTH116
    except FileNotFoundError as error:
        raise StoreGoneError(f"{root} does not exist: use the directory of an existing store") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreFormatError(f"{root} is not a directory: choose another path for the store")
    if status.st_uid != os.geteuid() and not status.st_mode & 0o077:
        raise StoreRefusedError(
            f"{root} is private to user id {status.st_uid}: use a store of your own, or ask its owner to "
            "share it (chmod 755 for reading, 775 for writing)"
        )


def _write_mark(root: str, *, create: bool) -> None:
    """Turn an empty directory into a store. Concurrent processes agree on a single store."""
    names = set(os.listdir(root)) - {CATALOGS}  # noqa: PTH208
    present = next((name for name in sorted(names) if not name.startswith(f".{MARK}.")), None)
    if present == MARK:  # another process was faster
        return
    if present is not None:
        raise StoreFormatError(
            f"{root} contains {present[:80]!r} but no {MARK}, so it is not a store: use an empty or "
            "new directory"
        )
    if not create:
        raise StoreGoneError(f"{root} is an empty directory: use the directory of an existing store")
    temporary, mark = _below(root, f".{MARK}.{secrets.token_hex(8)}"), _below(root, MARK)
    text = new_mark(secrets.token_hex(16))
    try:
        _write_new(temporary, text, lasting=True)
        os.link(temporary, mark)  # atomic: complete, and never replaces a file
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        with contextlib.suppress(FileExistsError):
            _write_new(mark, text, lasting=True)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _write_new(path: str, data: bytes, *, dir_fd: int | None = None, lasting: bool = False) -> None:
    with os.fdopen(os.open(path, _NEW, 0o666, dir_fd=dir_fd), "wb") as file:
        file.write(data)
        if lasting:  # otherwise a power failure could leave an empty file
            file.flush()
            os.fsync(file.fileno())


def _contents(path: str, most: int, *, dir_fd: int | None = None) -> bytes:
    descriptor = os.open(path, _READ, dir_fd=dir_fd)
    try:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise StoreFormatError(f"{path} has {size} bytes, but may have at most {most}")
        return _read_at(descriptor, 0, size)
    finally:
        os.close(descriptor)


def _read_at(descriptor: int, offset: int, length: int) -> bytes:
    """Read ``length`` bytes, or fewer if the file ends or the disk has a bad block."""
    parts, size = [], 0
    while size < length:
        try:
            data = os.pread(descriptor, length - size, offset + size)
        except OSError as error:
            # The check of the record will detect missing bytes.
            if error.errno != errno.EIO:
                raise
            break
        if not data:
            break
        parts.append(data)
        size += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@contextlib.contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise system_failure(error)(f"{path}: {error.strerror or error}") from error
