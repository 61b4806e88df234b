"""The TLS of a client: whom it believes and what it shows. Cache and coordinator are spoken to alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = ["client_tls_context"]


def client_tls_context(
    ca_file: str, cert_file: str, key_file: str, *, purpose: str, variables: str
) -> ssl.SSLContext:
    """Verifies certificate and host name, TLS 1.2 or later.

    Args:
        ca_file: PEM file of the authorities that are believed; the system's if it is empty.
        cert_file: PEM file of the client's certificate, if it shows one.
        key_file: of its key.
        purpose: whose certificates these are, for the error: ``the cache``.
        variables: what the files are named by, for the error too.

    Raises:
        ConfigError: a file cannot be read or is no PEM file.
    """
    import ssl  # who speaks in plain text needs none of it

    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if cert_file:
            context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(filter(None, (ca_file, cert_file, key_file)))
        msg = f"the certificates for {purpose} ({named}; {variables} name them) cannot be used: {error}"
        raise ConfigError(msg) from error
    return context
