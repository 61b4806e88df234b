"""Diagnosis of lack of trust, which grpc reports as plain UNAVAILABLE."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError, CoordinatorTrustError
from superdl.super_wire.protocol import host_and_port

if TYPE_CHECKING:
    from superdl.super_wire.credentials import CoordinatorCredentials
    from superdl.super_wire.errors import SuperError

_WRONG_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_EXPIRED = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_NO_TLS = {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"}


def why_distrusted(address: str, credentials: CoordinatorCredentials, timeout_s: float) -> SuperError | None:
    """Return the reason if both sides respond in time, but without trust; else ``None``."""
    host, _ = host_and_port(address)
    try:
        if not host:
            reason = ""
        elif credentials.encrypts(host):
            reason = _tls_to_any(address, credentials, timeout_s)
        else:
            reason = _plain_to_tls(address, timeout_s)
    except OSError:  # nothing there, or nothing that answers
        return None
    except ConfigError as error:  # a file can no longer be read
        return error
    return CoordinatorTrustError(reason) if reason else None


def _handshake(address: str, context: ssl.SSLContext, name: str, timeout_s: float) -> bool:
    """Shake hands; return whether a server's first HTTP/2 frame came."""
    with (
        socket.create_connection(host_and_port(address), timeout_s) as connected,
        context.wrap_socket(connected, server_hostname=name) as encrypted,
    ):
        # With TLS 1.3, a refusal of the client's certificate comes instead of that frame.
        return bool(encrypted.recv(1))


def _plain_to_tls(address: str, timeout_s: float) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it trusts and sends nothing
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        _handshake(address, context, host_and_port(address)[0], timeout_s)
    except ssl.SSLError:  # as expected: no TLS there
        return ""
    return (
        f"the coordinator at {address} speaks TLS, and this client does not: set SUPER_COORDINATOR_CA_FILE "
        "to the PEM file of the authority that its certificate comes from"
    )


def _tls_to_any(address: str, credentials: CoordinatorCredentials, timeout_s: float) -> str:
    name = credentials.name or host_and_port(address)[0]
    detail = ""
    try:
        if _handshake(address, credentials.tls_context(), name, timeout_s):
            return ""
    except ssl.SSLCertVerificationError as error:
        return _bad_certificate(address, credentials, error)
    except ssl.SSLError as error:
        if error.reason in _NO_TLS:
            return (
                f"what answers at {address} speaks no TLS: start the coordinator with tls_cert and tls_key, "
                "or, on this machine, leave SUPER_COORDINATOR_CA_FILE out; in a network that nobody else can "
                "reach, SUPER_INSECURE=1 (on both sides) does without"
            )
        detail = f": {error.reason or error}"
    if credentials.cert_file:
        remedy = f"{credentials.cert_file} (SUPER_COORDINATOR_CERT_FILE) is perhaps none of those"
    else:
        remedy = "set SUPER_COORDINATOR_CERT_FILE and SUPER_COORDINATOR_KEY_FILE"
    return (
        f"the coordinator at {address} breaks the TLS handshake off{detail}. If it asks for certificates of "
        f"its tls_client_ca: {remedy}"
    )


def _bad_certificate(
    address: str, credentials: CoordinatorCredentials, error: ssl.SSLCertVerificationError
) -> str:
    if error.verify_code in _WRONG_NAME:
        remedy = (
            "name it by coordinator= or SUPER_COORDINATOR as its certificate does, or, behind a tunnel or a "
            "load balancer, set SUPER_COORDINATOR_NAME to a name in the certificate"
        )
    elif error.verify_code in _EXPIRED:
        remedy = "renew tls_cert and tls_key of the coordinator (files that change are read again)"
    else:
        remedy = "set SUPER_COORDINATOR_CA_FILE to the PEM file of the authority that it comes from" + (
            f", which {credentials.ca_file} is not" if credentials.ca_file else ""
        )
    problem = f"the certificate of the coordinator at {address} is not to be trusted: {error.verify_message}"
    return f"{problem}: {remedy}"
