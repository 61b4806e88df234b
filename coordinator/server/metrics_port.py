"""The port for metrics: HTTP for GET /metrics alone, with the coordinator's certificate and tokens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import host_and_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.server.tls import ServerTls
    from superdl.coordinator.server.tokens import Tokens

__all__ = ["listen_for_metrics", "refusal"]

_log = logging.getLogger(__name__)

_HEAD_BYTES_MAX = 8192
_CONNECTIONS_MAX = 16
_TIMEOUT_S = 10.0
_OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


async def listen_for_metrics(
    address: str,
    look: Callable[[], Callable[[], bytes]],
    *,
    tls: ServerTls | None = None,
    tokens: Tokens | None = None,
) -> asyncio.Server:
    """Answer scrapes at ``host:port`` from now on.

    Args:
        address: where.
        look: takes down the figures, and gives what makes their text.
        tls: what the port is encrypted with, if it is.
        tokens: of which a scrape must show one (``Authorization: Bearer``), if any.

    Raises:
        ConfigError: the address is taken or cannot be listened on.
    """
    host, port = host_and_port(address)
    of_tls: dict[str, Any] = {"ssl": tls.context(), "ssl_handshake_timeout": _TIMEOUT_S} if tls else {}
    handle = partial(_answer, look, tokens, asyncio.Semaphore(_CONNECTIONS_MAX))
    try:
        server = await asyncio.start_server(handle, host, port, limit=_HEAD_BYTES_MAX, **of_tls)
    except OSError as error:
        raise ConfigError(
            f"metrics_listen={address} cannot be listened on: {error}; is something else listening there? "
            "Each run on a host needs a port of its own"
        ) from error
    _log.info("metrics at %s://%s/metrics", "https" if tls else "http", address)
    return server


async def _answer(
    look: Callable[[], Callable[[], bytes]],
    tokens: Tokens | None,
    places: asyncio.Semaphore,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """One scrape a connection; who sends no whole request in time, or comes in a crowd, gets none."""
    try:
        if not places.locked():
            async with places, asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status = refusal(head, tokens)
                body = f"{status}\n".encode() if status else await asyncio.to_thread(look())
                kind = "text/plain; charset=utf-8" if status else _OPEN_METRICS
                lines = (
                    f"HTTP/1.1 {status or '200 OK'}",
                    f"Content-Type: {kind}",
                    f"Content-Length: {len(body)}",
                    "Connection: close",
                )
                writer.write("\r\n".join((*lines, "", "")).encode() + body)
                await writer.drain()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        writer.transport.abort()
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await writer.wait_closed()


def refusal(head: bytes, tokens: Tokens | None) -> str:
    """The status line's end for a request that gets no metrics; empty for one that does."""
    request, *lines = head.decode("latin-1").split("\r\n")
    words = request.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004  # method, target, version
        return "400 Bad Request"
    if tokens is not None:
        fields = [line.partition(":") for line in lines]
        shown = [value.strip() for name, _, value in fields if name.strip().lower() == "authorization"]
        if len(shown) != 1 or not shown[0].startswith("Bearer ") or not tokens.accept(shown[0][7:]):
            return "401 Unauthorized"
    if words[1].partition("?")[0] != "/metrics":
        return "404 Not Found"
    return "" if words[0] == "GET" else "405 Method Not Allowed"
