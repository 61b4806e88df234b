"""Diagnosis of TLS failures, which grpc reports only as UNAVAILABLE."""

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


def diagnose_distrust(
    address: str, credentials: CoordinatorCredentials, timeout_s: float
) -> SuperError | None:
    """Return an error if the server responds in time but one side does not trust the other, else ``None``."""
    host, _ = host_and_port(address)
    reason = ""
    try:
        if host and credentials.encrypts(host):
            reason = _probe_with_tls(address, credentials, timeout_s)
        elif host:
            reason = _probe_without_tls(address, timeout_s)
    except OSError:  # no server, or no response
        return None
    except ConfigError as error:  # a file is no longer readable
        return error
    return CoordinatorTrustError(reason) if reason else None


def _handshake(address: str, context: ssl.SSLContext, name: str, timeout_s: float) -> bool:
    """Perform a TLS handshake and return whether the server's first HTTP/2 frame arrives."""
    with (
        socket.create_connection(host_and_port(address), timeout_s) as connected,
        context.wrap_socket(connected, server_hostname=name) as encrypted,
    ):
        # In TLS 1.3, a rejection of the client's certificate arrives in place of that frame.
        return bool(encrypted.recv(1))


def _probe_without_tls(address: str, timeout_s: float) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        _handshake(address, context, host_and_port(address)[0], timeout_s)
    except ssl.SSLError:  # the server does not speak TLS either
        return ""
    return (
        f"the coordinator at {address} speaks TLS, but this client does not. Set SUPER_COORDINATOR_CA_FILE "
        "to the PEM file of the authority that issued its certificate"
    )


def _probe_with_tls(address: str, credentials: CoordinatorCredentials, timeout_s: float) -> str:
    name = credentials.name or host_and_port(address)[0]
    detail = ""
    try:
        if _handshake(address, credentials.tls_context(), name, timeout_s):
            return ""
    except ssl.SSLCertVerificationError as error:
        return _describe_bad_certificate(address, credentials, error)
    except ssl.SSLError as error:
        if error.reason in _NO_TLS:
            return (
                f"the server at {address} does not use TLS. Start the coordinator with tls_cert and tls_key "
                "or, on this machine, unset SUPER_COORDINATOR_CA_FILE. In an isolated network, "
                "SUPER_INSECURE=1 on both sides allows connections without TLS"
            )
        detail = f": {error.reason or error}"
    remedy = "set SUPER_COORDINATOR_CERT_FILE and SUPER_COORDINATOR_KEY_FILE"
    if credentials.cert_file:
        remedy = f"check that it accepts {credentials.cert_file} (SUPER_COORDINATOR_CERT_FILE)"
    return (
        f"the coordinator at {address} aborts the TLS handshake{detail}. If it requires client certificates "
        f"(tls_client_ca), {remedy}"
    )


def _describe_bad_certificate(
    address: str, credentials: CoordinatorCredentials, error: ssl.SSLCertVerificationError
) -> str:
    if error.verify_code in _WRONG_NAME:
        remedy = (
            "Use the host name in the certificate for coordinator= or SUPER_COORDINATOR or, behind a tunnel "
            "or a load balancer, set SUPER_COORDINATOR_NAME to a name in the certificate"
        )
    elif error.verify_code in _EXPIRED:
        remedy = "Renew the coordinator's tls_cert and tls_key, which it reloads"
    else:
        remedy = "Set SUPER_COORDINATOR_CA_FILE to the PEM file of the authority that issued it" + (
            f", which {credentials.ca_file} is not" if credentials.ca_file else ""
        )
    return f"the coordinator's certificate at {address} is not trusted: {error.verify_message}. {remedy}"
