"""Addresses that a coordinator is given: where it listens, and where its cache is; parsed and checked.

Neither carries credentials: the cache's come from ``SUPER_CACHE_USERNAME`` and ``SUPER_CACHE_PASSWORD``.
Neither leaves this machine as long as there is no TLS.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from super_wire.errors import ConfigError
from super_wire.loopback import is_loopback

if TYPE_CHECKING:
    from urllib.parse import SplitResult

__all__ = ["check_cache_address", "check_listen_address", "socket_path"]

_LISTEN_FORMS = "host:port or unix:/path"
_CACHE_FORMS = "redis://host:port[/db] or unix:///path"
_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_PORT_MAX = 65_535
_SOCKET_PATH_BYTES = 107  # what fits into the kernel's sockaddr_un
_DATABASE_MAX = 2**31 - 1


def socket_path(listen: str) -> str | None:
    """The path of ``unix:/path`` or ``unix:///path``; ``None`` for ``host:port``."""
    if not listen.startswith("unix:"):
        return None
    path = listen.removeprefix("unix:")
    return path.removeprefix("//") if path.startswith("///") else path


def check_listen_address(listen: str) -> None:
    """Raise :class:`ConfigError` unless a coordinator can and may listen there."""
    path = socket_path(listen)
    if path is not None:
        _check_socket_path(path, f"listen={listen}")
        return
    match = _HOST_AND_PORT.fullmatch(listen)
    if match is None or not 0 < int(match["port"]) <= _PORT_MAX:
        msg = f"listen is {_LISTEN_FORMS}; not {listen!r}"
        raise ConfigError(msg)
    if not is_loopback(match["v6"] or match["host"]):
        msg = (
            f"listen={listen}: beyond loopback a coordinator needs TLS and a token, which it lacks so far: "
            "listen on 127.0.0.1 or a unix socket, and use an SSH tunnel from elsewhere"
        )
        raise ConfigError(msg)


def check_cache_address(cache: str) -> None:
    """Raise :class:`ConfigError` unless a cache can and may be at that address."""
    try:
        url = urlsplit(cache)
        port = url.port
    except ValueError as error:
        msg = f"cache is {_CACHE_FORMS}; {cache!r} is not: {error}"
        raise ConfigError(msg) from error
    options = set(parse_qs(url.query, keep_blank_values=True))
    if url.username or url.password or options & {"username", "password"}:
        msg = (
            "credentials do not belong into the cache's address: "
            "set SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD"
        )
        raise ConfigError(msg)
    if url.scheme == "unix" and not url.netloc and options <= {"db"}:
        _check_socket_path(unquote(url.path), f"cache={cache}")
    elif url.scheme != "redis" or not url.hostname or port == 0 or options or url.fragment:
        msg = f"cache is {_CACHE_FORMS}; not {cache!r}"
        raise ConfigError(msg)
    elif not is_loopback(url.hostname):
        msg = (
            f"cache={cache}: beyond loopback a cache needs TLS, which is lacking so far: "
            "use one on this machine, or an SSH tunnel to the other"
        )
        raise ConfigError(msg)
    database = _database(url)
    if database and not (database.isascii() and database.isdigit() and int(database) <= _DATABASE_MAX):
        msg = f"cache={cache}: a database is a number; not {database!r}"
        raise ConfigError(msg)


def _database(url: SplitResult) -> str:
    return parse_qs(url.query).get("db", [""])[-1] if url.scheme == "unix" else url.path.strip("/")


def _check_socket_path(path: str, setting: str) -> None:
    if not path.startswith("/") or path.endswith("/"):
        msg = f"{setting}: a unix socket is named by its absolute path; not {path!r}"
        raise ConfigError(msg)
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        msg = (
            f"{setting}: a unix socket's path has at most {_SOCKET_PATH_BYTES} bytes, this one "
            f"{len(os.fsencode(path))}: use a shorter directory"
        )
        raise ConfigError(msg)
