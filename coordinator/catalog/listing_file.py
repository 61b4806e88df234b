"""Lists a directory: every image below it, folder by folder, on threads.

Symbolic links are followed as far as they stay below the directory, or lead where functions may read too: see
:attr:`superdl.coordinator.catalog.source.Allowed.link_roots`. A source in which links lead elsewhere is
refused, since what ImageFolder would find is never left out in silence. What is left out or found elsewhere
is told in the listing's warnings. Which folders are classes is :mod:`superdl.coordinator.catalog.lister`'s.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from superdl.coordinator.catalog.listing import Folder, FolderBuilder, Tally, is_image, list_folders
from superdl.super_wire.errors import SourceError, SourceForbiddenError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["file_version", "list_directory", "probe_directory"]

_THREADS = 8  # they wait for the file system more than they compute
_SHOWN = 5
_MAX_LINKED_DIRECTORIES = 100_000
"""Links to links can make a few directories look like any number."""


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
        SourceForbiddenError: a directory may not be read, or a link not be followed; the message names it.
        SourceError: another failure of the file system, or a name that is not UTF-8.
        ListingCancelledError: nobody wants the listing any more.
    """
    walk = _Walk(directory, tally, images_only=images_only)
    loose = FolderBuilder("", tally)
    names = []
    for found in walk.entries(_Directory(directory, "", ()), top=True):
        if found.is_directory:
            names.append(found.key)
        else:
            walk.add(found, loose)
    folders = list_folders(walk.folder, names, tally, threads=_THREADS)
    if images_only:
        for name, folder in zip(names, folders, strict=True):
            if not len(folder.keys):
                walk.empty.add(name)
        walk.tell()
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
    """What the keys of its files begin with; empty for the source itself."""
    trail: tuple[str, ...]
    """Real paths of the directories above, as walked: to come upon one of them again is a circle."""


@dataclass(slots=True)
class _Found:
    key: str
    path: str
    """As walked; ``real`` is where a link on it leads."""
    real: str
    entry: os.DirEntry[str]
    linked: os.stat_result | None = None

    @property
    def is_directory(self) -> bool:
        if self.linked is not None:
            return stat.S_ISDIR(self.linked.st_mode)
        return self.entry.is_dir(follow_symlinks=False)


class _Noted:
    """Counts what is to be told, and keeps a few of its paths: of a million links there is one line."""

    def __init__(self) -> None:
        self.count = 0
        self._shown: set[str] = set()
        self._lock = threading.Lock()

    def add(self, path: str) -> int:
        """Note it once more; how often that makes."""
        with self._lock:
            self.count += 1
            if len(self._shown) <= _SHOWN:
                self._shown.add(path)
            return self.count

    def __str__(self) -> str:
        """The paths, for people."""
        return ", ".join(sorted(self._shown)[:_SHOWN]) + (", ..." if len(self._shown) > _SHOWN else "")


class _Walk:
    """Walks one source; folders may be walked by several threads at once."""

    def __init__(self, root: str, tally: Tally, *, images_only: bool) -> None:
        self.root = root
        self.tally = tally
        self.images_only = images_only
        self.empty = _Noted()
        self._forbidden = _Noted()
        self._leading_out = _Noted()  # by where they lead
        self._nowhere = _Noted()
        self._circles = _Noted()
        self._no_files = _Noted()
        self._linked_directories = _Noted()

    def folder(self, name: str) -> Folder:
        """All files below the first-level folder ``name``."""
        builder = FolderBuilder(name, self.tally)
        pending = [_Directory(os.path.realpath(f"{self.root}/{name}"), name, (self.root,))]
        while pending:
            here = pending.pop()
            self.tally.check()
            trail = (*here.trail, here.path)
            for found in self.entries(here):
                if found.is_directory:
                    pending.append(_Directory(found.real, found.key, trail))
                else:
                    self.add(found, builder)
        return builder.build()

    def entries(self, here: _Directory, *, top: bool = False) -> Iterator[_Found]:
        """What lies in a directory, without links that cannot be followed.

        One that vanished meanwhile is empty, unless it is the source itself.
        """
        try:
            descriptor = os.open(here.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Who swapped it for a link meanwhile gains nothing by it.
                self.tally.allowed.check_open_file(descriptor, f"what {self.root} links to")
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        found = self._found(entry, here)
                        if found is not None:
                            yield found
            finally:
                os.close(descriptor)
        except OSError as error:
            if top:
                _raise_for_source(error, here.path)
            if not isinstance(error, FileNotFoundError):
                _raise(error, here.path)

    def add(self, found: _Found, folder: FolderBuilder) -> None:
        """Add a file if it is one that counts."""
        if self.images_only and not is_image(found.key):
            return
        try:
            status = found.linked or found.entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # it vanished since the directory was read
        except OSError as error:
            _raise(error, found.path)
        if not stat.S_ISREG(status.st_mode):
            self._no_files.add(found.path)
            return
        try:
            folder.append(found.key.encode(), file_version(status))
        except UnicodeEncodeError as error:
            raise SourceError(
                f"the name of {os.fsencode(found.path)!r} is not UTF-8: rename the file"
            ) from error

    def tell(self) -> None:
        """Refuse a source with links that may not be followed, and warn of all that is not as it looks."""
        if self._forbidden.count:
            raise SourceForbiddenError(
                f"file://{self.root}: {self._forbidden.count:,} symbolic links lead out of it, to where "
                f"functions may not read: {self._forbidden}. Put the files themselves in their place, or "
                "have the operator of coordinator and functions set SUPER_FILE_ROOTS to the source and the "
                "directories that its links lead to"
            )
        for noted, what in (
            (self._leading_out, "symbolic links lead out of it and are followed, to"),
            (self._nowhere, "symbolic links lead nowhere and are left out:"),
            (self._circles, "ways lead in circles and are left out:"),
            (self._no_files, "things have an image's name, are no files and are left out:"),
            (self.empty, "folders hold no image and are no classes, for which ImageFolder fails:"),
        ):
            if noted.count:
                self.tally.warnings.append(f"file://{self.root}: {noted.count:,} {what} {noted}")

    def _found(self, entry: os.DirEntry[str], here: _Directory) -> _Found | None:
        """An entry, or ``None`` where it is left out."""
        path = f"{here.path.rstrip('/')}/{entry.name}"
        found = _Found(f"{here.key}/{entry.name}".lstrip("/"), path, path, entry)
        if entry.is_symlink() and not self._follow(found):
            return None
        if not found.is_directory:
            return found
        if found.real in (*here.trail, here.path):
            self._circles.add(path)
            return None
        if found.linked is not None and self._linked_directories.add(path) > _MAX_LINKED_DIRECTORIES:
            raise SourceError(
                f"file://{self.root}: more than {_MAX_LINKED_DIRECTORIES:,} links to directories are "
                f"met, one of them {path}: do links lead to directories with links, over and over?"
            )
        return found

    def _follow(self, found: _Found) -> bool:
        """Look where a link leads; whether there is something that may be read."""
        found.real = os.path.realpath(found.path)
        if not self.tally.allowed.may_lead(found.real, self.root):
            self._forbidden.add(found.path)
            return False
        try:
            found.linked = os.lstat(found.real)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                _raise(error, found.path)
            found.linked = None
        if found.linked is None or stat.S_ISLNK(found.linked.st_mode):  # of a circle, realpath is a link
            self._nowhere.add(found.path)
            return False
        if found.real != self.root and not found.real.startswith(f"{self.root.rstrip('/')}/"):
            self._leading_out.add(found.real if found.is_directory else found.real.rpartition("/")[0])
        return True


def _raise_for_source(error: OSError, directory: str) -> NoReturn:
    if isinstance(error, FileNotFoundError):
        raise SourceNotFoundError(
            f"the directory {directory} does not exist on the coordinator's machine "
            "(file:// paths are taken as they stand, without percent-decoding)"
        ) from error
    if isinstance(error, NotADirectoryError):
        raise SourceNotFoundError(
            f"{directory} is a file, or has one on the way to it; a source is a directory"
        ) from error
    _raise(error, directory)


def _raise(error: OSError, path: str) -> NoReturn:
    if error.errno in {errno.EACCES, errno.EPERM}:
        raise SourceForbiddenError(
            f"the coordinator (user id {os.geteuid()}) may not read {path}: grant it read and search "
            "permission there, or run it as a user who has them"
        ) from error
    raise SourceError(f"{path} cannot be listed: {error.strerror or error}") from error
