"""A cache's address and credentials.

Addresses have the form ``redis[s]://host:port/db`` or ``unix:///path/redis.sock?db=N``.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from superdl.super_wire.credentials import ClientTls, is_loopback
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORMS = "redis://host:port[/db], rediss://host:port[/db] or unix:///path"

_log = logging.getLogger(__name__)

# Addresses are sent in every request and BatchRef. Credentials are configured on each side.
_CREDENTIALS_IN_ADDRESS = (
    "the cache address contains credentials: remove them, and set SUPER_CACHE_USERNAME and "
    "SUPER_CACHE_PASSWORD"
)
_DEFAULT_PORT = 6379
_MAX_DB = 2**31


@dataclass(frozen=True, slots=True)
class CacheAddress:
    """The address of a cache node: the ``path`` of a unix socket, or a ``host`` and ``port``."""

    host: str
    port: int
    path: str
    db: int = 0
    tls: bool = False

    @classmethod
    def parse(cls, text: str) -> CacheAddress:
        """Parse an address. Raises ``ConfigError`` if it is invalid."""
        if "@" in text and not text.startswith("unix:"):  # first, because later errors quote it
            raise ConfigError(_CREDENTIALS_IN_ADDRESS)
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"cache address {text!r}: {error}") from error
        options = parse_qs(parts.query, keep_blank_values=True)
        if parts.username or parts.password or options.keys() & {"username", "password"}:
            raise ConfigError(_CREDENTIALS_IN_ADDRESS)
        if parts.scheme not in {"redis", "rediss", "unix"} or parts.fragment:
            raise ConfigError(f"a cache address must be {_FORMS}, not {text!r}")
        unknown = options.keys() - ({"db"} if parts.scheme == "unix" else set())
        if unknown:
            raise ConfigError(f"cache address {text!r}: unknown option {', '.join(sorted(unknown))}")
        if parts.scheme == "unix":
            path, db = unquote(parts.path), _database(options.get("db", [""])[-1], text)
            if parts.netloc or not path or path.endswith("/"):
                raise ConfigError(
                    "the address of a unix socket must be unix:///absolute/path (three slashes), not "
                    f"{text!r}"
                )
            return cls("", 0, path, db)
        if not parts.hostname or port == 0:
            raise ConfigError(f"cache address {text!r} has no valid {'port' if parts.hostname else 'host'}")
        db = _database(parts.path.strip("/"), text)
        return cls(parts.hostname, port or _DEFAULT_PORT, "", db, tls=parts.scheme == "rediss")

    @property
    def local(self) -> bool:
        """Whether the cache is on this machine, at a unix socket or a loopback address."""
        return bool(self.path) or is_loopback(self.host)

    @property
    def keeps_bytes(self) -> bool:
        """Whether the transport detects flipped bits, as TLS and unix sockets do."""
        return bool(self.path) or self.tls

    def node(self, host: str, port: int) -> CacheAddress:
        """Return the address of another node in the same cluster, with the same transport."""
        return replace(self, host=host, port=port, path="", db=0)

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}" + (f"?db={self.db}" if self.db else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{host}:{self.port}" + (f"/{self.db}" if self.db else "")


def _database(text: str, address: str) -> int:
    if text and not (text.isascii() and text.isdigit() and int(text) < _MAX_DB):
        raise ConfigError(f"cache address {address!r}: the database must be a number, not {text!r}")
    return int(text or 0)


@dataclass(frozen=True, slots=True)
class Credentials(ClientTls):
    """Credentials for the cache, empty if it requires none."""

    peer: ClassVar[str] = "the cache"
    variables: ClassVar[Mapping[str, str]] = {
        "ca_file": "SUPER_CACHE_CA_FILE",
        "cert_file": "SUPER_CACHE_CERT_FILE",
        "key_file": "SUPER_CACHE_KEY_FILE",
    }

    username: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Credentials:
        """Read ``SUPER_CACHE_USERNAME``, ``SUPER_CACHE_PASSWORD`` and the variables of :meth:`tls_in`."""
        username = environment.get("SUPER_CACHE_USERNAME", "")
        password = environment.get("SUPER_CACHE_PASSWORD", "")
        if username and not password:
            raise ConfigError(
                "SUPER_CACHE_USERNAME is set but SUPER_CACHE_PASSWORD is not: set both, or only the password"
            )
        return cls(username, password, **cls.tls_in(environment))

    def check_encrypted(self, address: CacheAddress) -> None:
        """Raise ``ConfigError`` for a remote address without TLS, unless ``insecure`` is set."""
        if not (address.tls or address.local or self.insecure):
            raise ConfigError(
                f"the cache at {address} is not at a loopback address, so TLS is required: use rediss://, "
                "127.0.0.1 for a cache on this machine, or an SSH tunnel. In an isolated network, set "
                "SUPER_INSECURE=1 on each side to connect without TLS"
            )

    def admit(self, address: CacheAddress) -> None:
        """Run :meth:`check_encrypted`, and warn once if ``insecure`` allows an unencrypted connection."""
        self.check_encrypted(address)
        if not (address.tls or address.local):
            _warn_once(str(address))


@functools.cache
def _warn_once(address: str) -> None:
    _log.warning("INSECURE: SUPER_INSECURE=1 sends the password and samples to %s in plain text", address)
