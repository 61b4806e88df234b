"""Why a coordinator is not reached, if it is for want of trust: grpc calls that UNAVAILABLE like everything
else.

A handshake of our own is tried, with Python's TLS, and what it says is told in words that name the remedy. It
needs no grpc, keeps nothing open and takes no longer than it may.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING

from superdl.sampler.rpc.connection import host_of, port_of
from superdl.super_wire.errors import ConfigError, CoordinatorTrustError

if TYPE_CHECKING:
    from superdl.super_wire.coordinator_credentials import CoordinatorCredentials
    from superdl.super_wire.errors import SuperError

__all__ = ["why_distrusted"]

_WRONG_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_EXPIRED = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED


def why_distrusted(address: str, credentials: CoordinatorCredentials, timeout_s: float) -> SuperError | None:
    """The reason, if both sides speak and one does not trust the other; ``None`` if nobody is there or says
    anything in ``timeout_s``, if all is well, or if what is wrong is something else.
    """
    host = host_of(address)
    end_s = time.monotonic() + timeout_s
    try:
        if not host:
            reason = ""
        elif credentials.encrypts(host):
            reason = _tls_to_any(address, credentials, end_s)
        else:
            reason = _plain_to_tls(address, end_s)
    except OSError:  # nobody there, or nobody who speaks
        return None
    except ConfigError as error:  # a file cannot be read any more
        return error
    return CoordinatorTrustError(reason) if reason else None


def _tls_to_any(address: str, credentials: CoordinatorCredentials, end_s: float) -> str:
    try:
        spoke = _handshake(address, credentials.tls_context(), credentials.name or host_of(address), end_s)
    except ssl.SSLCertVerificationError as error:
        return _bad_certificate(address, credentials, error, end_s)
    except ssl.SSLError as error:
        return _broken_off(address, credentials, error)
    return "" if spoke else _broken_off(address, credentials, None)


def _handshake(address: str, context: ssl.SSLContext, name: str, end_s: float) -> bool:
    """Shake hands and wait for the first word of HTTP/2, which a server says unasked; whether it came.

    With TLS 1.3 a server sees the client's certificate only after the client is done, so that its refusal
    comes in place of that word.
    """
    with (
        _connect(address, end_s) as connected,
        context.wrap_socket(connected, server_hostname=name) as encrypted,
    ):
        encrypted.settimeout(_left_s(end_s))
        return bool(encrypted.recv(1))


def _connect(address: str, end_s: float) -> socket.socket:
    """The first of the host's addresses where somebody answers, all of them in the time that is left."""
    nobody: OSError = TimeoutError("no time was left")
    for family, kind, protocol, _, place in socket.getaddrinfo(
        host_of(address), port_of(address), type=socket.SOCK_STREAM
    ):
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.settimeout(_left_s(end_s))
            connecting.connect(place)
            connecting.settimeout(_left_s(end_s))
        except OSError as error:
            connecting.close()
            nobody = error
        else:
            return connecting
    raise nobody


def _left_s(end_s: float) -> float:
    """Seconds until then; ``TimeoutError`` if there are none."""
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _plain_to_tls(address: str, end_s: float) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # sends nothing, and believes nothing that it hears
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        _handshake(address, context, host_of(address), end_s)
    except ssl.SSLError:  # as it should be: no TLS there
        return ""
    return (
        f"the coordinator at {address} speaks TLS, and this client does not: set SUPER_COORDINATOR_CA_FILE "
        "to the PEM file of the authority that its certificate comes from"
    )


def _bad_certificate(
    address: str, credentials: CoordinatorCredentials, error: ssl.SSLCertVerificationError, end_s: float
) -> str:
    said = f"the certificate of the coordinator at {address} is not to be trusted: {error.verify_message}"
    if error.verify_code in _WRONG_NAME:
        wanted = credentials.name or host_of(address)
        names = _names(address, credentials, end_s)
        return (
            f"the certificate of the coordinator at {address} is for {names}, not for {wanted}: "
            "name it by coordinator= or SUPER_COORDINATOR as its certificate does, or, "
            "behind a tunnel or a load balancer, set SUPER_COORDINATOR_NAME to a name in the certificate"
        )
    if error.verify_code in _EXPIRED:
        return f"{said}: renew tls_cert and tls_key of the coordinator (files that change are read again)"
    return (
        f"{said}: set SUPER_COORDINATOR_CA_FILE to the PEM file of the authority that it comes from"
        f"{f', which {credentials.ca_file} is not' if credentials.ca_file else ''}"
    )


def _names(address: str, credentials: CoordinatorCredentials, end_s: float) -> str:
    """What a certificate of a trusted authority is for."""
    context = credentials.tls_context()
    context.check_hostname = False
    try:
        with (
            _connect(address, end_s) as connected,
            context.wrap_socket(connected) as encrypted,
        ):
            found = encrypted.getpeercert() or {}
    except OSError:
        return "another name"
    names = [str(value) for _, value in found.get("subjectAltName", ())]  # type: ignore[str-unpack]
    return ", ".join(names) or "no name at all"


def _broken_off(address: str, credentials: CoordinatorCredentials, error: ssl.SSLError | None) -> str:
    if error is not None and error.reason in {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"}:
        return (
            f"what answers at {address} speaks no TLS: start the coordinator with tls_cert and tls_key, or, "
            "on this machine, leave SUPER_COORDINATOR_CA_FILE out; in a network that nobody else can reach, "
            "SUPER_INSECURE=1 (on both sides) does without"
        )
    said = f": {error.reason or error}" if error is not None else ""
    if credentials.cert_file:
        return (
            f"the coordinator at {address} breaks the TLS handshake off{said}. It asks for certificates of "
            f"its tls_client_ca, perhaps, and {credentials.cert_file} (SUPER_COORDINATOR_CERT_FILE) is none "
            "of those"
        )
    return (
        f"the coordinator at {address} breaks the TLS handshake off{said}. It asks for a client's "
        "certificate, perhaps (tls_client_ca): set SUPER_COORDINATOR_CERT_FILE and SUPER_COORDINATOR_KEY_FILE"
    )
