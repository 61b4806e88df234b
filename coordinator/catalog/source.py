"""Sources: where samples live, read from a URL and put into one form.

Only the text is looked at here (and, for directories, symbolic links on the way to them); whether the place
exists is seen when it is listed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from superdl.super_wire.errors import SourceError
from superdl.super_wire.redaction import without_credentials

__all__ = ["Source", "local_path", "parse_source", "scheme_of", "split_s3_url"]

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
    """Read a source's URL.

    Paths are taken as they stand, without percent-decoding. A plain relative path is one below the
    coordinator's working directory. An S3 prefix names a folder: ``s3://bucket/train`` does not include
    ``s3://bucket/training/...``.

    Raises:
        SourceError: another scheme, no bucket, a relative ``file://`` path or credentials in the URL.
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
            "an s3:// URL carries no credentials (a name and '@'): give them to the coordinator by "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
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
