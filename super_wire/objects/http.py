"""Connections by urllib3, direct or through the environment's proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import urllib3

from superdl.super_wire.credentials import is_loopback

if TYPE_CHECKING:
    import ssl

_CONNECTIONS = 32


def proxy_of(url: str) -> str:
    """Return the URL of the proxy for a server; empty for a direct connection."""
    parts = urlsplit(url)
    if is_loopback(parts.hostname or "") or proxy_bypass_environment(parts.netloc):
        return ""
    return str(getproxies_environment().get(parts.scheme, ""))


def pool_manager(proxy: str, tls: ssl.SSLContext | None, timeout: urllib3.Timeout) -> urllib3.PoolManager:
    """Return a new connection pool, which threads may share."""
    options: dict[str, Any] = {"ssl_context": tls, "timeout": timeout}
    options |= {"num_pools": _CONNECTIONS, "maxsize": _CONNECTIONS}
    if not proxy:
        return urllib3.PoolManager(**options)
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=login)
    return urllib3.ProxyManager(parts.geturl(), **options)
