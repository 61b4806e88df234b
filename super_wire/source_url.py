"""URLs of sources and key lists: ``s3://bucket/key``, ``file:///path`` or a plain path, taken apart.

Other clouds' buckets are ``gs://name`` and ``az://container``.

Trainer and coordinator read them alike. Only the text is looked at: whether the place exists is for the
coordinator to say, which may run where the files are.
"""

from __future__ import annotations

import re

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import without_credentials

__all__ = ["split_url"]

_FORMS = "s3://bucket/prefix (gs://, az://), file:///directory or a plain path"
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME",
}
"""Scheme of buckets -> what the coordinator is given to read them."""

_SHOWN = 200  # characters of a URL that a message repeats
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")


def split_url(url: str, name: str) -> tuple[str, str]:
    """Bucket, as ``s3://name``, and key, which may be empty; of a file no bucket and its path, as it stands.

    ``name`` is what the user calls it: ``source``, ``key_list``.

    Raises:
        ConfigError: it is no such URL; the message names it and says how to write one.
    """
    if not url.strip() or "\0" in url:
        raise ConfigError(f"{name} is empty or holds a NUL: name {_FORMS}")
    match = _SCHEME.fullmatch(url)
    if match is None:
        return "", url
    scheme, rest, shown = match[1].lower(), match[2], without_credentials(url)[:_SHOWN]
    if scheme in _CREDENTIALS:
        bucket, _, key = rest.partition("/")
        if "@" in bucket:
            raise ConfigError(
                f"{name} {shown!r}: an {scheme}:// URL carries no credentials: give the coordinator "
                f"{_CREDENTIALS[scheme]} and so on"
            )
        if not _BUCKET.fullmatch(bucket):
            raise ConfigError(
                f"{name} {shown!r} names no bucket: write {scheme}://bucket/prefix (bucket: letters, digits, "
                "'.', '-', '_')"
            )
        return f"{scheme}://{bucket}", key
    if scheme != "file":
        raise ConfigError(f"{name} {shown!r} has the unknown scheme {scheme[:_SHOWN]}://; there are {_FORMS}")
    path = rest.removeprefix("localhost")
    if not path.startswith("/"):
        raise ConfigError(f"{name} {shown!r} is not absolute: write file:///directory, with three slashes")
    return "", path
