"""The coordinator's settings, from arguments, ``SUPER_*`` variables, a TOML file and defaults."""

from __future__ import annotations

import importlib.util
import os
import tomllib
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.coordinator.catalog.source import Allowed, parse_roots
from superdl.coordinator.executors.aws_lambda import LambdaSettings
from superdl.coordinator.executors.base import ExecutorContext, check_settings, sees_store, setting
from superdl.coordinator.executors.local_worker import LocalExecutor, LocalSettings
from superdl.coordinator.executors.workers import WorkersExecutor, WorkersSettings
from superdl.coordinator.server.trust import TrustSettings, leaves_this_machine
from superdl.coordinator.store.opening import AUTO, StoreChoice, chosen_store
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import EXECUTORS, RunsOn, executor_names
from superdl.super_wire.protocol import socket_path
from superdl.super_wire.request import MAX_SAMPLES_PER_REQUEST
from superdl.super_wire.source_url import parse_http_hosts
from superdl.super_wire.user_text import parse_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from superdl.coordinator.executors.base import Executor

_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: _TRUTHS[text.lower()],
    "int": int,
    "float": float,
    "str": str,
}
_ANY_S = 1e9
_ANY_USD = 1e12
_STORE_SLOTS = 2  # copying bytes for the store takes little CPU


@dataclass(frozen=True)
class Settings(LambdaSettings, WorkersSettings, LocalSettings, TrustSettings):
    """A coordinator's settings, checked on creation. Fields without help text are not on the command line."""

    executor: str = setting(
        "local", f"how functions run: {', '.join(EXECUTORS)}, or several such as local,lambda (local)"
    )
    function: str = setting(
        "superdl.lambda_prefetch.handler:handler",
        "module:attribute that the local executor runs (superdl.lambda_prefetch.handler:handler)",
    )
    cache_bytes: int = setting(
        0,
        "memory of the cache server, such as 4gb, nine tenths of it for records (its maxmemory)",
        high=2**60,
    )
    lookahead_batches: int = setting(
        64, "maximum number of batches to prepare ahead of a rank (64)", low=1, high=2**20
    )
    request_samples: int = setting(
        512, "maximum number of samples per function call (512)", low=1, high=MAX_SAMPLES_PER_REQUEST
    )
    request_timeout_s: float = setting(
        60.0, "seconds within which a function must start on a sample (60)", low=1e-3, high=_ANY_S
    )
    store: str = setting(
        "", "where decoded records are kept: a directory, s3://bucket/prefix, auto or none (none)"
    )
    store_bytes: int = setting(
        0, "maximum size of the store, such as 100gb (a quarter of the free disk space)", high=2**60
    )
    store_read_only: bool = setting(False, "read from the store, but never write to it")
    state: str = setting(
        "auto", "directory where catalogs are kept for the next start, none, or auto for the store (auto)"
    )
    catalog_max_age_s: float = setting(
        300.0, "seconds after which a new run lists a source again (300)", low=1e-3, high=_ANY_S
    )
    catalog_max_samples: int = setting(
        50_000_000, "maximum number of samples in a source (50,000,000)", low=1, high=2**40
    )
    lease_s: float = setting(
        15.0, "seconds of silence after which no batches are prepared for a rank (15)", low=1e-3, high=_ANY_S
    )
    function_memory_mb: int = setting(
        1769, "memory of a function in MB, for cost accounting (1769)", low=128, high=10_240
    )
    prices: str = setting("", "TOML price table that replaces built-in prices")
    # For both, 0 means no cap.
    max_usd: float = setting(0.0, "stop producing once this much has been spent (no cap)", high=_ANY_USD)
    max_usd_per_hour: float = setting(
        0.0, "above this hourly rate, produce only what readers are waiting for (no cap)", high=_ANY_USD
    )
    owner: str = setting("", "owner of the cache's lock; a restart with the same owner takes it over at once")
    log_level: str = setting(
        "INFO",
        "DEBUG, INFO, WARNING or ERROR (INFO)",
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    )
    metrics_emf: bool = setting(False, "write metrics for CloudWatch to standard output, one line a minute")
    log_format: str = setting(
        "text", "text, or json for one object per line (text)", choices=("text", "json")
    )
    ends_with_run: bool = setting(
        False, "exit and stop all workers when a trainer reports that its run has ended"
    )

    def __post_init__(self) -> None:
        executor_names(self.executor)
        _ = self.store_choice
        self.check_trust()
        check_settings(self)

    @property
    def store_choice(self) -> StoreChoice:
        """Return the store, or the reason for none. Raises ``ConfigError`` if no functions can access it."""
        choice = chosen_store(self.store, os.environ)
        if not choice.address or self._is_seen(choice.address) or _is_importable(self.function):
            return choice
        reason = (
            f"functions of {self.executor} cannot access the directory {choice.address}, and this machine "
            f"cannot run {self.function} instead"
        )
        if self.store.lower() == AUTO:
            return StoreChoice("", reason)
        raise ConfigError(f"{reason}: set SUPER_STORE to s3://bucket/prefix, which they can reach, or none")

    @property
    def store_only(self) -> list[tuple[type[Executor], Settings]]:
        """Return the executors that restore and save for functions without access to the store."""
        address = self.store_choice.address
        if not address or self._is_seen(address):
            return []
        # Some local slots, and workers that connect only for this.
        few = replace(self, slots=min(self.slots, _STORE_SLOTS))
        return [(LocalExecutor, few), (WorkersExecutor, self)]

    def _is_seen(self, address: str) -> bool:
        return any(sees_store(executor, address) for executor in self.executors)

    @property
    def executors(self) -> tuple[str, ...]:
        """Return a non-empty tuple of executors, in order of preference."""
        return executor_names(self.executor)


def _is_importable(function: str) -> bool:
    try:
        return importlib.util.find_spec(function.partition(":")[0]) is not None
    except (ImportError, ValueError):
        return False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and an option for each setting that has help text, for :func:`load_settings`."""
    parser.add_argument("--config", help="TOML file with settings of the same names")
    for field in fields(Settings):
        if field.metadata["help"]:
            flag = f"--{field.name.replace('_', '-')}"
            options: dict[str, Any] = {}
            if field.type == "bool":
                options = {"action": "store_const", "const": True}
            elif field.name in {"tls_cert", "tls_key", "tls_client_ca", "token_file", "prices"}:
                options = {"metavar": "FILE"}
            parser.add_argument(flag, help=field.metadata["help"].replace("%", "%%"), **options)


def load_settings(
    arguments: Mapping[str, Any], environment: Mapping[str, str], file: str | None = None
) -> Settings:
    """Load settings from all sources.

    Args:
        arguments: values by setting name. ``None`` means not given. Other names are ignored.
        environment: variables such as ``SUPER_LISTEN``. Empty variables count as not given.
        file: path of a TOML file with the same settings.

    Raises:
        ConfigError: a value has the wrong type or is out of range, or the file cannot be used.
    """
    if environment.get("SUPER_WORKERS"):
        raise ConfigError("SUPER_WORKERS was renamed to SUPER_SLOTS")
    known = {field.name: field for field in fields(Settings)}
    in_file = _read_file(file, known) if file is not None else {}
    values: dict[str, Any] = {}
    for name, option in known.items():
        sources = (
            (name, arguments.get(name)),
            (f"SUPER_{name.upper()}", environment.get(f"SUPER_{name.upper()}") or None),
            (f"{file}: {name}", in_file.get(name)),
        )
        origin, value = next((source for source in sources if source[1] is not None), ("", None))
        if value is not None:
            values[name] = _typed(option, origin, value)
    return Settings(**values)


def _read_file(file: str, known: Mapping[str, Any]) -> dict[str, Any]:
    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"the settings file {file} cannot be read: {error}") from error
    if unknown := sorted(set(table) - set(known)):
        raise ConfigError(
            f"{file} contains unknown settings: {', '.join(unknown)}. Use some of {', '.join(known)}"
        )
    return table


def _typed(entry: Field[Any], origin: str, value: Any) -> Any:
    """Convert text to the setting's type, or check the type of any other value."""
    if isinstance(value, str) and entry.name.endswith("_bytes"):
        return parse_bytes(value, origin)
    try:
        if isinstance(value, str):
            if entry.name == "log_level":
                return value.upper()
            return _FROM_TEXT[str(entry.type)](value)
        if type(value).__name__ == entry.type:
            return value
        if entry.type == "float" and type(value) is int:
            return float(value)
    except (KeyError, ValueError, OverflowError) as error:
        raise _ill_typed(entry, origin, value) from error
    raise _ill_typed(entry, origin, value)


def _ill_typed(entry: Field[Any], origin: str, value: Any) -> ConfigError:
    shown = repr(str(value)[:80]) if entry.repr else type(value).__name__  # never a secret
    return ConfigError(f"the setting {origin} must be of type {entry.type}, not {shown}")


def allowed_to_listings(settings: Settings) -> Allowed:
    """Return the limits on the sources that clients may list."""
    roots, hosts = parse_roots(settings.file_roots), parse_http_hosts(settings.http_hosts, "http_hosts")
    # Other machines may read files and web servers through this one only if settings allow it.
    is_local = not leaves_this_machine(settings.listen)
    # Workers may run as another user.
    own = all(EXECUTORS[name].runs_on is not RunsOn.OTHER_HOSTS for name in settings.executors)
    return Allowed(
        None if is_local and not roots else roots,
        settings.catalog_max_samples,
        own,
        None if is_local and not hosts else hosts,
    )


def executor_context(settings: Settings) -> ExecutorContext:
    """Return the executors' context. Local functions may read whatever the coordinator may read."""
    environment = {"SUPER_INSECURE": "1"} if settings.insecure else {}
    roots = allowed_to_listings(settings).link_roots
    environment |= {"SUPER_FILE_ROOTS": os.pathsep.join(roots)} if roots else {}
    environment |= {"SUPER_HTTP_HOSTS": settings.http_hosts} if settings.http_hosts else {}
    if address := settings.store_choice.address:
        environment |= {"SUPER_STORE": address, "SUPER_STORE_READ_ONLY": str(int(settings.store_read_only))}
    return ExecutorContext(
        cache=settings.cache,
        function=settings.function,
        request_timeout_s=settings.request_timeout_s,
        environment=environment,
        sockets=str(Path(path).parent) if (path := socket_path(settings.listen)) else "",
    )
