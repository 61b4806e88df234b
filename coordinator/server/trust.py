"""Whom a coordinator lets in from where: what a setting needs beside it, told before anything is opened.

Beyond this machine it listens with TLS and a token, and reaches its cache by TLS; ``insecure`` says
otherwise, and :func:`warn_if_insecure` says so at each start. On loopback and unix sockets nothing of it is
needed.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from superdl.coordinator.catalog.allowed import Allowed, parse_roots
from superdl.coordinator.executors import ExecutorContext, executor_classes
from superdl.coordinator.server.addresses import (
    check_cache_address,
    check_listen_address,
    leaves_this_machine,
    socket_path,
)
from superdl.super_wire.cache import CacheAddress
from superdl.super_wire.coordinator_credentials import tokens_given
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.coordinator.executors.base import OutcomeStream
    from superdl.coordinator.server.settings import Settings

__all__ = ["allowed_to_listings", "check_trust", "executor_context", "warn_if_insecure"]

_log = logging.getLogger(__name__)


def check_trust(settings: Settings) -> None:
    """See that addresses, certificates and tokens belong together.

    Raises:
        ConfigError: what is missing or must not be, with the remedy.
    """
    check_listen_address(settings.listen)
    check_cache_address(settings.cache, insecure=settings.insecure)
    tokens_given(settings.token, "token")
    _check_certificates(settings)
    parse_roots(settings.file_roots)
    if settings.health_listen:
        _check_health(settings)
    lacks = _missing(settings)
    if lacks and not settings.insecure:
        msg = (
            f"listen={settings.listen}: beyond loopback a coordinator needs TLS and a token, and this one "
            f"has {lacks}: set tls_cert and tls_key, and token or token_file; or listen on 127.0.0.1 or a "
            "unix socket, and use an SSH tunnel from elsewhere; or, in a network that nobody else can reach, "
            "allow it by --insecure (SUPER_INSECURE=1)"
        )
        raise ConfigError(msg)


def allowed_to_listings(settings: Settings) -> Allowed:
    """What clients may have listed: no file of this machine where they may be on another, unless said so."""
    roots = parse_roots(settings.file_roots)
    anywhere = not roots and not leaves_this_machine(settings.listen)
    own = not any(executor.files_by_others for executor in executor_classes(settings.executors))
    return Allowed(None if anywhere else roots, settings.catalog_max_samples, own)


def executor_context(settings: Settings, outcomes: OutcomeStream | None = None) -> ExecutorContext:
    """What executors get of this coordinator. Functions of this machine may do what the coordinator may."""
    environment = {"SUPER_INSECURE": "1"} if settings.insecure else {}
    roots = allowed_to_listings(settings).link_roots
    environment |= {"SUPER_FILE_ROOTS": os.pathsep.join(roots)} if roots else {}
    return ExecutorContext(
        cache=settings.cache,
        function=settings.function,
        request_timeout_s=settings.request_timeout_s,
        environment=environment,
        outcomes=outcomes,
    )


def warn_if_insecure(settings: Settings) -> None:
    """Say what ``insecure`` allows here and now, loudly; nothing if it allows nothing."""
    lacks = _missing(settings)
    if lacks:
        _log.warning(
            "INSECURE: listening on %s with %s: whoever reaches this port may read what functions can read, "
            "and spend your money",
            settings.listen,
            lacks,
        )
    cache = CacheAddress.parse(settings.cache)
    if not (cache.local or cache.tls):
        _log.warning("INSECURE: the cache's password and all samples go to %s in plain text", settings.cache)


def _missing(settings: Settings) -> str:
    if not leaves_this_machine(settings.listen):
        return ""
    no_tls, no_token = not settings.tls_cert, not (settings.token or settings.token_file)
    return {(True, True): "neither", (True, False): "no TLS", (False, True): "no token"}.get(
        (no_tls, no_token), ""
    )


def _check_certificates(settings: Settings) -> None:
    if bool(settings.tls_cert) != bool(settings.tls_key):
        given, other = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        msg = f"{given} is set and {other} is not: they belong together"
        raise ConfigError(msg)
    if settings.tls_client_ca and not settings.tls_cert:
        msg = "tls_client_ca is set and tls_cert is not: who asks for certificates shows one"
        raise ConfigError(msg)
    if settings.tls_cert and socket_path(settings.listen) is not None:
        msg = (
            f"listen={settings.listen}: nobody listens in on a unix socket, so there is no TLS on it, nor "
            "client certificates: leave tls_cert, tls_key and tls_client_ca out, or listen on host:port"
        )
        raise ConfigError(msg)


def _check_health(settings: Settings) -> None:
    check_listen_address(settings.health_listen, "health_listen")
    if leaves_this_machine(settings.health_listen):
        msg = (
            f"health_listen={settings.health_listen} is beyond loopback; it answers without TLS and token, "
            "so it is on 127.0.0.1 or a unix socket. From elsewhere, ask the health service at listen"
        )
        raise ConfigError(msg)
    if settings.health_listen == settings.listen:
        msg = f"health_listen and listen are both {settings.listen}: health_listen is another address"
        raise ConfigError(msg)
