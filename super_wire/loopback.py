"""Which hosts are this machine: what is not needs TLS and a token, on every side of a connection."""

from __future__ import annotations

import ipaddress

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether a host is this machine; of names only ``localhost`` is, others may be resolved anew."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
