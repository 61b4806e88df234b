"""A worker's HTTP ports, one for Prometheus metrics and one for health probes."""

from __future__ import annotations

import hmac
import logging
import os
import ssl
from functools import partial
from typing import TYPE_CHECKING

from superdl.super_wire.credentials import is_loopback
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.http_port import OPEN_METRICS, Page, listen_for_gets
from superdl.super_wire.protocol import host_and_port, installed_version

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping
    from contextlib import ExitStack

    from superdl.lambda_prefetch.worker.slots import Slots, WorkerSettings
    from superdl.super_wire.credentials import CoordinatorCredentials

_log = logging.getLogger(__name__)

_METRICS, _HEALTH = "--metrics-listen", "--health-listen"
_CERTIFICATE = ("SUPER_TLS_CERT", "SUPER_TLS_KEY")


def check_listening(settings: WorkerSettings) -> None:
    """Raise :class:`ConfigError` for an invalid address, or for unprotected metrics beyond loopback."""
    for option, address in ((_METRICS, settings.metrics_listen), (_HEALTH, settings.health_listen)):
        if address and not host_and_port(address)[1]:
            raise ConfigError(f"{option} must be host:port, not {address!r}")
    if settings.metrics_listen and settings.metrics_listen == settings.health_listen:
        raise ConfigError(
            f"{_METRICS} and {_HEALTH} are both {settings.metrics_listen}. Use different addresses"
        )
    host, _ = host_and_port(settings.metrics_listen)
    is_protected = _has_certificate() and settings.credentials.current_token()
    if host and not (is_loopback(host) or is_protected or settings.credentials.insecure):
        raise ConfigError(
            f"{_METRICS}={settings.metrics_listen} is not on loopback, so it needs TLS and a token. Set "
            f"{' and '.join(_CERTIFICATE)}, and SUPER_TOKEN or SUPER_TOKEN_FILE. Otherwise listen on "
            "127.0.0.1 or, in an isolated network, set SUPER_INSECURE=1"
        )


async def listen(settings: WorkerSettings, slots: Slots, connected: asyncio.Event, stack: ExitStack) -> None:
    """Listen on the configured addresses until the stack is closed."""
    if address := settings.metrics_listen:
        has_token, has_certificate = bool(settings.credentials.current_token()), _has_certificate()
        page = Page(lambda: metrics_text(slots, is_connected=connected.is_set()).encode, OPEN_METRICS)
        server = await listen_for_gets(
            address,
            _METRICS,
            {"/metrics": page},
            tls=_tls() if has_certificate else None,
            accepts=partial(_accept, settings.credentials) if has_token else None,
        )
        stack.callback(server.close)
        _log.info("metrics at %s://%s/metrics", "https" if has_certificate else "http", address)
    if address := settings.health_listen:
        # Without TLS and token, since these show nothing else.
        pages = {
            "/healthz": Page(lambda: _healthy if connected.is_set() else None),
            "/livez": Page(lambda: _healthy),
        }
        stack.callback((await listen_for_gets(address, _HEALTH, pages)).close)


def _healthy() -> bytes:
    return b"SERVING\n"


def _accept(credentials: CoordinatorCredentials, token: str) -> bool:
    try:
        # In constant time, because timing could reveal the token.
        return hmac.compare_digest(token.encode(), credentials.current_token().encode())
    except ConfigError as error:  # the token's file may be incomplete
        _log.warning("refused a request for metrics: %s", error)
        return False


def metrics_text(slots: Slots, *, is_connected: bool) -> str:
    """Format the metrics as OpenMetrics text."""
    ended = {f'{{outcome="{outcome}"}}': count for outcome, count in sorted(slots.ended.items())}
    build = {f'{{version="{installed_version()}"}}': 1}
    rows: list[tuple[str, str, str, Mapping[str, float]]] = [
        ("slots", "gauge", "Maximum number of concurrent requests.", {"": slots.count}),
        ("busy_slots", "gauge", "Number of running requests.", {"": slots.busy}),
        ("connected", "gauge", "1 if connected to the coordinator, else 0.", {"": int(is_connected)}),
        ("requests", "counter", "Completed requests by outcome: answered, or a kind of failure.", ended),
        ("slot_restarts", "counter", "Restarts of slots.", {"": slots.restarts}),
        ("cpu_seconds", "counter", "CPU time of the worker and its slots in seconds.", {"": slots.cpu_s}),
        ("build_info", "gauge", "Always 1. The label version is SUPER's version.", build),
    ]
    lines = []
    for name, kind, text, values in rows:
        full, suffix = f"super_worker_{name}", "_total" if kind == "counter" else ""
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        lines += [f"{full}{suffix}{labels} {value}" for labels, value in values.items()]
    return "\n".join([*lines, "# EOF", ""])


def _has_certificate() -> bool:
    return all(map(os.environ.get, _CERTIFICATE))


def _tls() -> ssl.SSLContext:
    """Return a context in which each handshake uses the certificate currently on disk."""
    cert, key = (os.environ[name] for name in _CERTIFICATE)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"cannot load the PEM files in {' and '.join(_CERTIFICATE)}: {error}") from error

    def renew(*_: object) -> None:
        try:
            context.load_cert_chain(cert, key)  # for the next handshake
        except OSError as error:
            _log.warning("cannot reload the certificate %s: %s", cert, error)

    context.sni_callback = renew
    return context
