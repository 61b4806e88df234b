"""Host names as addresses: resolved when they can be, and written with a port.

On SageMaker a container's name may not be known to the others' resolvers for a while after the start.
"""

from __future__ import annotations

import asyncio
import socket
import time

from infra.launcher.verdicts import EXIT_NOT_READY, RunFailedError

__all__ = ["address_of", "with_port"]

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
        except OSError as error:
            if time.monotonic() > deadline_s:
                msg = f"the host name {host} cannot be resolved within {wait_s:g} s: {error}"
                raise RunFailedError(EXIT_NOT_READY, msg) from error
            await asyncio.sleep(_RETRY_S)
        else:
            addresses = sorted(found, key=lambda item: item[0] != socket.AF_INET)
            return str(addresses[0][4][0])


def with_port(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
