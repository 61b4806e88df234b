"""Lists a directory: every image below it, folder by folder, on threads.

Symbolic links are followed as far as they stay below the directory; what leads out of it, or nowhere, is
passed over and counted in a warning. Which folders are classes is :mod:`coordinator.catalog.lister`'s.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from coordinator.catalog.listing import Folder, FolderBuilder, Tally, is_image, list_folders
from super_wire.errors import SourceError, SourceForbiddenError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["file_version", "list_directory", "probe_directory"]

_log = logging.getLogger(__name__)

_THREADS = 8  # they wait for the file system more than they compute


def file_version(status: os.stat_result) -> bytes:
    """The version of a file: ``size-mtime_ns``, so that a rewritten file is another sample."""
    return b"%d-%d" % (status.st_size, status.st_mtime_ns)


def list_directory(directory: str, tally: Tally, *, images_only: bool) -> list[Folder]:
    """Everything below a directory, as one :class:`Folder` for each first-level folder that holds files.

    Args:
        directory: the source's directory, an absolute real path.
        tally: counts what is found.
        images_only: pass over files without an image's extension.

    Raises:
        SourceNotFoundError: there is no such directory.
        SourceForbiddenError: a directory may not be read; the message names it.
        SourceError: another failure of the file system, or a name that is not UTF-8.
        ListingCancelledError: nobody wants the listing any more.
    """
    walk = _Walk(directory, tally, images_only=images_only)
    loose = FolderBuilder("", tally)
    names = []
    for entry in walk.entries(directory, top=True):
        place = walk.place(entry, directory)
        if place is None:
            continue
        if place == directory:
            walk.passed_over.append(entry.path)
        elif walk.is_directory(entry):
            names.append(entry.name)
        else:
            walk.add(entry, entry.name, loose)
    folders = list_folders(walk.folder, names, tally, threads=_THREADS)
    if walk.passed_over:
        _log.warning(
            "file://%s: %d symbolic links lead out of the directory, nowhere or in circles, and were not "
            "followed (one is %s): put what they point to below it, or name a directory above both",
            directory,
            len(walk.passed_over),
            walk.passed_over[0],
        )
    return [folder for folder in (loose.build(), *folders) if len(folder.keys)]


def probe_directory(directory: str) -> None:
    """See that a directory exists and may be read; errors as :func:`list_directory`."""
    try:
        os.scandir(directory).close()
    except OSError as error:
        _raise_for_source(error, directory)


@dataclass(frozen=True, slots=True)
class _Directory:
    path: str
    """Absolute and real: no link on the way."""
    key: str
    """What the keys of its files begin with."""
    trail: tuple[str, ...]
    """Real paths of the directories above, as walked: to come upon one of them again is a circle."""


class _Walk:
    """Walks one source; folders may be walked by several threads at once."""

    def __init__(self, root: str, tally: Tally, *, images_only: bool) -> None:
        self.root = root
        self.tally = tally
        self.images_only = images_only
        self.passed_over: list[str] = []  # append is atomic

    def folder(self, name: str) -> Folder:
        """All files below the first-level folder ``name``."""
        found = FolderBuilder(name, self.tally)
        top = os.path.realpath(f"{self.root}/{name}")
        pending = [_Directory(top, name, (self.root,))]
        while pending:
            here = pending.pop()
            self.tally.check()
            trail = (*here.trail, here.path)
            for entry in self.entries(here.path):
                key = f"{here.key}/{entry.name}"
                place = self.place(entry, here.path)
                if place is None:
                    continue
                if not self.is_directory(entry):
                    self.add(entry, key, found)
                elif place in trail:
                    self.passed_over.append(entry.path)
                else:
                    pending.append(_Directory(place, key, trail))
        return found.build()

    def entries(self, path: str, *, top: bool = False) -> Iterator[os.DirEntry[str]]:
        """What lies in a directory; one that vanished meanwhile is empty, unless it is the source itself."""
        try:
            with os.scandir(path) as found:
                yield from found
        except OSError as error:
            if top:
                _raise_for_source(error, path)
            if not isinstance(error, FileNotFoundError):
                _raise(error, path)

    def place(self, entry: os.DirEntry[str], parent: str) -> str | None:
        """The real path of an entry, ``None`` where it leads out of the source or nowhere."""
        if not entry.is_symlink():
            return f"{parent.rstrip('/')}/{entry.name}"
        real = os.path.realpath(entry.path)
        if real == self.root or real.startswith(f"{self.root.rstrip('/')}/"):
            try:
                os.stat(real)  # noqa: PTH116  # a Path for each of a million links costs more than the call
            except OSError as error:
                if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                    _raise(error, entry.path)
            else:
                return real
        self.passed_over.append(entry.path)
        return None

    def is_directory(self, entry: os.DirEntry[str]) -> bool:
        """Whether an entry, or what it links to, is a directory."""
        try:
            return entry.is_dir()
        except OSError as error:
            _raise(error, entry.path)

    def add(self, entry: os.DirEntry[str], key: str, found: FolderBuilder) -> None:
        """Add a file if it is one that counts."""
        if self.images_only and not is_image(key):
            return
        try:
            if not entry.is_file():
                return
            version = file_version(entry.stat())
        except FileNotFoundError:
            return  # it vanished since the directory was read
        except OSError as error:
            _raise(error, entry.path)
        try:
            found.append(key.encode(), version)
        except UnicodeEncodeError as error:
            msg = f"the name of {os.fsencode(entry.path)!r} is not UTF-8: rename the file"
            raise SourceError(msg) from error


def _raise_for_source(error: OSError, directory: str) -> NoReturn:
    if isinstance(error, FileNotFoundError):
        msg = (
            f"the directory {directory} does not exist on the coordinator's machine "
            "(file:// paths are taken as they stand, without percent-decoding)"
        )
        raise SourceNotFoundError(msg) from error
    if isinstance(error, NotADirectoryError):
        msg = f"{directory} is a file, or has one on the way to it; a source is a directory"
        raise SourceNotFoundError(msg) from error
    _raise(error, directory)


def _raise(error: OSError, path: str) -> NoReturn:
    if error.errno in {errno.EACCES, errno.EPERM}:
        msg = (
            f"the coordinator (user id {os.geteuid()}) may not read {path}: grant it read and search "
            "permission there, or run it as a user who has them"
        )
        raise SourceForbiddenError(msg) from error
    msg = f"{path} cannot be listed: {error.strerror or error}"
    raise SourceError(msg) from error
