"""Where a cache is and how one is let in: addresses parsed and checked, credentials from the environment.

An address is ``redis://host:port/db``, ``rediss://host:port/db`` (TLS) or ``unix:///path/redis.sock?db=N``.
``?protocol=3`` asks for RESP3. It carries no credentials, since it travels in every request and every
``BatchRef``: each side has its own, see :class:`Credentials`. Opening a socket is the sides' own affair.
"""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from superdl.super_wire.encryption import client_tls_context, insecure_in, is_loopback
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

__all__ = ["CACHE_FORMS", "CacheAddress", "Credentials"]

CACHE_FORMS = "redis://host:port[/db], rediss://host:port[/db] or unix:///path"

_log = logging.getLogger(__name__)

_CREDENTIALS_IN_ADDRESS = (
    "the cache's address holds credentials; leave them out and set SUPER_CACHE_USERNAME and "
    "SUPER_CACHE_PASSWORD"
)
_DEFAULT_PORT = 6379
_MAX_SOCKET_PATH = 107  # bytes that fit into the kernel's sockaddr_un
_MAX_DB = 2**31
_DEFAULT_PROTOCOL = 2
_PROTOCOLS = {"2": _DEFAULT_PROTOCOL, "3": 3}
_CREDENTIAL_OPTIONS = frozenset({"username", "password"})


@dataclass(frozen=True, slots=True)
class CacheAddress:
    """One cache node. ``path`` is set for a unix socket, ``host`` and ``port`` for TCP.

    ``tls`` whether the connection is encrypted, ``protocol`` the RESP version spoken, 2 or 3.
    """

    host: str
    port: int
    path: str
    db: int = 0
    tls: bool = False
    protocol: int = 2

    @classmethod
    def parse(cls, text: str) -> CacheAddress:
        """Read an address; ``ConfigError`` names what is wrong with it."""
        if "@" in text and not text.startswith("unix:"):  # before anything that could repeat it
            raise ConfigError(_CREDENTIALS_IN_ADDRESS)
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"cache address {text!r}: {error}") from error
        options = parse_qs(parts.query, keep_blank_values=True)
        if parts.username or parts.password or options.keys() & _CREDENTIAL_OPTIONS:
            raise ConfigError(_CREDENTIALS_IN_ADDRESS)
        if parts.scheme not in {"redis", "rediss", "unix"} or parts.fragment:
            raise ConfigError(f"a cache address is {CACHE_FORMS}; not {text!r}")
        unknown = options.keys() - ({"protocol", "db"} if parts.scheme == "unix" else {"protocol"})
        if unknown:
            raise ConfigError(f"cache address {text!r}: there is no option {', '.join(sorted(unknown))}")
        protocol = _protocol(options.get("protocol", ["2"])[-1], text)
        if parts.scheme == "unix":
            return cls._of_unix(text, parts, options.get("db", [""])[-1], protocol)
        if not parts.hostname or port == 0:
            raise ConfigError(f"cache address {text!r} names no {'port' if parts.hostname else 'host'}")
        return cls(
            host=parts.hostname,
            port=_DEFAULT_PORT if port is None else port,
            path="",
            db=_database(parts.path.strip("/"), text),
            tls=parts.scheme == "rediss",
            protocol=protocol,
        )

    @classmethod
    def _of_unix(cls, text: str, parts: SplitResult, db: str, protocol: int) -> CacheAddress:
        path = unquote(parts.path)
        if parts.netloc or not path or path.endswith("/"):
            raise ConfigError(
                f"a unix socket's address is unix:///absolute/path (three slashes); not {text!r}"
            )
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            raise ConfigError(
                f"a unix socket's path has at most {_MAX_SOCKET_PATH} bytes; {path!r} is longer: "
                "use a shorter directory"
            )
        return cls(host="", port=0, path=path, db=_database(db, text), protocol=protocol)

    @property
    def local(self) -> bool:
        """Whether it is on this machine: a unix socket, or a host on loopback."""
        return bool(self.path) or is_loopback(self.host)

    @property
    def keeps_bytes(self) -> bool:
        """Whether the way itself shows or rules out flipped bits: TLS does, and so does a unix socket. TCP's
        sum of 16 bits, which middleboxes compute again, does not.
        """
        return bool(self.path) or self.tls

    def node(self, host: str, port: int) -> CacheAddress:
        """Another node of the same cluster, reached in the same way."""
        return replace(self, host=host, port=port, path="", db=0)

    def __str__(self) -> str:
        option = f"protocol={self.protocol}" if self.protocol != _DEFAULT_PROTOCOL else ""
        if self.path:
            options = "&".join(filter(None, (f"db={self.db}" if self.db else "", option)))
            return f"unix://{self.path}" + (f"?{options}" if options else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        address = f"redis{'s' if self.tls else ''}://{host}:{self.port}" + (f"/{self.db}" if self.db else "")
        return address + (f"?{option}" if option else "")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one side is let in with; empty where the cache asks for nothing.

    ``ca_file`` is a PEM file of the authorities that a ``rediss://`` cache's certificate must come from, the
    system's if it is empty; ``cert_file`` and ``key_file`` are a client certificate, for caches that want
    one. ``insecure`` allows plain text beyond this machine.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Credentials:
        """From ``SUPER_CACHE_USERNAME``, ``_PASSWORD``, ``_CA_FILE``, ``_CERT_FILE`` and ``_KEY_FILE``, and
        ``SUPER_INSECURE``.

        Raises:
            ConfigError: a user without a password, or a certificate without a key.
        """
        found = cls(
            username=environment.get("SUPER_CACHE_USERNAME", ""),
            password=environment.get("SUPER_CACHE_PASSWORD", ""),
            ca_file=environment.get("SUPER_CACHE_CA_FILE", ""),
            cert_file=environment.get("SUPER_CACHE_CERT_FILE", ""),
            key_file=environment.get("SUPER_CACHE_KEY_FILE", ""),
            insecure=insecure_in(environment),
        )
        if found.username and not found.password:
            raise ConfigError(
                "SUPER_CACHE_USERNAME is set and SUPER_CACHE_PASSWORD is not: set both, or the password alone"
            )
        if bool(found.cert_file) != bool(found.key_file):
            raise ConfigError(
                "SUPER_CACHE_CERT_FILE and SUPER_CACHE_KEY_FILE belong together: set both, or neither"
            )
        return found

    def check_encrypted(self, address: CacheAddress) -> None:
        """See that what is sent to ``address`` can be read by nobody else.

        Raises:
            ConfigError: it would leave this machine in plain text, and ``insecure`` does not allow that.
        """
        if not (address.tls or address.local or self.insecure):
            raise ConfigError(
                f"the cache at {address} is beyond loopback, where a cache needs TLS: use rediss://, or a "
                "cache on this machine, or an SSH tunnel to the other; in a network that nobody else can "
                "reach, SUPER_INSECURE=1 (on each side) does without"
            )

    def admit(self, address: CacheAddress) -> None:
        """The same, before something is sent; what goes in plain text all the same is warned of, once a
        process.

        Raises:
            ConfigError: as :meth:`check_encrypted`.
        """
        self.check_encrypted(address)
        if not (address.tls or address.local):
            _warn_once(str(address))

    def tls_context(self) -> ssl.SSLContext:
        """Verifies the cache's certificate and host name, TLS 1.2 or later.

        Raises:
            ConfigError: a file cannot be read or is no PEM file.
        """
        return client_tls_context(
            self.ca_file,
            self.cert_file,
            self.key_file,
            purpose="the cache",
            variables="SUPER_CACHE_CA_FILE, _CERT_FILE and _KEY_FILE",
        )


@functools.cache
def _warn_once(address: str) -> None:
    _log.warning("INSECURE: SUPER_INSECURE=1 lets password and samples go to %s in plain text", address)


def _database(text: str, address: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and int(text) < _MAX_DB):
        raise ConfigError(f"cache address {address!r}: a database is a number; not {text!r}")
    return int(text)


def _protocol(text: str, address: str) -> int:
    if text not in _PROTOCOLS:
        raise ConfigError(f"cache address {address!r}: protocol is 2 or 3; not {text!r}")
    return _PROTOCOLS[text]
