"""Host names as addresses: resolved when they can be, found among this host's own, and written with a port.

On SageMaker a container's name may not be known to the others' resolvers for a while after the start.
"""

from __future__ import annotations

import asyncio
import socket
import time

import psutil

from infra.launcher.verdicts import EXIT_NOT_READY, EXIT_WRONG_SETTINGS, RunFailedError
from superdl.super_wire.loopback import is_loopback

__all__ = ["address_of", "interface_of", "with_port"]

_RETRY_S = 0.5


async def address_of(host: str, wait_s: float) -> str:
    """The IP address of a host, IPv4 where it has both.

    Raises:
        RunFailedError: nobody knows the name within ``wait_s``.
    """
    deadline_s = time.monotonic() + wait_s
    loop = asyncio.get_running_loop()
    while True:
        try:
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            msg = f"{host} is no name of a host: {error}"
            raise RunFailedError(EXIT_WRONG_SETTINGS, msg) from error
        except OSError as error:
            if time.monotonic() > deadline_s:
                msg = f"the host name {host} cannot be resolved within {wait_s:g} s: {error}"
                raise RunFailedError(EXIT_NOT_READY, msg) from error
            await asyncio.sleep(_RETRY_S)
        else:
            addresses = sorted(found, key=lambda item: item[0] != socket.AF_INET)
            return str(addresses[0][4][0])


def interface_of(address: str) -> str:
    """The network interface that has an address; empty if none has."""
    if is_loopback(address):
        address = "127.0.0.1"  # the whole of 127.0.0.0/8 is there on Linux, and listed as this
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address.partition("%")[0] == address for found in addresses):
            return name
    return ""


def with_port(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
