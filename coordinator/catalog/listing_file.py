"""Walk a directory and yield pages of files, like those of a bucket."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from superdl.coordinator.catalog.listing import Noted, Tally, escaped, is_image
from superdl.super_wire.errors import SourceError, SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.ids import ID_BYTES, digest_version
from superdl.super_wire.objects.base import Listed, Page
from superdl.super_wire.objects.directory import file_version
from superdl.super_wire.source_url import is_hidden

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK_BYTES = 2**20
_PAGE_FILES = 500
_THREADS = 8
# On a local disk, threads compete for the interpreter, and a single thread takes half the time. All threads
# run once _SOME entries take longer than _WORTH_THREADS_S each, as on a network filesystem.
_WORTH_THREADS_S, _SOME = 50e-6, 64
_MAX_LINKED_DIRECTORIES = 100_000  # nested links can multiply a few directories without limit
_SURROGATE = re.compile("[\udc80-\udcff]")  # a byte of a name that is not UTF-8
_VERSION = re.compile(rb"([0-9]{1,18})-([0-9]+|b2:[0-9a-f]+)")
# Without O_NONBLOCK, opening a FIFO in the source would wait for its writer.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def size_in_version(version: bytes) -> int:
    """Return the size recorded in a file's version, or 2**63 - 1 (more than any file) if there is none."""
    match = _VERSION.fullmatch(version)
    return int(match[1]) if match else 2**63 - 1


def check_directory(directory: str) -> None:
    """Check that a directory exists and may be read. Raises the same errors as :meth:`Tree.pages`."""
    try:
        os.scandir(directory).close()
    except OSError as error:
        _raise_for_source(error, directory)


class _Directory(NamedTuple):
    """A directory: its real path, its files' key prefix, and the real paths of its parents in the walk."""

    path: str
    key: str
    # A directory that contains one of these paths again closes a loop of links.
    trail: tuple[str, ...]


class _Entry(NamedTuple):
    """A directory entry. For a link, ``real`` is the target's path and ``linked`` is its status."""

    key: str
    path: str
    real: str
    entry: os.DirEntry[str]
    linked: os.stat_result | None

    @property
    def is_directory(self) -> bool:
        if self.linked is not None:
            return stat.S_ISDIR(self.linked.st_mode)
        return self.entry.is_dir(follow_symlinks=False)


class Tree:
    """A directory whose links are followed. Several threads may walk folders concurrently.

    Args:
        root: an absolute real path.
        tally: counts what is skipped, and limits where links may lead.
        images_only: skip files without an image extension.
        digests: read every file to derive its version from its contents.
    """

    lists_folders = True
    page_lock = nullcontext()

    def __init__(self, root: str, tally: Tally, *, images_only: bool, digests: bool) -> None:
        self._root = root
        self._digests = digests
        self._below = f"{root.rstrip('/')}/"
        self._tally = tally
        self._images_only = images_only
        self._linked = 0
        self._alone = not digests  # reading files is always worth threads
        # Hold this while walking a folder: the other threads wait as long as a single one is faster.
        self.turns = threading.Semaphore(1 if self._alone else _THREADS)
        self._seen, self._since_s = 0, time.monotonic()

    def pages(self, prefix: str, *, folders: bool = False) -> Iterator[Page]:
        """Yield the files below a folder or, with ``folders``, the files and folders in the root.

        Raises:
            SourceError: the root does not exist (``SourceNotFoundError``), or a directory
                may not be read (``SourceForbiddenError``). The message contains the path.
        """
        # Each file that is read counts as progress.
        page_files, name = 1 if self._digests else _PAGE_FILES, prefix[:-1]
        trail = () if folders else (self._root,)
        pending = [_Directory(os.path.realpath(f"{self._root}/{name}"), name, trail)]
        files, names = list[Listed](), list[str]()
        while pending:
            here = pending.pop()
            self._tally.check()
            for entry in self._entries(here, top=folders):
                if not entry.is_directory:
                    files += self._listed(entry)
                elif folders:
                    names.append(f"{entry.key}/")
                else:
                    pending.append(_Directory(entry.real, entry.key, (*here.trail, here.path)))
                if len(files) == page_files:
                    yield Page(files)
                    files = []
        yield Page(files, names)

    def _pace(self) -> None:
        """Start the other threads if this one is waiting for a slow filesystem."""
        if not self._alone:
            return
        self._seen += 1
        if self._seen == _SOME:
            now_s = time.monotonic()
            if now_s - self._since_s > _SOME * _WORTH_THREADS_S:
                self._alone = False
                self.turns.release(_THREADS - 1)
            self._seen, self._since_s = 0, now_s

    def _entries(self, here: _Directory, *, top: bool) -> Iterator[_Entry]:
        """Yield a directory's entries, except links that cannot be followed."""
        try:
            descriptor = os.open(here.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Check the opened directory: a link may have replaced it.
                self._tally.allowed.check_open_file(descriptor, f"the target of a link in {self._root}")
                path, key = f"{here.path.rstrip('/')}/", f"{here.key}/".lstrip("/")
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        if resolved := self._resolve(entry, here, path + entry.name, key + entry.name):
                            yield resolved
                        self._pace()
            finally:
                os.close(descriptor)
        except OSError as error:
            # A directory that has disappeared counts as empty, unless it is the source itself.
            if top:
                _raise_for_source(error, here.path)
            if not isinstance(error, FileNotFoundError):
                _raise(error, here.path)

    def _listed(self, item: _Entry) -> list[Listed]:
        """Return a file with its version, or nothing if it is not a sample or has disappeared."""
        if self._images_only and not is_image(item.key):
            return []
        try:
            status = item.linked or item.entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                self._note(Noted.NO_FILES, item.path)
                return []
            version = self._digest(item) if self._digests else file_version(status)
        except FileNotFoundError:
            return []
        except OSError as error:
            _raise(error, item.path)
        return [Listed(item.key, version, status.st_size)]

    def _digest(self, item: _Entry) -> str:
        with open(os.open(item.real, _FILE_FLAGS), "rb") as file:  # noqa: PTH123  # a descriptor
            self._tally.allowed.check_open_file(file.fileno(), f"the target of a link in {self._root}")
            digest = hashlib.blake2b(digest_size=ID_BYTES)
            while block := file.read(_BLOCK_BYTES):
                self._tally.check()  # stop a cancelled listing within a file
                digest.update(block)
            return digest_version(file.tell(), digest.digest())

    def _note(self, what: Noted, path: str) -> None:
        # With a key list, skipped files are not samples anyway.
        if self._images_only or what is Noted.NOT_UTF8:
            self._tally.note(what, path)

    def _is_skipped(self, entry: os.DirEntry[str], path: str) -> bool:
        """Return whether to skip an entry because its name is hidden or not UTF-8."""
        is_utf8 = entry.name.isascii() or not _SURROGATE.search(entry.name)
        if is_utf8 and not (self._images_only and is_hidden(entry.name)):
            return False
        # Report only images, and folders that may contain images.
        if is_image(entry.name) or not entry.is_file(follow_symlinks=False):
            self._note(Noted.HIDDEN if is_utf8 else Noted.NOT_UTF8, path)
        return True

    def _resolve(self, entry: os.DirEntry[str], here: _Directory, path: str, key: str) -> _Entry | None:
        if self._is_skipped(entry, path):
            return None
        resolved: _Entry | None = _Entry(key, path, path, entry, None)
        if entry.is_symlink():
            resolved = self._followed(entry, path, key)
        if resolved is None or not resolved.is_directory:
            return resolved
        if resolved.real in (*here.trail, here.path):
            self._note(Noted.CIRCLES, path)
            return None
        self._linked += resolved.linked is not None  # approximate, because several threads count
        if self._linked > _MAX_LINKED_DIRECTORIES:
            raise SourceError(
                f"file://{self._root} has more than {_MAX_LINKED_DIRECTORIES:,} links to directories, for "
                f"example {escaped(path)}: check whether linked directories link to each other"
            )
        return resolved

    def _followed(self, entry: os.DirEntry[str], path: str, key: str) -> _Entry | None:
        """Return a link's target, or ``None`` if it is missing or may not be read."""
        real = os.path.realpath(path)
        if not self._tally.allowed.may_lead(real, self._root):
            self._note(Noted.FORBIDDEN, path)
            return None
        linked = None
        try:
            linked = os.lstat(real)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                _raise(error, path)
        if linked is None or stat.S_ISLNK(linked.st_mode):  # realpath does not resolve a loop of links
            self._note(Noted.NOWHERE, path)
            return None
        target = _Entry(key, path, real, entry, linked)
        if real != self._root and not real.startswith(self._below):
            # Report directories, not each file in them.
            self._note(Noted.LEADING_OUT, real if target.is_directory else real.rpartition("/")[0])
        return target


def _raise_for_source(error: OSError, directory: str) -> NoReturn:
    if isinstance(error, FileNotFoundError):
        raise SourceNotFoundError(
            f"the directory {directory} does not exist on the coordinator's machine "
            "(file:// paths are not percent-decoded)"
        ) from error
    if isinstance(error, NotADirectoryError):
        raise SourceNotFoundError(
            f"{directory}, or one of its parents, is a file, but a source must be a directory"
        ) from error
    _raise(error, directory)


def _raise(error: OSError, path: str) -> NoReturn:
    path = escaped(path)
    if error.errno in {errno.EACCES, errno.EPERM}:
        raise SourceForbiddenError(
            f"the coordinator (user id {os.geteuid()}) may not read {path}: grant it read and search "
            "permission"
        ) from error
    raise SourceError(f"{path} cannot be listed: {error.strerror or error}") from error
