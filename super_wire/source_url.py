"""Parse URLs of sources and key lists, such as ``s3://bucket/key``, ``https://host/path`` or a plain path."""

from __future__ import annotations

import os
import re
from urllib.parse import quote, unquote

from superdl.super_wire.display import without_credentials
from superdl.super_wire.errors import ConfigError

# Do not check that paths exist: they may exist only on the coordinator's machine.
_FORMS = "s3://bucket/prefix (gs://, az://, hf://datasets/, https://), file:///directory or a plain path"
# The variable that gives the coordinator access, by scheme.
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME",
}

_SHOWN = 200  # characters of a URL in a message
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB = re.compile(
    rf"(datasets/{_NAME}/{_NAME})(?:@(refs/(?:convert|pr)/{_NAME}|[A-Za-z0-9._%-]{{1,200}}))?(?:/(.*))?",
    re.DOTALL,
)
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"([a-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
# A dataset on the Hugging Face Hub, with its percent-encoded revision.
HUB_BUCKET = re.compile(rf"hf://(datasets/{_NAME}/{_NAME})(?:@([A-Za-z0-9._%-]{{1,300}}))?")
# A web server: scheme, host and port.
WEB_BUCKET = re.compile(rf"(https?)://{_HOST.pattern}")


def split_url(url: str, name: str) -> tuple[str, str]:
    """Split a URL into its bucket, such as ``s3://name``, and its key, which may be empty.

    For a file, the bucket is empty and the key is the path. A web server's key is percent-decoded. Raises
    ``ConfigError``, which refers to the URL as ``name``.
    """
    if not url.strip() or "\0" in url:
        raise ConfigError(f"{name} is empty or contains a NUL: use {_FORMS}")
    match = _SCHEME.fullmatch(url)
    if match is None:
        return "", url
    scheme, rest = match[1].lower(), match[2]
    shown = f"{name} {without_credentials(url)[:_SHOWN]!r}"
    if scheme in _CREDENTIALS:
        bucket, _, key = rest.partition("/")
        if "@" in bucket:
            raise ConfigError(
                f"{shown}: {scheme}:// URLs must not contain credentials. Set {_CREDENTIALS[scheme]} and "
                "related variables for the coordinator"
            )
        if not _BUCKET.fullmatch(bucket):
            raise ConfigError(
                f"{shown} has no valid bucket: use {scheme}://bucket/prefix (a bucket's name consists of "
                "letters, digits, '.', '-' and '_')"
            )
        return f"{scheme}://{bucket}", key
    if scheme == "hf":
        return _of_hub(rest, shown)
    if scheme in _PORTS:
        return _of_web(scheme, rest, shown)
    if scheme != "file":
        raise ConfigError(f"{shown}: unknown scheme {scheme[:_SHOWN]}://; use {_FORMS}")
    path = rest.removeprefix("localhost")
    if not path.startswith("/"):
        raise ConfigError(f"{shown} is not absolute: use file:///directory, with three slashes")
    return "", path


def join_url(bucket: str, key: str) -> str:
    """Return the URL that :func:`split_url` splits into this bucket and key."""
    return f"{bucket}/{quote(key)}" if WEB_BUCKET.fullmatch(bucket) else f"{bucket}/{key}"


def file_url(path: str, name: str) -> str:
    """Return the real path as a ``file://`` URL. Raises ``ConfigError`` about ``name`` if it is not UTF-8."""
    real = os.path.realpath(path)
    try:
        real.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} {os.fsencode(real)!r} is not UTF-8: rename it") from error
    return f"file://{real}"


def parse_http_hosts(text: str, name: str) -> tuple[str, ...]:
    """Parse a comma-separated list of web servers, and return each as ``https://host``."""
    servers = []
    for host in filter(None, map(str.strip, text.split(","))):
        server, path = split_url(host if "://" in host else f"https://{host}", name)
        if path or not WEB_BUCKET.fullmatch(server):
            raise ConfigError(
                f"{name} must list hosts such as images.example.org or http://10.0.0.7:8080, not {host!r}"
            )
        servers.append(server)
    return tuple(servers)


def _of_hub(rest: str, shown: str) -> tuple[str, str]:
    match = _HUB.fullmatch(rest)
    revision = unquote(match[2] or "") if match else ""
    if match is None or ".." in revision or (match[2] and not re.fullmatch(r"[A-Za-z0-9._/-]+", revision)):
        raise ConfigError(
            f"{shown} is not a dataset on the Hub: use hf://datasets/OWNER/NAME/folder, or for a branch, tag "
            "or commit hf://datasets/OWNER/NAME@REVISION/folder (with %2F for a '/' in a revision)"
        )
    return f"hf://{match[1]}{'@' if revision else ''}{quote(revision, safe='')}", match[3] or ""


def _of_web(scheme: str, rest: str, shown: str) -> tuple[str, str]:
    server, _, path = rest.partition("/")
    if "@" in server or "?" in rest or "#" in rest:
        raise ConfigError(
            f"{shown}: the URL of a web server must not contain credentials, '?' or '#' (in names, use %3F "
            "and %23)"
        )
    match = _HOST.fullmatch(server.lower())
    number = int(match[2] or _PORTS[scheme]) if match else 0
    if match is None or number not in range(1, 2**16):
        raise ConfigError(f"{shown} has no valid web server: use {scheme}://host/folder")
    try:
        key = unquote(path, errors="strict")
        key.encode()
    except UnicodeError as error:
        raise ConfigError(f"{shown} is not UTF-8 after percent-decoding") from error
    if "\0" in key:
        raise ConfigError(f"{shown} contains a NUL")
    return f"{scheme}://{match[1]}{'' if number == _PORTS[scheme] else f':{number}'}", key


_FOLDER = b"__MACOSX"  # zip files from macOS keep AppleDouble files in it
_FILES = (b"Thumbs.db", b"desktop.ini")
_HERE = frozenset({b"", b".", b".."})


def is_hidden(key: bytes | str) -> bool:
    """Return whether a path is hidden or belongs to the operating system.

    The path must be relative to the source, because directories above the source may have any name.
    """
    path = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    # A leading dot hides a file or folder, such as .DS_Store, ._1.jpg and .ipynb_checkpoints.
    if not (path[:1] == b"." or b"/." in path or _FOLDER in path or path.endswith(_FILES)):
        return False  # fast path for almost all keys
    parts = path.split(b"/")
    if parts[-1] in _FILES or _FOLDER in parts:
        return True
    return any(part[:1] == b"." and part not in _HERE for part in parts)
