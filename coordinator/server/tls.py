"""A coordinator's certificate: read, seen to fit its key, and read again when its files change.

Where TLS is needed is :func:`superdl.coordinator.server.settings.check_trust`'s. gRPC asks for the
certificate at each handshake, so that one that is renewed on disk is shown to the next client, with no
restart; those who are connected stay so. Python's own ssl tells the end only of certificates that a peer has
shown, so just enough of X.509 is read here to find that date.
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

import grpc

from superdl.super_wire.errors import ConfigError

__all__ = ["ServerTls", "end_of_certificate", "warn_of_the_end"]

_log = logging.getLogger(__name__)

_PEM = "-----BEGIN "
_MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class _Loaded:
    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None

    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self.client_ca)


class ServerTls:
    """What a server shows, and whom it believes.

    Args:
        cert: the certificate chain; the path of a PEM file, or the PEM text itself.
        key: its key, likewise.
        client_ca: likewise; where it is given, clients must show a certificate of its authorities.

    Raises:
        ConfigError: one of them cannot be read, is no PEM, or the key is another certificate's.
    """

    def __init__(self, cert: str, key: str, client_ca: str = "") -> None:
        self._given = {"tls_cert": cert, "tls_key": key, "tls_client_ca": client_ca}
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._loaded = self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """For a port of a gRPC server."""
        return grpc.dynamic_ssl_server_credentials(
            self._loaded.for_grpc(),
            self._renewed,  # type: ignore[arg-type]  # None means no change, which the stubs do not say
            require_client_authentication=bool(self._given["tls_client_ca"]),
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC in a thread of its own, before each handshake; ``None`` leaves all as it is."""
        with self._lock:
            stamps = self._look()
            if stamps == self._stamps:
                return None
            self._stamps = stamps
            try:
                self._loaded = self._load()
            except ConfigError as error:  # half written, perhaps: the next change is looked at again
                _log.error("the renewed certificate is not used, the one before stays: %s", error)
                return None
            _log.info("the certificate was renewed on disk and is used from now on")
            return self._loaded.for_grpc()

    def _look(self) -> dict[str, tuple[int, ...]]:
        """What tells whether a file has changed."""
        found: dict[str, tuple[int, ...]] = {}
        for name, given in self._given.items():
            if given and _PEM not in given:
                try:
                    status = Path(given).stat()
                except OSError as error:
                    found[name] = (error.errno or 0,)
                else:
                    found[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return found

    def _load(self) -> _Loaded:
        pems = {name: _pem(name, given) for name, given in self._given.items() if given}
        loaded = _Loaded(pems["tls_cert"], pems["tls_key"], pems.get("tls_client_ca"))
        _check_pair(loaded)
        warn_of_the_end(loaded.cert)
        if loaded.client_ca is not None:
            try:
                ssl.create_default_context(cadata=loaded.client_ca.decode("ascii", "replace"))
            except ssl.SSLError as error:
                raise ConfigError(f"tls_client_ca holds no certificates of authorities: {error}") from error
        return loaded


def _pem(name: str, given: str) -> bytes:
    if _PEM in given:  # secrets that go through a shell or JSON twice have their line ends spelt out
        return given.replace("\\n", "\n").encode()
    try:
        with Path(given).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        reason = getattr(error, "strerror", None) or "it is no path"
        shown = (
            "what it holds" if name == "tls_key" else repr(given[:200])
        )  # it may be the key itself, mangled
        raise ConfigError(
            f"{name} is the path of a PEM file, or its text; {shown} cannot be read: {reason}"
        ) from error
    if _PEM.encode() not in content or len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{name}={given} is no PEM file: it lacks the line {_PEM}...")
    return content


def _check_pair(loaded: _Loaded) -> None:
    """See that OpenSSL takes the certificate with its key, since gRPC says nothing of what is wrong.

    It reads files alone: one in memory where there is such a thing, since a key shall not reach a disk.
    """
    with (
        tempfile.TemporaryFile()
        if not hasattr(os, "memfd_create")
        else os.fdopen(os.memfd_create("super-tls", os.MFD_CLOEXEC), "wb") as file
    ):
        file.write(loaded.key + b"\n" + loaded.cert)
        file.flush()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                f"/dev/fd/{file.fileno()}", password=_no_password
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls_cert and tls_key cannot be used: {error}; they are the PEM of a certificate (its chain "
                "after it) and of that certificate's own key, without a pass phrase"
            ) from None


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted by a pass phrase")


_log = logging.getLogger(__name__)

_WARN_DAYS = 30
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME = 0xA0, 0x17
_LONG_LENGTH = 0x80
_FORMS = {True: "%y%m%d%H%M%SZ", False: "%Y%m%d%H%M%SZ"}


def warn_of_the_end(pem: bytes) -> None:
    """Log it if the first certificate of a chain has ended, or will within 30 days."""
    try:
        end = end_of_certificate(pem)
    except (ValueError, IndexError) as error:  # OpenSSL took it, so it is of a form that we do not know
        _log.warning("it cannot be told when the certificate in tls_cert ends: %s", error)
        return
    left = end - dt.datetime.now(dt.UTC)
    if left < dt.timedelta():
        _log.error("the certificate in tls_cert ended at %s: clients refuse it; renew it", end.isoformat())
    elif left < dt.timedelta(days=_WARN_DAYS):
        _log.warning("the certificate in tls_cert ends at %s, in %d days", end.isoformat(), left.days)


def end_of_certificate(pem: bytes) -> dt.datetime:
    """The last moment of the first certificate in a PEM text.

    Raises:
        ValueError: there is none, or it is of another form.
    """
    text = pem.decode("ascii", "replace")
    begin = text.index(_BEGIN)
    der = ssl.PEM_cert_to_DER_cert(text[begin : text.index(_END, begin) + len(_END)])
    ((_, certificate),) = _elements(der)
    (_, signed), *_ = _elements(certificate)
    fields = [content for kind, content in _elements(signed) if kind != _VERSION]
    _, _, _, validity, *_ = fields  # serial number, signature algorithm, issuer, validity
    _, (kind, end) = _elements(validity)
    return dt.datetime.strptime(end.decode("ascii"), _FORMS[kind == _UTC_TIME]).replace(tzinfo=dt.UTC)


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Kind and content of each element of DER that stand after each other."""
    found = []
    at = 0
    while at < len(der):
        kind, length, at = der[at], der[at + 1], at + 2
        if length >= _LONG_LENGTH:
            count = length - _LONG_LENGTH
            length, at = int.from_bytes(der[at : at + count], "big"), at + count
        found.append((kind, der[at : at + length]))
        at += length
    return found
