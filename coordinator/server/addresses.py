"""Addresses that a coordinator is given: where it listens, and where its cache is; parsed and checked.

What an address beyond this machine needs beside it is :mod:`superdl.coordinator.server.settings`'s.
Credentials are no part of either: see :class:`superdl.super_wire.cache.Credentials`.
"""

from __future__ import annotations

import os
import re

from superdl.super_wire.cache import CacheAddress, Credentials
from superdl.super_wire.encryption import is_loopback
from superdl.super_wire.errors import ConfigError

__all__ = ["check_cache_address", "check_listen_address", "leaves_this_machine", "socket_path"]

_LISTEN_FORMS = "host:port or unix:/path"
_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_PORT_MAX = 65_535
_SOCKET_PATH_BYTES = 107  # what fits into the kernel's sockaddr_un


def socket_path(listen: str) -> str | None:
    """The path of ``unix:/path`` or ``unix:///path``; ``None`` for ``host:port``."""
    if not listen.startswith("unix:"):
        return None
    path = listen.removeprefix("unix:")
    return path.removeprefix("//") if path.startswith("///") else path


def check_listen_address(listen: str, setting: str = "listen") -> None:
    """Raise :class:`ConfigError`, which names ``setting``, unless a server can listen there."""
    path = socket_path(listen)
    if path is not None:
        _check_socket_path(path, f"{setting}={listen}")
        return
    match = _HOST_AND_PORT.fullmatch(listen)
    if match is None or not 0 < int(match["port"]) <= _PORT_MAX:
        raise ConfigError(f"{setting} is {_LISTEN_FORMS}; not {listen!r}")


def leaves_this_machine(listen: str) -> bool:
    """Whether a server that listens there can be reached from elsewhere."""
    match = _HOST_AND_PORT.fullmatch(listen)
    return match is not None and not is_loopback(match["v6"] or match["host"])


def check_cache_address(cache: str, *, insecure: bool = False) -> None:
    """Raise :class:`ConfigError` unless a cache can and may be at that address."""
    Credentials(insecure=insecure).check_encrypted(CacheAddress.parse(cache))


def _check_socket_path(path: str, setting: str) -> None:
    if not path.startswith("/") or path.endswith("/"):
        raise ConfigError(f"{setting}: a unix socket is named by its absolute path; not {path!r}")
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{setting}: a unix socket's path has at most {_SOCKET_PATH_BYTES} bytes, this one "
            f"{len(os.fsencode(path))}: use a shorter directory"
        )
