"""What the function's operator decides, read from the environment when an invocation asks; never at import.

A request can choose none of this: credentials, the modules that custom steps may come from, the directories
that may be read and the memory that may be used are the function's own.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.super_wire.cache import Credentials
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.source_url import parse_http_hosts
from superdl.super_wire.store import parse_store

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LAMBDA_MB_PER_CORE", "FunctionSettings", "decoding_threads"]

LAMBDA_MB_PER_CORE = 1769
"""Memory in MB at which Lambda gives a function one whole core, as its documentation says."""

_MIB = 2**20
_LOG_LEVELS = ("INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL")
_SWITCH = ("0", "false", "no", "1", "true", "yes")
_NO_STORE = frozenset({"", "none", "auto"})  # auto is the coordinator's to find
_IN_CLEAR = ("SUPER_CACHE_PASSWORD", "SUPER_CACHE_USERNAME")


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """The function's settings.

    ``decoders`` 0 means one for each core of Lambda's, elsewhere one.
    A sample that is decoded, its steps counted, for longer than ``decode_timeout_s`` is given up for now.
    ``max_pixels`` 0 means the request's bound, ``text_bytes`` bounds each text in a PNG, unpacked.
    ``fetch_threads`` 0 means what the source is best read with. ``fetch_bytes`` and ``push_bytes`` bound the
    encoded objects and the finished records that wait between the stages; one object or record alone may be
    larger than that. ``http_hosts`` are the web servers that may be read; ``None``: see
    :mod:`superdl.super_wire.objects.web`. ``cache_secret`` names the secret of AWS Secrets Manager that has
    the cache's user and password; without one they are in ``cache_credentials``. ``store`` is the store's
    address in its normal form, or empty; to one that is ``store_read_only`` no pack is written. Blocks of
    shards are kept in the directory ``shard_cache``, in up to ``shard_cache_bytes``; empty: nowhere.
    """

    cache_credentials: Credentials = Credentials()  # noqa: RUF009  # frozen
    cache_secret: str = ""
    step_modules: frozenset[str] = frozenset()
    file_roots: tuple[str, ...] = ()
    http_hosts: tuple[str, ...] | None = None
    store: str = ""
    store_read_only: bool = False
    shard_cache: str = ""
    shard_cache_bytes: int = 0
    decoders: int = 0
    decode_timeout_s: int = 20
    max_pixels: int = 0
    text_bytes: int = _MIB
    fetch_threads: int = 0
    fetch_bytes: int = 64 * _MIB
    push_bytes: int = 64 * _MIB
    log_level: str = "INFO"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> FunctionSettings:
        """Read the ``SUPER_*`` variables.

        Raises:
            ConfigError: a variable has a value that cannot be meant.
        """
        variables = os.environ if environment is None else environment
        modules = (name.strip() for name in variables.get("SUPER_STEP_MODULES", "").split(","))
        roots = variables.get("SUPER_FILE_ROOTS", "").split(os.pathsep)
        secret = variables.get("SUPER_CACHE_SECRET", "")
        doubled = [name for name in _IN_CLEAR if secret and variables.get(name)]
        if doubled:
            raise ConfigError(
                f"SUPER_CACHE_SECRET and {doubled[0]} are both set: leave out the one that the "
                "cache's password is not to come from"
            )
        return cls(
            cache_credentials=Credentials.from_environment(variables),
            cache_secret=secret,
            step_modules=frozenset(name for name in modules if name),
            file_roots=tuple(os.path.realpath(root) for root in roots if root),
            http_hosts=parse_http_hosts(variables.get("SUPER_HTTP_HOSTS", ""), "SUPER_HTTP_HOSTS") or None,
            store=store_in(variables),
            store_read_only=_one_of(variables, "SUPER_STORE_READ_ONLY", _SWITCH) in _SWITCH[3:],
            shard_cache=variables.get("SUPER_SHARDS", ""),
            shard_cache_bytes=_whole(variables, "SUPER_SHARDS_BYTES", 0, 2**60, 0),
            decoders=_whole(variables, "SUPER_DECODERS", 0, 64, 0),
            decode_timeout_s=_whole(variables, "SUPER_DECODE_TIMEOUT_S", 1, 3600, 20),
            max_pixels=_whole(variables, "SUPER_MAX_PIXELS", 0, 2**40, 0),
            text_bytes=_whole(variables, "SUPER_MAX_TEXT_BYTES", 1, 2**40, _MIB),
            fetch_threads=_whole(variables, "SUPER_FETCH_THREADS", 0, 64, 0),
            fetch_bytes=_whole(variables, "SUPER_FETCH_BYTES", _MIB, 2**40, 64 * _MIB),
            push_bytes=_whole(variables, "SUPER_PUSH_BYTES", _MIB, 2**40, 64 * _MIB),
            log_level=_one_of(variables, "SUPER_LOG_LEVEL", _LOG_LEVELS),
        )


def store_in(variables: Mapping[str, str]) -> str:
    """The normal address of the store that ``SUPER_STORE`` names; empty for none.

    Raises:
        ConfigError: it names no store.
    """
    text = variables.get("SUPER_STORE", "").strip()
    try:
        return "" if text.lower() in _NO_STORE else parse_store(text)
    except ConfigError as error:
        raise ConfigError(f"SUPER_STORE: {error}") from error


def _whole(variables: Mapping[str, str], name: str, low: int, high: int, default: int) -> int:
    text = variables.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ConfigError(f"{name} is a whole number from {low} to {high}; not {text!r}")
    return int(text)


def _one_of(variables: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """The variable's value, by default the first that is known."""
    value = variables.get(name, "") or known[0]
    found = next((one for one in known if one.lower() == value.lower()), None)
    if found is None:
        raise ConfigError(f"{name} is one of {', '.join(known)}; not {value!r}")
    return found


def decoding_threads(setting: int, environment: Mapping[str, str] | None = None) -> int:
    """How many threads decode: ``setting``, or if that is 0 as many as the function has cores of its own.

    AWS Lambda gives a function CPU time by its memory, and more than one core from 1,769 MB on. Everywhere
    else one function decodes with one thread, since executors run a function for each core there.
    """
    if setting:
        return setting
    variables = os.environ if environment is None else environment
    memory_mb = variables.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")
    if not memory_mb.isdecimal():
        return 1
    return max(1, min(len(os.sched_getaffinity(0)), math.ceil(int(memory_mb) / LAMBDA_MB_PER_CORE)))
