"""Settings for a coordinator's addresses and callers, and the rules that connect them.

Beyond this machine a coordinator requires TLS and a token, and reaches its cache by TLS, unless ``insecure``
is set. On loopback and unix sockets it needs neither. Credentials of the cache are not settings: see
:class:`superdl.super_wire.cache.Credentials`.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from superdl.coordinator.catalog.source import parse_roots
from superdl.coordinator.executors.base import setting
from superdl.super_wire.cache import CacheAddress, Credentials
from superdl.super_wire.coordinator_credentials import tokens_given
from superdl.super_wire.encryption import is_loopback
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import host_and_port, socket_path
from superdl.super_wire.source_url import parse_http_hosts

__all__ = [
    "TrustSettings",
    "check_listen_address",
    "file_stamp",
    "leaves_this_machine",
    "warn_if_insecure",
]

_log = logging.getLogger(__name__)

_SOCKET_PATH_BYTES = 107  # the size of the kernel's sockaddr_un path


@dataclass(frozen=True)
class TrustSettings:
    """Addresses, certificates and tokens. Secrets have no arguments: ``token`` has commas between tokens, and
    ``tls_key`` may be the PEM text itself, as ``tls_cert`` and ``tls_client_ca`` may.
    """

    listen: str = setting("127.0.0.1:50051", "host:port or unix:/path (127.0.0.1:50051)")
    cache: str = setting(
        "redis://127.0.0.1:6379", "redis://host:port[/db] or unix:///path (redis://127.0.0.1:6379)"
    )
    insecure: bool = setting(False, "allow what is not on this machine without TLS and a token")
    tls_cert: str = setting("", "PEM file of this server's certificate chain")
    tls_key: str = setting("", "PEM file of its key", secret=True)
    tls_client_ca: str = setting("", "PEM file: clients must show a certificate of this authority")
    token: str = setting("", secret=True)
    token_file: str = setting("", "tokens, one in each line, of which clients must know one")
    health_listen: str = setting("", "another address, in plain text, for the health service alone")
    metrics_listen: str = setting("", "host:port where Prometheus finds metrics (nowhere)")
    file_roots: str = setting(
        "", "directories for file:// sources and key lists (any, or none where others reach it)"
    )
    http_hosts: str = setting(
        "", "web servers for https:// sources and key lists (any, or none where others reach it)"
    )

    def check_trust(self) -> None:
        """Raise :class:`ConfigError` unless addresses, certificates and tokens fit together."""
        check_listen_address(self.listen)
        Credentials(insecure=self.insecure).check_encrypted(CacheAddress.parse(self.cache))
        tokens_given(self.token, "token")
        parse_roots(self.file_roots)
        parse_http_hosts(self.http_hosts, "http_hosts")
        self._check_certificates()
        if self.health_listen:
            check_listen_address(self.health_listen, "health_listen")
            if self.health_listen == self.listen:
                raise ConfigError(f"health_listen and listen are both {self.listen}: name another address")
        if self.metrics_listen:
            check_listen_address(self.metrics_listen, "metrics_listen")
            if socket_path(self.metrics_listen) or self.metrics_listen in (self.listen, self.health_listen):
                raise ConfigError(
                    f"metrics_listen={self.metrics_listen}: metrics need a host:port of their own"
                )
        lacking = next((name for name in ("listen", "metrics_listen") if self.lacks(name)), "")
        if lacking and not self.insecure:
            raise ConfigError(
                f"{lacking}={getattr(self, lacking)}: beyond loopback a coordinator needs TLS and a token, "
                f"and this one has {self.lacks(lacking)}: set tls_cert and tls_key, and token or token_file; "
                "or listen on 127.0.0.1 or a unix socket, and use an SSH tunnel from elsewhere; or, in a "
                "network that nobody else can reach, allow it by --insecure (SUPER_INSECURE=1)"
            )

    def lacks(self, name: str = "listen") -> str:
        """Describe what an address lacks if it is beyond this machine; empty if nothing."""
        if not leaves_this_machine(getattr(self, name)):
            return ""
        has_tls, has_token = bool(self.tls_cert), bool(self.token or self.token_file)
        if has_tls:
            return "" if has_token else "no token"
        return "no TLS" if has_token else "neither"

    def _check_certificates(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            given, other = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ConfigError(f"{given} is set and {other} is not: they belong together")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError("tls_client_ca is set and tls_cert is not: who asks for certificates shows one")
        if self.tls_cert and socket_path(self.listen) is not None:
            raise ConfigError(
                f"listen={self.listen}: nobody listens in on a unix socket, so there is no TLS on it: leave "
                "tls_cert, tls_key and tls_client_ca out, or listen on host:port"
            )


def warn_if_insecure(settings: TrustSettings) -> None:
    """Log what ``insecure`` allows at this coordinator's ports, if anything. The cache's client logs what it
    allows at the cache.
    """
    if lacks := settings.lacks():
        _log.warning(
            "INSECURE: listening on %s with %s: whoever reaches this port may read what functions can read, "
            "and spend your money",
            settings.listen,
            lacks,
        )
    if lacks := settings.lacks("metrics_listen"):
        _log.warning(
            "INSECURE: whoever reaches %s reads all metrics: it has %s", settings.metrics_listen, lacks
        )


def check_listen_address(listen: str, name: str = "listen") -> None:
    """Raise :class:`ConfigError`, which names the setting, unless a server can listen there."""
    path = socket_path(listen)
    if path is None:
        if not host_and_port(listen)[1]:
            raise ConfigError(f"{name} is host:port or unix:/path; not {listen!r}")
        return
    if not path.startswith("/") or path.endswith("/"):
        raise ConfigError(f"{name}={listen}: a unix socket is named by its absolute path; not {path!r}")
    if (size := len(os.fsencode(path))) > _SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{name}={listen}: a socket's path has at most {_SOCKET_PATH_BYTES} bytes, this one {size}"
        )


def leaves_this_machine(listen: str) -> bool:
    """Return whether a server that listens there can be reached from other machines."""
    host, _ = host_and_port(listen)
    return bool(host) and not is_loopback(host)


def file_stamp(path: str) -> tuple[int, ...]:
    """Return a value that changes if the file changes, appears or disappears."""
    try:
        status = Path(path).stat()
    except OSError as error:
        return (error.errno or 0,)
    return status.st_ino, status.st_size, status.st_mtime_ns
