"""Coordinator addresses: their forms, and which of them may be spoken to without TLS."""

from __future__ import annotations

import ipaddress
import logging
import os
import re

from super_wire.errors import ConfigError

__all__ = ["checked_address"]

_LOG = logging.getLogger(__name__)
_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65535


def checked_address(address: object, origin: str) -> str:
    """The address as gRPC takes it: ``unix:/path`` or ``host:port``.

    Args:
        address: what the user wrote; ``unix:///path`` is taken too.
        origin: where it was written, for error messages, such as ``coordinator=``.

    Raises:
        ConfigError: it has another form, or it is not on loopback (TLS does not exist yet), unless
            ``SUPER_INSECURE=1``.
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
    if not _is_loopback(match["v6"] or match["host"]):
        _refuse_unless_insecure(address, origin)
    return address


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refuse_unless_insecure(address: str, origin: str) -> None:
    if os.environ.get("SUPER_INSECURE") != "1":
        raise ConfigError(
            f"{origin} names {address}, which is not on this machine: the connection would have neither TLS "
            "nor a token, so it is refused. In a network that you trust as a whole, set SUPER_INSECURE=1 on "
            "every rank, or forward the port over ssh and name 127.0.0.1"
        )
    _LOG.warning("SUPER_INSECURE=1: speaking to %s without TLS and without a token", address)
