"""Source URLs in normal form, and limits on listings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from superdl.super_wire.errors import ConfigError, SourceError, SourceForbiddenError
from superdl.super_wire.source_url import WEB_BUCKET, file_url, join_url, split_url

_DESCRIPTORS = Path("/proc/self/fd")


class LongListingError(Exception):
    """The source has more samples than this process may list. This error never leaves the coordinator."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source in normal form."""

    # s3://name, another cloud's bucket, or file:// plus the directory's absolute real path.
    bucket: str
    # Prefix of every object key. Empty or ends with a slash. Always empty for directories.
    prefix: str

    @property
    def url(self) -> str:
        """Return a URL that parses to this source."""
        return join_url(self.bucket, self.prefix) if self.prefix else self.bucket

    @property
    def is_file(self) -> bool:
        """Return whether the source is a local directory (``file://``)."""
        return self.bucket.startswith("file://")

    @property
    def is_web(self) -> bool:
        """Return whether the source is a web server, which cannot be listed."""
        return WEB_BUCKET.fullmatch(self.bucket) is not None

    @property
    def directory(self) -> str:
        """Return the absolute real path of a ``file://`` source."""
        return self.bucket.removeprefix("file://")


def parse_source(url: str) -> Source:
    """Parse a source's URL. Raises ``ConfigError`` if it is malformed.

    Only paths on web servers are percent-decoded. A plain relative path is relative to the
    coordinator's working directory.
    """
    bucket, path = split_url(url, "source")
    if bucket:
        # A prefix is a folder: s3://bucket/train becomes s3://bucket/train/, which
        # includes neither s3://bucket/training/... nor s3://bucket/train//.
        return Source(bucket, path if path.endswith("/") or not path else f"{path}/")
    return Source(file_url(path, "source"), "")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Limits on listings."""

    # Absolute real paths of the directories that may contain file:// sources and key lists. None allows all.
    roots: tuple[str, ...] | None = None
    # Maximum number of samples in a source.
    samples: int = 2**40
    # Whether functions run on this machine, as this coordinator's user.
    own_functions: bool = True
    # Web servers that may be read, as https://host. For None, see open_bucket().
    http_hosts: tuple[str, ...] | None = None
    # Maximum number of samples that this process may list.
    here: int = 2**40

    @property
    def link_roots(self) -> tuple[str, ...]:
        """Return the directories outside a source to which its links may lead."""
        if self.roots is not None:
            return self.roots
        # If only this user names sources and runs functions, functions have the user's permissions anyway.
        return ("/",) if self.own_functions else ()

    def may_lead(self, real: str, source: str) -> bool:
        """Return whether a link in ``source`` may lead to ``real``. Both paths must already be resolved."""
        return any(_is_within(real, root) for root in (source, *self.link_roots))

    def check_path(self, real: str, what: str) -> None:
        """Raise ``SourceForbiddenError`` unless ``real`` may be read. ``what`` names it in the message."""
        if self.roots is None or any(_is_within(real, root) for root in self.roots):
            return
        # Do not reveal whether the path exists, or what may be read.
        why = (
            "it is outside the directories in the coordinator's file_roots (SUPER_FILE_ROOTS)"
            if self.roots
            else "other machines can reach it, so its operator must set file_roots (SUPER_FILE_ROOTS)"
        )
        raise SourceForbiddenError(f"this coordinator is not allowed to read {what}: {why}")

    def check_open_file(self, descriptor: int, what: str) -> None:
        """Check an open file like :meth:`check_path`. Moving the file does not defeat this check."""
        if self.roots is not None:
            self.check_path(str((_DESCRIPTORS / str(descriptor)).readlink()), what)

    def check_count(self, samples: int) -> None:
        """Raise ``SourceError`` above a source's limit, ``LongListingError`` above this process's limit."""
        # Check this limit first: the listing starts over in another process, which checks the other one.
        if samples > self.here:
            raise LongListingError
        if samples > self.samples:
            raise SourceError(
                f"it has more than {self.samples:,} samples, which is this coordinator's "
                "catalog_max_samples: raise it if there is enough memory (about 25 bytes per sample)"
            )


def _is_within(real: str, root: str) -> bool:
    return real == root or real.startswith(f"{root.rstrip('/')}/")


def parse_roots(text: str) -> tuple[str, ...]:
    """Split a list of absolute directories in the format of ``PATH``, and return their real paths."""
    roots = [root for root in text.split(os.pathsep) if root]
    for root in roots:
        if not root.startswith("/"):
            raise ConfigError(
                f"file_roots must be absolute directories, separated by {os.pathsep!r}; got {root!r}"
            )
    return tuple(map(os.path.realpath, roots))
