"""A coordinator's certificate: read, checked against its key, read again when its files change.

gRPC requests the certificate at each handshake, so a certificate renewed on disk is shown to the next client
without a restart; existing connections stay.
"""

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

from superdl.coordinator.server.trust import file_stamp
from superdl.super_wire.errors import ConfigError

__all__ = ["ServerTls"]

_log = logging.getLogger(__name__)

_PEM = "-----BEGIN "
_MAX_FILE_BYTES = 2**20
_WARN_DAYS = 30


@dataclass(frozen=True, slots=True)
class _Loaded:
    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None

    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self.client_ca)


class ServerTls:
    """A server's certificate, and the authorities whose clients it accepts.

    ``cert`` (the chain), ``key`` and ``client_ca`` are paths of PEM files, or the PEM text itself. With
    ``client_ca``, clients must show a certificate of its authorities. ``ConfigError``: one of them cannot be
    read, is no PEM, or the key belongs to another certificate.
    """

    def __init__(self, cert: str, key: str, client_ca: str = "") -> None:
        self._given = {"tls_cert": cert, "tls_key": key, "tls_client_ca": client_ca}
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._loaded = self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a port of a gRPC server."""
        return grpc.dynamic_ssl_server_credentials(
            self._loaded.for_grpc(),
            self._renewed,  # type: ignore[arg-type]  # None means no change, which the stubs do not say
            require_client_authentication=bool(self._given["tls_client_ca"]),
        )

    def context(self) -> ssl.SSLContext:
        """Return a context for an asyncio server, which also shows what is on disk at each handshake. Do not
        use it together with :meth:`credentials`: if both look for changes, one misses them.
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
        """Return a renewed certificate, or ``None`` for no change; gRPC calls this in its own thread before
        each handshake.
        """
        with self._lock:
            stamps = self._look()
            if stamps == self._stamps:
                return None
            self._stamps = stamps
            try:
                self._loaded = self._load()
            except ConfigError as error:  # perhaps half written: the next change is checked again
                _log.error("the renewed certificate is not used, the one before stays: %s", error)
                return None
            _log.info("the certificate was renewed on disk and is used from now on")
            return self._loaded.for_grpc()

    def _look(self) -> list[tuple[int, ...]]:
        return [file_stamp(given) for given in self._given.values() if given and _PEM not in given]

    def _load(self) -> _Loaded:
        pems = {name: _pem(name, given) for name, given in self._given.items() if given}
        loaded = _Loaded(pems["tls_cert"], pems["tls_key"], pems.get("tls_client_ca"))
        _checked_context(loaded)
        return loaded


def _pem(name: str, given: str) -> bytes:
    if _PEM in given:  # secrets that pass through a shell or JSON twice have escaped line ends
        return given.replace("\\n", "\n").encode()
    try:
        with Path(given).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        reason = getattr(error, "strerror", None) or "it is no path"
        # It may be the key itself, mangled.
        shown = "what it holds" if name == "tls_key" else repr(given[:200])
        raise ConfigError(
            f"{name} is the path of a PEM file, or its text; {shown} cannot be read: {reason}"
        ) from error
    if _PEM.encode() not in content or len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{name}={given} is no PEM file: it lacks the line {_PEM}...")
    return content


def _checked_context(loaded: _Loaded) -> ssl.SSLContext:
    """Check that OpenSSL accepts certificate and key, and when it ends: gRPC reports neither.

    Python's ssl reads only files: use one in memory where possible, since a key must not reach a disk.
    """
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
                f"tls_cert and tls_key cannot be used: {error}; they are the PEM of a certificate (its chain "
                "after it) and of that certificate's own key, without a pass phrase"
            ) from None
        _warn_of_the_end(path)
    if loaded.client_ca is not None:
        try:
            context.load_verify_locations(cadata=loaded.client_ca.decode("ascii", "replace"))
        except ssl.SSLError as error:
            raise ConfigError(f"tls_client_ca holds no certificates of authorities: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted by a pass phrase")


def _warn_of_the_end(path: str) -> None:
    """Log if the first certificate in a file has ended, or will within 30 days."""
    # No public function of ssl reads a certificate that was not shown by a peer.
    read: Any = getattr(ssl, "_ssl", None)
    if not hasattr(read, "_test_decode_cert"):
        return
    end_s = ssl.cert_time_to_seconds(str(read._test_decode_cert(path)["notAfter"]))  # noqa: SLF001
    end = dt.datetime.fromtimestamp(end_s, dt.UTC)
    remaining = end - dt.datetime.now(dt.UTC)
    if remaining < dt.timedelta():
        _log.error("the certificate in tls_cert ended at %s: clients refuse it; renew it", end.isoformat())
    elif remaining < dt.timedelta(days=_WARN_DAYS):
        _log.warning("the certificate in tls_cert ends at %s, in %d days", end.isoformat(), remaining.days)
