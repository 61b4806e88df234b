"""Which connections need TLS, and the TLS of a client: whom it believes and what it shows.

A host beyond this machine needs TLS and a token, on every side of a connection. ``SUPER_INSECURE``, which
each side reads from its own environment, allows a side to do without.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

__all__ = ["client_tls_context", "insecure_in", "is_loopback"]

_TRUTHS = {"": False, "0": False, "false": False, "1": True, "true": True}


def is_loopback(host: str) -> bool:
    """Whether a host is this machine; of names only ``localhost`` is, others may be resolved again."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def insecure_in(environment: Mapping[str, str]) -> bool:
    """Whether ``SUPER_INSECURE`` allows plain text beyond this machine.

    Raises:
        ConfigError: it is neither yes nor no.
    """
    text = environment.get("SUPER_INSECURE", "")
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ConfigError(f"SUPER_INSECURE is 1 or 0; not {text[:80]!r}") from None


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
        raise ConfigError(
            f"the certificates for {purpose} ({named}; {variables} name them) cannot be used: {error}"
        ) from error
    return context
