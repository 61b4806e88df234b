"""Sources: where samples live, read from a URL and put into one form; and what of them may be listed.

Only the text is looked at here (and, for directories, symbolic links on the way to them); whether the place
exists is seen when it is listed. What functions may read is :mod:`superdl.lambda_prefetch.settings`'s.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from superdl.super_wire.errors import ConfigError, SourceError, SourceForbiddenError
from superdl.super_wire.redaction import without_credentials

__all__ = ["Allowed", "Source", "local_path", "parse_roots", "parse_source", "scheme_of", "split_s3_url"]

_DESCRIPTORS = Path("/proc/self/fd")
_FORMS = "s3://bucket/prefix, file:///directory or a plain path"
_SHOWN = 200  # characters of a URL that a message repeats
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")


@dataclass(frozen=True, slots=True)
class Source:
    """A source in its one form.

    ``bucket`` is ``s3://name`` or ``file://`` and the directory's absolute real path. ``prefix`` begins
    every object key: empty, or text that ends with ``/``; always empty for directories, where keys are
    paths below the directory.
    """

    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """The URL that parses to this source."""
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket

    @property
    def is_file(self) -> bool:
        """Whether it is a directory."""
        return self.bucket.startswith("file://")

    @property
    def directory(self) -> str:
        """The absolute real path of a ``file://`` source."""
        return self.bucket.removeprefix("file://")

    @property
    def bucket_name(self) -> str:
        """The name of an ``s3://`` source's bucket."""
        return self.bucket.removeprefix("s3://")


def parse_source(url: str) -> Source:
    """Read a source's URL; ``SourceError`` says what is wrong with one that is none.

    Paths are taken as they stand, without percent-decoding. A plain relative path is one below the
    coordinator's working directory. An S3 prefix names a folder: ``s3://bucket/train`` does not include
    ``s3://bucket/training/...``.
    """
    scheme = scheme_of(url)
    if scheme == "s3":
        name, path = split_s3_url(url)
        prefix = path.rstrip("/")
        return Source(f"s3://{name}", f"{prefix}/" if prefix else "")
    directory = os.path.realpath(local_path(url))
    try:
        directory.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"the path of a source is UTF-8; {os.fsencode(directory)!r} is not: rename the directory"
        ) from error
    return Source(f"file://{directory}", "")


def scheme_of(url: str, what: str = "source") -> str:
    """``s3`` or ``file`` (also for plain paths); for others a ``SourceError`` that says ``what`` it was."""
    if not url or "\0" in url:
        raise SourceError(f"a {what} is {_FORMS}; not {url!r}")
    match = _SCHEME.match(url)
    scheme = match.group(1).lower() if match else "file"
    if scheme not in {"s3", "file"}:
        shown = without_credentials(url)[:_SHOWN]
        raise SourceError(f"{what} {shown!r} has the unknown scheme {scheme[:_SHOWN]}://; there are {_FORMS}")
    return scheme


def split_s3_url(url: str) -> tuple[str, str]:
    """Bucket name and key of ``s3://bucket/key``; the key may be empty."""
    name, _, key = url[len("s3://") :].partition("/")
    if "@" in name:
        raise SourceError(
            "an s3:// URL carries no credentials: give the coordinator AWS_ACCESS_KEY_ID and so on"
        )
    if not _BUCKET_NAME.fullmatch(name):
        raise SourceError(
            f"{url!r} names no bucket: write s3://bucket/prefix (bucket: letters, digits, '.', '-', '_')"
        )
    return name, key


def local_path(url: str) -> str:
    """The path of ``file:///path`` or of a plain path."""
    if not _SCHEME.match(url):
        return url
    path = url[len("file://") :].removeprefix("localhost")
    if not path.startswith("/"):
        raise SourceError(f"{url!r} is not absolute: write file:///directory, with three slashes")
    return path


@dataclass(frozen=True, slots=True)
class Allowed:
    """What listings may take.

    ``roots`` are the absolute real paths of the directories that ``file://`` sources and key lists must lie
    in; ``None``: they may lie anywhere. ``samples`` is the most that one source may have. ``own_functions``
    says that functions run here, as this coordinator's user.
    """

    roots: tuple[str, ...] | None = None
    samples: int = 2**40
    own_functions: bool = True

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
        """Raise ``SourceError`` if there are more samples than a source may have."""
        if samples > self.samples:
            raise SourceError(
                f"it has more than {self.samples:,} samples, which is all that this coordinator's "
                "catalog_max_samples allows: raise it if there is memory for that (some 50 bytes a sample)"
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
