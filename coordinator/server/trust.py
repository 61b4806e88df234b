"""A coordinator's certificate, and its settings for addresses, TLS and tokens with their checks."""

from __future__ import annotations

import datetime as dt
import logging
import os
import ssl
import threading
from dataclasses import dataclass
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
_RISKS = {
    "listen": "read what functions can read, and spend your money",
    "metrics_listen": "read all metrics",
}


# The cache's credentials are not settings. See superdl.super_wire.cache.Credentials.
@dataclass(frozen=True)
class TrustSettings:
    """Addresses, certificates and tokens. The ``tls_`` settings may also be PEM text."""

    listen: str = setting("127.0.0.1:50051", "host:port or unix:/path (127.0.0.1:50051)")
    cache: str = setting(
        "redis://127.0.0.1:6379", "redis://host:port[/db] or unix:///path (redis://127.0.0.1:6379)"
    )
    insecure: bool = setting(False, "allow connections with other machines without TLS and a token")
    tls_cert: str = setting("", "PEM file of this server's certificate chain")
    tls_key: str = setting("", "PEM file of the certificate's key", secret=True)
    tls_client_ca: str = setting("", "PEM file of the authority whose certificates clients must present")
    # Tokens separated by commas. Without help text it has no argument, which others could see.
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
        """Raise :class:`ConfigError` if addresses, certificates or tokens are invalid or inconsistent."""
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
        risky = next(filter(self.missing, _RISKS), "")
        if risky and not self.insecure:
            raise ConfigError(
                f"{risky}={getattr(self, risky)}: beyond loopback a coordinator needs TLS and a token, "
                f"but this one has {self.missing(risky)}. Set tls_cert and tls_key, and token or token_file; "
                "or listen on 127.0.0.1 or a unix socket, and connect through an SSH tunnel; "
                "or, in a network that nobody else can reach, pass --insecure (SUPER_INSECURE=1)"
            )

    def missing(self, name: str) -> str:
        """Return the protection (TLS, token) that a public address lacks, or an empty string."""
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
            raise ConfigError("tls_client_ca is set, but tls_cert is not: set both or neither")
        if self.tls_cert and socket_path(self.listen) is not None:
            raise ConfigError(
                f"listen={self.listen}: a unix socket stays on this machine, so it does not use TLS. "
                "Remove tls_cert, tls_key and tls_client_ca, or listen on host:port"
            )


def warn_if_insecure(settings: TrustSettings) -> None:
    """Warn about every port of this coordinator that ``insecure`` leaves unprotected."""
    for name, risk in _RISKS.items():
        if missing := settings.missing(name):
            facts = name, getattr(settings, name), missing, risk
            _log.warning("INSECURE: %s=%s has %s: anyone who can reach it can %s", *facts)


def check_listen_address(listen: str, name: str = "listen") -> None:
    """Raise a :class:`ConfigError` that names the setting if no server can listen on the address."""
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
    """Return whether other machines can reach a server that listens on the address."""
    host, _ = host_and_port(listen)
    return bool(host) and not is_loopback(host)


def file_stamp(path: str) -> tuple[int, ...]:
    """Return a value that changes whenever the file changes, appears or disappears."""
    try:
        status = Path(path).stat()
    except OSError as error:
        return (error.errno or 0,)
    return status.st_ino, status.st_size, status.st_mtime_ns


class ServerTls:
    """A server's certificate, and the authorities that sign its clients' certificates.

    ``cert`` (the chain), ``key`` and ``client_ca`` are paths to PEM files, or PEM text. With ``client_ca``,
    clients must present a certificate signed by these authorities. Raises ``ConfigError`` if one of the
    three cannot be read or is not PEM, or if the key does not match the certificate.
    """

    def __init__(self, cert: str, key: str, client_ca: str = "") -> None:
        self._given = {"tls_cert": cert, "tls_key": key, "tls_client_ca": client_ca}
        self._lock = threading.Lock()
        self._stamps = self._file_stamps()
        self._for_grpc, self._context = self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a gRPC server. Each handshake uses the certificate that is on disk."""
        used = self._for_grpc

        def renewed() -> grpc.ServerCertificateConfiguration | None:  # called before each handshake
            nonlocal used
            self._refresh()
            previous, used = used, self._for_grpc
            return None if used is previous else used

        return grpc.dynamic_ssl_server_credentials(
            used,
            renewed,  # type: ignore[arg-type]  # None means no change, which the stubs do not say
            require_client_authentication=bool(self._given["tls_client_ca"]),
        )

    def context(self) -> ssl.SSLContext:
        """Return a context for an asyncio server. Each handshake uses the certificate that is on disk."""

        def present(socket: ssl.SSLObject, *_: object) -> None:
            self._refresh()
            socket.context = self._context

        _, first = self._load()
        first.sni_callback = present
        return first

    def _refresh(self) -> None:
        """Reload the certificate if it has changed on disk. Any thread may call this."""
        with self._lock:
            stamps = self._file_stamps()
            if stamps == self._stamps:
                return
            self._stamps = stamps
            try:
                self._for_grpc, self._context = self._load()
            except ConfigError as error:  # perhaps half of a renewal; the next change is read too
                _log.error("cannot load the renewed certificate, keeping the previous one: %s", error)
            else:
                _log.info("loaded the certificate that was renewed on disk")

    def _file_stamps(self) -> list[tuple[int, ...]]:
        return [file_stamp(given) for given in self._given.values() if given and _PEM not in given]

    def _load(self) -> tuple[grpc.ServerCertificateConfiguration, ssl.SSLContext]:
        pems = {name: _pem(name, given) for name, given in self._given.items() if given}
        cert, key, client_ca = pems["tls_cert"], pems["tls_key"], pems.get("tls_client_ca")
        context = _checked_context(cert, key, client_ca)
        return grpc.ssl_server_certificate_configuration([(key, cert)], client_ca), context


def _pem(name: str, given: str) -> bytes:
    if _PEM in given:  # line breaks are escaped after passing through a shell or JSON
        return given.replace("\\n", "\n").encode()
    try:
        with Path(given).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        reason = getattr(error, "strerror", None) or "it is not a path"
        # It may be the key itself.
        shown = "its value" if name == "tls_key" else repr(given[:200])
        raise ConfigError(
            f"{name} must be the path of a PEM file or its text, but {shown} cannot be read: {reason}"
        ) from error
    if _PEM.encode() not in content or len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{name}={given} is not a PEM file: it has no line {_PEM}...")
    return content


def _checked_context(cert: bytes, key: bytes, client_ca: bytes | None) -> ssl.SSLContext:
    """Check the certificate and key, and warn before the certificate expires. gRPC does neither."""
    # Python's ssl only reads files, and a key must not be written to disk.
    with os.fdopen(os.memfd_create("super-tls", os.MFD_CLOEXEC), "wb") as file:
        file.write(key + b"\n" + cert)
        file.flush()
        path = f"/dev/fd/{file.fileno()}"
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(path, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls_cert and tls_key cannot be used: {error}. Set tls_cert to a PEM certificate chain, and "
                "tls_key to its private key in PEM, without a passphrase"
            ) from None
        _warn_of_expiry(path)
    if client_ca is not None:
        try:
            context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
        except ssl.SSLError as error:
            raise ConfigError(f"tls_client_ca contains no CA certificates: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted with a passphrase")


def _warn_of_expiry(path: str) -> None:
    """Warn if the first certificate in a file has expired or will expire within 30 days."""
    # Python's ssl has no public function for certificates other than a peer's.
    read: Any = getattr(ssl, "_ssl", None)
    if not hasattr(read, "_test_decode_cert"):
        return
    end_s = ssl.cert_time_to_seconds(str(read._test_decode_cert(path)["notAfter"]))  # noqa: SLF001
    end = dt.datetime.fromtimestamp(end_s, dt.UTC)
    remaining = end - dt.datetime.now(dt.UTC)
    if remaining < dt.timedelta():
        _log.error(
            "the certificate in tls_cert expired at %s, so clients refuse it: renew it", end.isoformat()
        )
    elif remaining < dt.timedelta(days=_WARN_DAYS):
        _log.warning("the certificate in tls_cert expires at %s, in %d days", end.isoformat(), remaining.days)
