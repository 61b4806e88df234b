"""Coordinator addresses: their forms. How one is connected to, and whether by TLS, is
:mod:`superdl.sampler.connection`'s.
"""

from __future__ import annotations

import re

from superdl.super_wire.discretion import without_credentials
from superdl.super_wire.errors import ConfigError

__all__ = ["checked_address", "host_of", "port_of"]

_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65535


def checked_address(address: object, origin: str) -> str:
    """The address as gRPC takes it: ``unix:/path`` or ``host:port``.

    Args:
        address: what the user wrote; ``unix:///path`` is taken too.
        origin: where it was written, for error messages, such as ``coordinator=``.

    Raises:
        ConfigError: it has another form.
    """
    if not isinstance(address, str):
        raise ConfigError(f"{origin} is a text such as 'host:50051'; not {address!r}")
    shown = repr(without_credentials(address))
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path.startswith("/") or path.startswith("//") or path == "/":
            raise ConfigError(
                f"{origin} names a socket by its absolute path, as in unix:/path/to.sock; not {shown}"
            )
        return f"unix:{path}"
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not 0 < int(match["port"]) <= _MAX_PORT:
        raise ConfigError(f"{origin} is 'host:port' or 'unix:/path/to.sock'; not {shown}")
    return address


def host_of(address: str) -> str:
    """The host of an address that :func:`checked_address` gave; empty for a unix socket."""
    match = _HOST_AND_PORT.fullmatch(address)
    return (match["v6"] or match["host"]) if match else ""


def port_of(address: str) -> int:
    """Its port; 0 for a unix socket."""
    match = _HOST_AND_PORT.fullmatch(address)
    return int(match["port"]) if match else 0
