"""Coordinator addresses: their forms, and that they do not leave this machine as long as there is no TLS."""

from __future__ import annotations

import re

from super_wire.errors import ConfigError
from super_wire.loopback import is_loopback

__all__ = ["checked_address"]

_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65535


def checked_address(address: object, origin: str) -> str:
    """The address as gRPC takes it: ``unix:/path`` or ``host:port``.

    Args:
        address: what the user wrote; ``unix:///path`` is taken too.
        origin: where it was written, for error messages, such as ``coordinator=``.

    Raises:
        ConfigError: it has another form, or it is not on loopback (TLS does not exist yet).
    """
    if not isinstance(address, str):
        raise ConfigError(f"{origin} is a text such as 'host:50051'; not {address!r}")
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path.startswith("/") or path.startswith("//") or path == "/":
            raise ConfigError(
                f"{origin} names a socket by its absolute path, as in unix:/path/to.sock; not {address!r}"
            )
        return f"unix:{path}"
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not 0 < int(match["port"]) <= _MAX_PORT:
        raise ConfigError(f"{origin} is 'host:port' or 'unix:/path/to.sock'; not {address!r}")
    if not is_loopback(match["v6"] or match["host"]):
        raise ConfigError(
            f"{origin} names {address}, which is not on this machine: beyond loopback a connection needs TLS "
            "and a token, which this version lacks. Forward the port over ssh and name 127.0.0.1"
        )
    return address
