"""Which hosts are this machine: what is not needs TLS and a token, on every side of a connection.

Whether a side does without all the same says ``SUPER_INSECURE``, which each side reads from its own
environment.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["insecure_in", "is_loopback"]

_TRUTHS = {"": False, "0": False, "false": False, "1": True, "true": True}


def is_loopback(host: str) -> bool:
    """Whether a host is this machine; of names only ``localhost`` is, others may be resolved anew."""
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
        msg = f"SUPER_INSECURE is 1 or 0; not {text[:80]!r}"
        raise ConfigError(msg) from None
