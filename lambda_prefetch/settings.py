"""The operator's settings for the function, read from the environment. Requests cannot change them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superdl.super_wire.cache import Credentials
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.source_url import parse_http_hosts
from superdl.super_wire.store import parse_store

if TYPE_CHECKING:
    from collections.abc import Mapping

_LAMBDA_MB_PER_CORE = 1769  # memory at which Lambda provides one full core, according to its documentation
_MIB = 2**20
_LOG_LEVELS = ("INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL")
_SWITCH = ("0", "false", "no", "1", "true", "yes")
_NO_STORE = frozenset({"", "none", "auto"})  # the coordinator resolves auto

# Whole numbers: setting -> its variable and bounds.
_NUMBERS = {
    "shard_cache_bytes": ("SUPER_SHARDS_BYTES", 0, 2**60),
    "decoders": ("SUPER_DECODERS", 0, 64),
    "decode_timeout_s": ("SUPER_DECODE_TIMEOUT_S", 1, 3600),
    "max_pixels": ("SUPER_MAX_PIXELS", 0, 2**40),
    "text_bytes": ("SUPER_MAX_TEXT_BYTES", 1, 2**40),
    "fetch_threads": ("SUPER_FETCH_THREADS", 0, 64),
    "fetch_bytes": ("SUPER_FETCH_BYTES", _MIB, 2**40),
    "push_bytes": ("SUPER_PUSH_BYTES", _MIB, 2**40),
}


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """The function's settings, each read from a ``SUPER_*`` variable."""

    cache_credentials: Credentials = Credentials()  # noqa: RUF009  # frozen
    cache_secret: str = ""  # name of the secret in AWS Secrets Manager with the cache's user and password
    step_modules: frozenset[str] = frozenset()
    file_roots: tuple[str, ...] = ()
    http_hosts: tuple[str, ...] | None = None  # allowed web servers; None: see objects.web
    store: str = ""  # address of the store in normal form
    store_read_only: bool = False  # write no packs
    shard_cache: str = ""  # directory for blocks of shards
    shard_cache_bytes: int = 0
    decoders: int = 0  # 0 means one per core on Lambda, and one elsewhere
    decode_timeout_s: int = 20  # a sample that takes longer is abandoned, and may be retried
    max_pixels: int = 0  # 0 means the request's limit
    text_bytes: int = _MIB  # limit for each unpacked text in a PNG
    fetch_threads: int = 0  # 0 means the best number for the source
    # Limits for encoded objects and finished records between stages. A single one may be larger.
    fetch_bytes: int = 64 * _MIB
    push_bytes: int = 64 * _MIB
    log_level: str = "INFO"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> FunctionSettings:
        """Read the settings from variables. Raises ``ConfigError`` for an invalid value."""
        variables = os.environ if environment is None else environment
        modules = (name.strip() for name in variables.get("SUPER_STEP_MODULES", "").split(","))
        roots = variables.get("SUPER_FILE_ROOTS", "").split(os.pathsep)
        secret = variables.get("SUPER_CACHE_SECRET", "")
        numbers: dict[str, Any] = {
            setting: _whole(variable, text, low, high)
            for setting, (variable, low, high) in _NUMBERS.items()
            if (text := variables.get(variable))
        }
        for name in ("SUPER_CACHE_PASSWORD", "SUPER_CACHE_USERNAME"):
            if secret and variables.get(name):
                raise ConfigError(f"SUPER_CACHE_SECRET and {name} cannot both be set: unset one of them")
        return cls(
            cache_credentials=Credentials.from_environment(variables),
            cache_secret=secret,
            step_modules=frozenset(name for name in modules if name),
            file_roots=tuple(os.path.realpath(root) for root in roots if root),
            http_hosts=parse_http_hosts(variables.get("SUPER_HTTP_HOSTS", ""), "SUPER_HTTP_HOSTS") or None,
            store=store_in(variables),
            store_read_only=_one_of(variables, "SUPER_STORE_READ_ONLY", _SWITCH) in _SWITCH[3:],
            shard_cache=variables.get("SUPER_SHARDS", ""),
            log_level=_one_of(variables, "SUPER_LOG_LEVEL", _LOG_LEVELS),
            **numbers,
        )


def store_in(variables: Mapping[str, str]) -> str:
    """Return the normalised store address from ``SUPER_STORE``, or an empty string."""
    text = variables.get("SUPER_STORE", "").strip()
    try:
        return "" if text.lower() in _NO_STORE else parse_store(text)
    except ConfigError as error:
        raise ConfigError(f"SUPER_STORE: {error}") from error


def _whole(name: str, text: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ConfigError(f"{name} must be an integer from {low} to {high}, not {text!r}")
    return int(text)


def _one_of(variables: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """Return a variable's value, spelled as in ``known``. The first entry is the default."""
    value = variables.get(name, "") or known[0]
    chosen = next((choice for choice in known if choice.lower() == value.lower()), None)
    if chosen is None:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return chosen


def decoding_threads(setting: int) -> int:
    """Return the number of decoding threads: ``setting`` or, if it is 0, a default for this machine."""
    memory_mb = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")
    if setting or not memory_mb.isdecimal():
        return setting or 1  # other executors run one function per core
    # Lambda's CPU time grows with memory.
    return max(1, min(len(os.sched_getaffinity(0)), math.ceil(int(memory_mb) / _LAMBDA_MB_PER_CORE)))
