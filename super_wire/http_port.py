"""An HTTP port for a few pages, such as Prometheus metrics and health probes."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import host_and_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

_HEAD_BYTES_MAX = 8192
_CONNECTIONS_MAX = 16
_TIMEOUT_S = 10.0
_TEXT = "text/plain; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Page(NamedTuple):
    """The response to a request for a path."""

    # Called in the event loop. Returns a function that renders the page in a thread, or None for 503.
    look: Callable[[], Callable[[], bytes] | None]
    kind: str = _TEXT  # the content type


# The Prometheus client's own server has no tokens, and needs a thread per connection.
async def listen_for_gets(
    address: str,
    setting: str,
    pages: Mapping[str, Page],
    *,
    tls: ssl.SSLContext | None = None,
    accepts: Callable[[str], bool] | None = None,
) -> asyncio.Server:
    """Serve GET requests for ``pages``, which are keyed by path, at ``host:port``.

    ``accepts`` checks bearer tokens. If it is ``None``, no token is required. Raises ``ConfigError``, which
    names ``setting``, if the address is invalid or in use.
    """
    host, port = host_and_port(address)
    tls_options: dict[str, Any] = {"ssl": tls, "ssl_handshake_timeout": _TIMEOUT_S} if tls else {}
    handle = partial(_serve, pages, accepts, asyncio.Semaphore(_CONNECTIONS_MAX))
    try:
        return await asyncio.start_server(handle, host, port, limit=_HEAD_BYTES_MAX, **tls_options)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {setting}={address}: {error}. Is another process listening there? Each run on "
            "a host needs its own port"
        ) from error


async def _serve(
    pages: Mapping[str, Page],
    accepts: Callable[[str], bool] | None,
    free_connections: asyncio.Semaphore,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    try:
        if not free_connections.locked():
            async with free_connections, asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = refusal(head, pages, accepts), _TEXT, b""
                if not status:
                    page = pages[_path(head)]
                    render = page.look()
                    if render is None:
                        status = "503 Service Unavailable"
                    else:
                        kind, body = page.kind, await asyncio.to_thread(render)
                body = f"{status}\n".encode() if status else body
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


def refusal(head: bytes, pages: Mapping[str, Page], accepts: Callable[[str], bool] | None) -> str:
    """Return the error status for a request, or an empty string if the request is valid."""
    request, *lines = head.decode("latin-1").split("\r\n")
    words = request.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004  # method, target, version
        return "400 Bad Request"
    if accepts is not None:
        fields = [line.partition(":") for line in lines]
        tokens = [value.strip() for name, _, value in fields if name.strip().lower() == "authorization"]
        if len(tokens) != 1 or not tokens[0].startswith("Bearer ") or not accepts(tokens[0][7:]):
            return "401 Unauthorized"
    if _path(head) not in pages:
        return "404 Not Found"
    return "" if words[0] == "GET" else "405 Method Not Allowed"


def _path(head: bytes) -> str:
    return head.split(b" ", 2)[1].partition(b"?")[0].decode("latin-1")
