"""The coordinator's settings: arguments over ``SUPER_*`` variables over a TOML file over defaults; frozen,
checked when made. And whom they let in from where.

Beyond this machine a coordinator listens with TLS and a token, and reaches its cache by TLS; ``insecure``
says otherwise, and :func:`warn_if_insecure` says so at each start. On loopback and unix sockets nothing of it
is needed. Credentials are no settings: see :class:`superdl.super_wire.cache.Credentials`.
"""

from __future__ import annotations

import logging
import math
import os
import re
import tomllib
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.coordinator.catalog.allowed import Allowed, parse_roots
from superdl.coordinator.executors import ExecutorContext, executor_classes
from superdl.coordinator.executors.aws_lambda import LambdaSettings
from superdl.coordinator.executors.base import check_settings
from superdl.coordinator.executors.local import LocalSettings
from superdl.coordinator.executors.ray_executor import RaySettings
from superdl.coordinator.server.addresses import (
    check_cache_address,
    check_listen_address,
    leaves_this_machine,
    socket_path,
)
from superdl.super_wire.cache import CacheAddress
from superdl.super_wire.coordinator_credentials import tokens_given
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import executor_names
from superdl.super_wire.request import MAX_SAMPLES_PER_REQUEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.coordinator.cache.outcomes import OutcomeReader

__all__ = [
    "Settings",
    "allowed_to_listings",
    "check_trust",
    "executor_context",
    "load_settings",
    "parse_bytes",
    "warn_if_insecure",
]

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_CHOICES = {
    "log_level": ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
}
_RANGES = {
    "catalog_max_samples": (1, 2**40),
    "cache_bytes": (0, 2**60),
    "lookahead_batches": (1, 2**20),
    "request_samples": (1, MAX_SAMPLES_PER_REQUEST),
    "function_memory_mb": (128, 10_240),
}
_SECRETS = ("token", "tls_key")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def parse_bytes(text: str) -> int:
    """A size such as ``4gb``, ``512MB`` or ``1048576``, in bytes; a kilobyte has 1024, as in Redis's
    settings.

    Raises:
        ConfigError: it is no size.
    """
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)b?\s*", text.lower())
    if match is None:
        msg = f"a size is a number with b, kb, mb, gb or tb, such as 4gb; not {text[:80]!r}"
        raise ConfigError(msg)
    return int(Fraction(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True)
class Settings(LocalSettings, RaySettings, LambdaSettings):
    """How a coordinator runs; what an executor wants beside that is in its own settings.

    ``executor`` names executors, several with commas between: the first has what it can take, the next what
    is left over. ``prices`` is the file of a price table; ``max_usd`` and ``max_usd_per_hour`` of 0
    mean no cap.

    ``listen`` is ``host:port`` or ``unix:/path``; ``cache`` is ``redis://host:port[/db]``,
    ``rediss://host:port[/db]`` or ``unix:///path``, any node's of a cluster; ``cache_bytes`` of 0 means what
    maxmemory leaves after headroom; ``owner`` lets a restarted coordinator take over its predecessor's lock
    at once; ``function`` is what local workers import and run, ``module:attribute``.

    ``tls_cert``, ``tls_key`` and ``tls_client_ca`` are each the path of a PEM file or the PEM text itself;
    clients must show a certificate of ``tls_client_ca``'s where it is set. ``token`` is what clients must
    know, several separated by commas; ``token_file`` has one in each line. ``insecure`` allows what is not on
    this machine without TLS and a token. ``health_listen`` is another address, on this machine, where health
    alone is told. ``file_roots`` are the directories, separated as in PATH, that ``file://`` sources and key
    lists must lie in, and links lead to; none means any, or, where others can reach the coordinator, none.
    ``catalog_max_samples`` bounds a source.
    """

    listen: str = "127.0.0.1:50051"
    cache: str = "redis://127.0.0.1:6379"
    executor: str = "local"
    function: str = "superdl.lambda_prefetch.handler:handler"
    cache_bytes: int = 0
    lookahead_batches: int = 64
    request_samples: int = 64
    request_timeout_s: float = 60.0
    catalog_max_age_s: float = 300.0
    catalog_max_samples: int = 50_000_000
    lease_s: float = 15.0
    function_memory_mb: int = 1769
    prices: str = ""
    max_usd: float = 0.0
    max_usd_per_hour: float = 0.0
    owner: str = ""
    insecure: bool = False
    tls_cert: str = ""
    tls_key: str = field(default="", repr=False)
    tls_client_ca: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    health_listen: str = ""
    file_roots: str = ""
    exit_with_stdin: bool = False
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        executor_names(self.executor)
        check_trust(self)
        check_settings(self)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                msg = f"{name} is one of {', '.join(choices)}; not {getattr(self, name)!r}"
                raise ConfigError(msg)
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                msg = f"{name} is from {low} to {high}; not {getattr(self, name)}"
                raise ConfigError(msg)
        for name in ("request_timeout_s", "catalog_max_age_s", "lease_s"):
            if not 0 < getattr(self, name) < math.inf:
                msg = f"{name} is above 0 and finite; not {getattr(self, name)}"
                raise ConfigError(msg)
        for name in ("max_usd", "max_usd_per_hour"):
            if not 0 <= getattr(self, name) < math.inf:
                msg = f"{name} is from 0 (no cap) up, and finite; not {getattr(self, name)}"
                raise ConfigError(msg)

    @property
    def executors(self) -> tuple[str, ...]:
        """How functions run: the executors in order of preference, the cheapest first; at least one."""
        return executor_names(self.executor)


def load_settings(
    arguments: Mapping[str, Any], environment: Mapping[str, str], file: str | None = None
) -> Settings:
    """Settings from their sources.

    Args:
        arguments: by field name; ``None`` stands for not given.
        environment: where ``SUPER_LISTEN``, ``SUPER_CACHE_BYTES`` and so on are looked up; an empty variable
            is not given.
        file: path of a TOML file with the same names.

    Raises:
        ConfigError: a value is ill-typed or out of range, or the file cannot be read; the message names it.
    """
    kinds = {entry.name: str(entry.type) for entry in fields(Settings)}
    found: dict[str, tuple[str, Any]] = {}
    if file is not None:
        found |= {name: (f"{file}: {name}", value) for name, value in _read_file(file, kinds).items()}
    for name in kinds:
        variable = f"SUPER_{name.upper()}"
        if environment.get(variable):
            found[name] = (variable, environment[variable])
        if arguments.get(name) is not None:
            found[name] = (name, arguments[name])
    return Settings(**{name: _typed(name, kinds[name], *found[name]) for name in found})


def _read_file(file: str, known: Mapping[str, str]) -> dict[str, Any]:
    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        msg = f"the settings file {file} cannot be read: {error}"
        raise ConfigError(msg) from error
    unknown = sorted(set(table) - set(known))
    if unknown:
        msg = f"{file} has unknown settings: {', '.join(unknown)}; there are {', '.join(known)}"
        raise ConfigError(msg)
    return table


def _typed(name: str, kind: str, origin: str, value: Any) -> Any:
    """A value as its field's type; text is converted, other types are not taken for one another."""
    if name == "cache_bytes" and isinstance(value, str):
        try:
            return parse_bytes(value)
        except ConfigError as error:
            msg = f"{origin}: {error}"
            raise ConfigError(msg) from error
    if name == "executor" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ",".join(value)
    if name == "log_level" and isinstance(value, str):
        return value.upper()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        if kind == "bool" and isinstance(value, (bool, str)):
            return _TRUTHS[str(value).lower()]
        if kind == "int" and (isinstance(value, str) or (is_number and isinstance(value, int))):
            return int(value)
        if kind == "float" and (isinstance(value, str) or is_number):
            return float(value)
        if kind == "str" and isinstance(value, str):
            return value
    except (KeyError, ValueError, OverflowError) as error:
        raise _ill_typed(origin, kind, value) from error
    raise _ill_typed(origin, kind, value)


def _ill_typed(origin: str, kind: str, value: Any) -> ConfigError:
    shown = type(value).__name__ if origin.endswith(_SECRETS) else repr(str(value)[:80])
    return ConfigError(f"the setting {origin} is of type {kind}; not {shown}")


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


def executor_context(settings: Settings, outcomes: OutcomeReader | None = None) -> ExecutorContext:
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
