"""Where a cache is: ``redis://host:port/db`` or ``unix:///path/redis.sock``, parsed and checked.

An address carries no credentials, since it travels in every ``BatchRef``: those come from the reader's own
environment, see :class:`Credentials`. Opening a socket to it is :mod:`super_dataset.connection`'s.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CacheAddress", "Credentials"]

_DEFAULT_PORT = 6379
_MAX_SOCKET_PATH = 107  # bytes that fit into the kernel's sockaddr_un
_MAX_DB = 2**31


@dataclass(frozen=True, slots=True)
class CacheAddress:
    """One cache node. ``path`` is set for a unix socket, ``host`` and ``port`` for TCP."""

    host: str
    port: int
    path: str
    db: int

    @classmethod
    def parse(cls, text: str) -> CacheAddress:
        """Read an address; ``ConfigError`` names what is wrong with it."""
        parts = urlsplit(text)
        if parts.username or parts.password:
            msg = (
                f"the cache address of {parts.hostname or 'the cache'} holds credentials; leave them out "
                "and set SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD"
            )
            raise ConfigError(msg)
        if parts.scheme == "unix":
            return cls._parse_unix(text, unquote(parts.path), parts.netloc, parts.query)
        if parts.scheme != "redis":
            msg = f"a cache address is redis://host:port/db or unix:///path/redis.sock; not {text!r}"
            raise ConfigError(msg)
        try:
            port = parts.port
        except ValueError as error:
            msg = f"cache address {text!r}: {error}"
            raise ConfigError(msg) from error
        if not parts.hostname:
            msg = f"cache address {text!r} names no host"
            raise ConfigError(msg)
        return cls(
            host=parts.hostname,
            port=_DEFAULT_PORT if port is None else port,
            path="",
            db=_database(parts.path.strip("/"), text),
        )

    @classmethod
    def _parse_unix(cls, text: str, path: str, netloc: str, query: str) -> CacheAddress:
        if netloc or not path:
            msg = f"a unix socket's address is unix:///absolute/path (three slashes); not {text!r}"
            raise ConfigError(msg)
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            msg = f"a unix socket's path has at most {_MAX_SOCKET_PATH} bytes; {path!r} is longer"
            raise ConfigError(msg)
        return cls(host="", port=0, path=path, db=_database(parse_qs(query).get("db", [""])[0], text))

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}" + (f"?db={self.db}" if self.db else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis://{host}:{self.port}" + (f"/{self.db}" if self.db else "")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a reader authenticates with; empty where the cache asks for nothing."""

    username: str = ""
    password: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Credentials:
        """From ``SUPER_CACHE_USERNAME`` and ``SUPER_CACHE_PASSWORD``."""
        username = environment.get("SUPER_CACHE_USERNAME", "")
        password = environment.get("SUPER_CACHE_PASSWORD", "")
        if username and not password:
            msg = (
                "SUPER_CACHE_USERNAME is set and SUPER_CACHE_PASSWORD is not: set both, or the password alone"
            )
            raise ConfigError(msg)
        return cls(username, password)

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r}, password={'***' if self.password else ''!r})"


def _database(text: str, address: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and int(text) < _MAX_DB):
        msg = f"cache address {address!r}: a database is a number; not {text!r}"
        raise ConfigError(msg)
    return int(text)
