"""Sources and key lists as users write them, brought to the one form that ids are made of.

A plain path becomes ``file://`` and the absolute real path. Whether the source exists is for the coordinator
to say: it may run where the files are, and the trainer elsewhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from superdl.super_wire.discretion import without_credentials
from superdl.super_wire.errors import ConfigError

__all__ = ["normalise_url"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


def normalise_url(value: str | os.PathLike[str], *, name: str) -> str:
    """``s3://bucket/prefix`` or ``file:///real/path`` of what a user gave as ``name``.

    Raises:
        ConfigError: not text or a path, empty, or of a scheme that SUPER does not read.
    """
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str):
        msg = f"{name} is a URL or a path; not {value!r}"
        raise ConfigError(msg)
    if not text.strip() or "\0" in text:
        msg = f"{name} is empty or holds a NUL: name s3://bucket/prefix, file:///directory or a path"
        raise ConfigError(msg)
    match = _SCHEME.fullmatch(text)
    if match is None:
        return _file_url(text)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "s3":
        return _s3_url(rest, text, name)
    if scheme == "file":
        if not rest.startswith("/"):
            msg = f"{name} {text!r} names no absolute path: write file:///directory (three slashes)"
            raise ConfigError(msg)
        return _file_url(rest)
    msg = f"{name} {without_credentials(text)!r}: SUPER reads s3:// and file://, not {scheme}://"
    raise ConfigError(msg)


def _file_url(path: str) -> str:
    # expanduser raises RuntimeError only where there is no home directory to expand to
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        msg = f"{path!r} begins with a home directory that is not known: {error}"
        raise ConfigError(msg) from error
    return f"file://{os.path.realpath(expanded)}"


def _s3_url(rest: str, text: str, name: str) -> str:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        msg = f"{name} {without_credentials(text)!r} names no bucket: write s3://bucket/prefix"
        raise ConfigError(msg)
    prefix = prefix.rstrip("/")
    return f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
