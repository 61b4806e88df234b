"""Settings of a coordinator's addresses, TLS and tokens, their checks, and its certificate."""

from __future__ import annotations

import datetime as dt
import logging
import os
import ssl
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from superdl.coordinator.catalog.source import parse_roots
from superdl.coordinator.executors.base import setting
from superdl.super_wire.cache import CacheAddress, Credentials
from superdl.super_wire.credentials import is_loopback, tokens_given
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import host_and_port, socket_path
from superdl.super_wire.source_url import parse_http_hosts

_log = logging.getLogger(__name__)

_PEM = "-----BEGIN "
_MAX_FILE_BYTES = 2**20
_WARN_DAYS = 30
_SOCKET_PATH_BYTES = 107  # size of the path in the kernel's sockaddr_un


# Credentials of the cache are not settings, see superdl.super_wire.cache.Credentials.
@dataclass(frozen=True)
class TrustSettings:
    """Addresses, certificates and tokens. Each of the ``tls_`` settings may also be PEM text."""

    listen: str = setting("127.0.0.1:50051", "host:port or unix:/path (127.0.0.1:50051)")
    cache: str = setting(
        "redis://127.0.0.1:6379", "redis://host:port[/db] or unix:///path (redis://127.0.0.1:6379)"
    )
    insecure: bool = setting(False, "allow connections with other machines without TLS and a token")
    tls_cert: str = setting("", "PEM file of this server's certificate chain")
    tls_key: str = setting("", "PEM file of the certificate's key", secret=True)
    tls_client_ca: str = setting("", "PEM file of the authority whose certificates clients must present")
    # Not an argument, because it is secret. Tokens are separated by commas.
    token: str = setting("", secret=True)
    token_file: str = setting("", "file with one token per line; clients must present one of them")
    health_listen: str = setting("", "another address, without TLS, for the health service only")
    metrics_listen: str = setting("", "host:port that serves metrics to Prometheus (none)")
    file_roots: str = setting(
        "", "directories allowed for file:// sources and key lists (any, or none if others can connect)"
    )
    http_hosts: str = setting(
        "", "web servers allowed for https:// sources and key lists (any, or none if others can connect)"
    )

    def check_trust(self) -> None:
        """Raise :class:`ConfigError` unless addresses, certificates and tokens are consistent."""
        check_listen_address(self.listen)
        Credentials(insecure=self.insecure).check_encrypted(CacheAddress.parse(self.cache))
        tokens_given(self.token, "token")
        parse_roots(self.file_roots)
        parse_http_hosts(self.http_hosts, "http_hosts")
        self._check_certificates()
        if self.health_listen:
            check_listen_address(self.health_listen, "health_listen")
            if self.health_listen == self.listen:
                raise ConfigError(f"health_listen and listen are both {self.listen}: use another address")
        if self.metrics_listen:
            check_listen_address(self.metrics_listen, "metrics_listen")
            if socket_path(self.metrics_listen) or self.metrics_listen in (self.listen, self.health_listen):
                raise ConfigError(
                    f"metrics_listen={self.metrics_listen}: metrics need a host:port of their own"
                )
        risky = next((name for name in ("listen", "metrics_listen") if self.missing(name)), "")
        if risky and not self.insecure:
            raise ConfigError(
                f"{risky}={getattr(self, risky)}: beyond loopback a coordinator needs TLS and a token, "
                f"but this one has {self.missing(risky)}. Set tls_cert and tls_key, and token or token_file; "
                "or listen on 127.0.0.1 or a unix socket, and connect from elsewhere through an SSH tunnel; "
                "or, in a network that nobody else can reach, pass --insecure (SUPER_INSECURE=1)"
            )

    def missing(self, name: str = "listen") -> str:
        """Return the missing protection (TLS, a token) of an address that other machines can reach, or an
        empty string.
        """
        if not leaves_this_machine(getattr(self, name)):
            return ""
        has_tls, has_token = bool(self.tls_cert), bool(self.token or self.token_file)
        if has_tls:
            return "" if has_token else "no token"
        return "no TLS" if has_token else "neither TLS nor a token"

    def _check_certificates(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            given, other = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ConfigError(f"{given} is set, but {other} is not: set both or neither")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError(
                "tls_client_ca is set, but tls_cert is not: to check clients' certificates, set both"
            )
        if self.tls_cert and socket_path(self.listen) is not None:
            raise ConfigError(
                f"listen={self.listen}: a unix socket cannot be eavesdropped on, so it does not use TLS. "
                "Remove tls_cert, tls_key and tls_client_ca, or listen on host:port"
            )


def warn_if_insecure(settings: TrustSettings) -> None:
    """Log the risks that ``insecure`` allows at this coordinator's ports, if there are any."""
    if missing := settings.missing():
        _log.warning(
            "INSECURE: listening on %s with %s: anyone who can reach this port can read what functions can "
            "read, and spend your money",
            settings.listen,
            missing,
        )
    if missing := settings.missing("metrics_listen"):
        _log.warning(
            "INSECURE: anyone who can reach %s can read all metrics: it has %s",
            settings.metrics_listen,
            missing,
        )


def check_listen_address(listen: str, name: str = "listen") -> None:
    """Raise :class:`ConfigError`, with the setting's name, unless a server can listen there."""
    path = socket_path(listen)
    if path is None:
        if not host_and_port(listen)[1]:
            raise ConfigError(f"{name} must be host:port or unix:/path, not {listen!r}")
        return
    if not path.startswith("/") or path.endswith("/"):
        raise ConfigError(f"{name}={listen}: the path of a unix socket must be absolute, not {path!r}")
    if (size := len(os.fsencode(path))) > _SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{name}={listen}: a socket path may be at most {_SOCKET_PATH_BYTES} bytes long, not {size}"
        )


def leaves_this_machine(listen: str) -> bool:
    """Return whether other machines can reach a server that listens there."""
    host, _ = host_and_port(listen)
    return bool(host) and not is_loopback(host)


def file_stamp(path: str) -> tuple[int, ...]:
    """Return a value that changes if the file changes, appears or disappears."""
    try:
        status = Path(path).stat()
    except OSError as error:
        return (error.errno or 0,)
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class _Loaded:
    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None

    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self.client_ca)


class ServerTls:
    """A server's certificate, and the CAs of the clients that it accepts.

    ``cert`` (the chain), ``key`` and ``client_ca`` are paths of PEM files, or PEM
    text. With ``client_ca``, clients must present a certificate from these CAs. Raises
    ``ConfigError`` if one of them cannot be read or is not PEM, or if the key does not
    match the certificate.
    """

    def __init__(self, cert: str, key: str, client_ca: str = "") -> None:
        self._given = {"tls_cert": cert, "tls_key": key, "tls_client_ca": client_ca}
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._loaded = self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a port of a gRPC server."""
        # gRPC requests the certificate at each handshake, so a renewed file is
        # used for the next client.
        return grpc.dynamic_ssl_server_credentials(
            self._loaded.for_grpc(),
            self._renewed,  # type: ignore[arg-type]  # None means no change, which the stubs do not say
            require_client_authentication=bool(self._given["tls_client_ca"]),
        )

    def context(self) -> ssl.SSLContext:
        """Return an SSL context for an asyncio server. Each handshake uses the certificate then on disk.

        Do not use this together with :meth:`credentials`: if both check for
        changes, one misses them.
        """
        newest = [_checked_context(self._loaded)]

        def show(socket: ssl.SSLObject, *_: object) -> None:
            if self._renewed() is not None:
                newest[0] = _checked_context(self._loaded)
            socket.context = newest[0]

        first = _checked_context(self._loaded)
        first.sni_callback = show
        return first

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a renewed certificate, or ``None`` for no change."""
        # gRPC calls this in one of its threads before each handshake.
        with self._lock:
            stamps = self._look()
            if stamps == self._stamps:
                return None
            self._stamps = stamps
            try:
                self._loaded = self._load()
            except ConfigError as error:  # possibly incomplete; the next change is checked again
                _log.error("cannot load the renewed certificate, keeping the previous one: %s", error)
                return None
            _log.info("the certificate was renewed on disk and is now in use")
            return self._loaded.for_grpc()

    def _look(self) -> list[tuple[int, ...]]:
        return [file_stamp(given) for given in self._given.values() if given and _PEM not in given]

    def _load(self) -> _Loaded:
        pems = {name: _pem(name, given) for name, given in self._given.items() if given}
        loaded = _Loaded(pems["tls_cert"], pems["tls_key"], pems.get("tls_client_ca"))
        _checked_context(loaded)
        return loaded


def _pem(name: str, given: str) -> bytes:
    if _PEM in given:  # secrets that pass through a shell or JSON twice have escaped line breaks
        return given.replace("\\n", "\n").encode()
    try:
        with Path(given).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        reason = getattr(error, "strerror", None) or "it is not a path"
        # It may be the key itself, in a mangled form.
        shown = "its value" if name == "tls_key" else repr(given[:200])
        raise ConfigError(
            f"{name} must be the path of a PEM file or its text, but {shown} cannot be read: {reason}"
        ) from error
    if _PEM.encode() not in content or len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{name}={given} is not a PEM file: it has no line {_PEM}...")
    return content


def _checked_context(loaded: _Loaded) -> ssl.SSLContext:
    """Check that OpenSSL accepts the certificate and key, and warn of expiry, because gRPC does neither."""
    # Python's ssl only reads files. Use a file in memory if possible, because a
    # key must not be written to disk.
    with (
        tempfile.TemporaryFile()
        if not hasattr(os, "memfd_create")
        else os.fdopen(os.memfd_create("super-tls", os.MFD_CLOEXEC), "wb") as file
    ):
        file.write(loaded.key + b"\n" + loaded.cert)
        file.flush()
        path = f"/dev/fd/{file.fileno()}"
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(path, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls_cert and tls_key cannot be used: {error}; they must be the PEM of a certificate "
                "(followed by its chain) and of that certificate's own key, without a passphrase"
            ) from None
        _warn_of_expiry(path)
    if loaded.client_ca is not None:
        try:
            context.load_verify_locations(cadata=loaded.client_ca.decode("ascii", "replace"))
        except ssl.SSLError as error:
            raise ConfigError(f"tls_client_ca contains no CA certificates: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted with a passphrase")


def _warn_of_expiry(path: str) -> None:
    """Log a warning if the first certificate in a file has expired, or will expire within 30 days."""
    # ssl has no public function that parses a certificate, except that of a peer.
    read: Any = getattr(ssl, "_ssl", None)
    if not hasattr(read, "_test_decode_cert"):
        return
    end_s = ssl.cert_time_to_seconds(str(read._test_decode_cert(path)["notAfter"]))  # noqa: SLF001
    end = dt.datetime.fromtimestamp(end_s, dt.UTC)
    remaining = end - dt.datetime.now(dt.UTC)
    if remaining < dt.timedelta():
        _log.error("clients refuse the certificate in tls_cert: it expired at %s; renew it", end.isoformat())
    elif remaining < dt.timedelta(days=_WARN_DAYS):
        _log.warning("the certificate in tls_cert expires at %s, in %d days", end.isoformat(), remaining.days)
