"""Sources: where samples live, read from a URL and put into one form; and what of them may be listed.

Only the text is looked at here (and, for directories, symbolic links on the way to them); whether the place
exists is seen when it is listed. What functions may read is :mod:`superdl.lambda_prefetch.settings`'s.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from superdl.super_wire.errors import ConfigError, SourceError, SourceForbiddenError
from superdl.super_wire.source_url import WEB_BUCKET, file_url, join_url, split_url

__all__ = ["Allowed", "LongListingError", "Source", "parse_roots", "parse_source"]

_DESCRIPTORS = Path("/proc/self/fd")


class LongListingError(Exception):
    """A listing has found more than it may in this process. It never leaves the coordinator."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source in its one form.

    ``bucket`` is ``s3://name``, another cloud's, or ``file://`` and the directory's absolute real path.
    ``prefix`` begins every object key: empty, or text that ends with ``/``; always empty for directories,
    where keys are paths below the directory.
    """

    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """The URL that parses to this source."""
        return join_url(self.bucket, self.prefix) if self.prefix else self.bucket

    @property
    def is_file(self) -> bool:
        """Whether it is a directory."""
        return self.bucket.startswith("file://")

    @property
    def is_web(self) -> bool:
        """Whether it is a web server, which lists nothing."""
        return WEB_BUCKET.fullmatch(self.bucket) is not None

    @property
    def directory(self) -> str:
        """The absolute real path of a ``file://`` source."""
        return self.bucket.removeprefix("file://")


def parse_source(url: str) -> Source:
    """Read a source's URL; ``ConfigError`` says what is wrong with it.

    Paths are taken as they stand, but those of web servers are percent-decoded. A plain relative path is one
    below the coordinator's working directory. A prefix names a folder: ``s3://bucket/train`` is read as
    ``s3://bucket/train/``, and includes neither ``s3://bucket/training/...`` nor what is read as
    ``s3://bucket/train//``.
    """
    bucket, path = split_url(url, "source")
    if bucket:
        return Source(bucket, path if path.endswith("/") or not path else f"{path}/")
    return Source(file_url(path, "source"), "")


@dataclass(frozen=True, slots=True)
class Allowed:
    """What listings may take.

    ``roots`` are the absolute real paths of the directories that ``file://`` sources and key lists must lie
    in; ``None``: they may lie anywhere. ``samples`` is the most that one source may have, ``here`` the most
    that are listed in this process. ``own_functions`` says that functions run here, as this coordinator's
    user. ``http_hosts`` are the web servers that may be read, each as ``https://host``; ``None``: see
    :func:`superdl.super_wire.objects.open_bucket`.
    """

    roots: tuple[str, ...] | None = None
    samples: int = 2**40
    own_functions: bool = True
    http_hosts: tuple[str, ...] | None = None
    here: int = 2**40

    @property
    def link_roots(self) -> tuple[str, ...]:
        """Where links may lead that leave their source: to the roots, and anywhere where all is this user's
        own: the sources, which nobody else names, and the functions, which may read no more than he.
        """
        if self.roots is not None:
            return self.roots
        return ("/",) if self.own_functions else ()

    def may_lead(self, real: str, source: str) -> bool:
        """Whether a link in a source's directory may lead to a path; both are real paths."""
        return any(_is_within(real, root) for root in (source, *self.link_roots))

    def check_path(self, real: str, what: str) -> None:
        """See that a path may be read, absolute and with all links resolved; ``what`` the client called it.

        ``SourceForbiddenError`` if not; neither whether it exists is told, nor what may be read.
        """
        if self.roots is None or any(_is_within(real, root) for root in self.roots):
            return
        why = (
            "it lies in none of the directories of its operator's file_roots (SUPER_FILE_ROOTS)"
            if self.roots
            else "others can reach it, so its operator must name directories by file_roots (SUPER_FILE_ROOTS)"
        )
        raise SourceForbiddenError(f"this coordinator may not read {what}: {why}")

    def check_open_file(self, descriptor: int, what: str) -> None:
        """The same for a file that is open: whoever moves things about meanwhile gains nothing by it."""
        if self.roots is not None and _DESCRIPTORS.exists():  # Linux alone can tell
            self.check_path(str((_DESCRIPTORS / str(descriptor)).readlink()), what)

    def check_count(self, samples: int) -> None:
        """Raise ``SourceError`` if there are more samples than a source may have; ``LongListingError`` if
        there are too many for this process.
        """
        if samples > self.here:
            raise LongListingError
        if samples > self.samples:
            raise SourceError(
                f"it has more than {self.samples:,} samples, which is all that this coordinator's "
                "catalog_max_samples allows: raise it if there is memory for that (some 25 bytes a sample)"
            )


def _is_within(real: str, root: str) -> bool:
    return real == root or real.startswith(f"{root.rstrip('/')}/")


def parse_roots(text: str) -> tuple[str, ...]:
    """The directories in a text that separates them as PATH does, as real paths; none may be relative."""
    roots = [root for root in text.split(os.pathsep) if root]
    for root in roots:
        if not root.startswith("/"):
            raise ConfigError(
                f"file_roots are absolute directories, separated by {os.pathsep!r}; not {root!r}"
            )
    return tuple(map(os.path.realpath, roots))
