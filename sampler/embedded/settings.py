"""Settings of the embedded coordinator: its share of this host, its executors and its cache."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.super_wire.cache import CacheAddress, Credentials
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import EXECUTORS, RunsOn, executor_names
from superdl.super_wire.host import cache_bytes, slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.super_wire.run_directory import RunDirectory

_WORKER_NICE = 10  # leaves the trainer nearly all of any core that it needs
# Settings that protect a coordinator from others. Only this user can open the embedded one's socket.
_NOT_FOR_EMBEDDED = frozenset(
    {"SUPER_TLS_CERT", "SUPER_TLS_KEY", "SUPER_TLS_CLIENT_CA", "SUPER_TOKEN", "SUPER_TOKEN_FILE"}
    | {"SUPER_HEALTH_LISTEN", "SUPER_METRICS_LISTEN"}
)


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The names of the executors, and the address of their cache, which is empty for the embedded cache."""

    executor: str = "local"
    cache: str = ""
    variant: str = ""  # samplers of a run that differ in it get separate coordinators

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ExecutorChoice:
        """Parse ``SUPER_EXECUTOR`` (default: ``local``). Raises ``ConfigError`` naming a bad variable."""
        names = executor_names(environment.get("SUPER_EXECUTOR", "") or "local", "SUPER_EXECUTOR")
        elsewhere = [EXECUTORS[name] for name in names if EXECUTORS[name].runs_on is not RunsOn.THIS_HOST]
        executor = ",".join(names)
        if not elsewhere:
            return cls(executor, variant="" if executor == "local" else executor)
        cache = environment.get("SUPER_CACHE", "")
        # Remote functions cannot reach a socket on this host, so no cache is started for them.
        _check_cache(cache, environment, elsewhere[0].location)
        _check_one_host(environment, executor)
        decisive = [f"SUPER_{name.upper()}" for kind in EXECUTORS.values() for name in kind.chosen_by]
        parts = [executor, cache, *(environment.get(name, "") for name in decisive)]
        return cls(executor, cache, "\n".join(parts))


def _check_cache(cache: str, environment: Mapping[str, str], location: str) -> None:
    if not cache:
        raise ConfigError(
            f"functions on {location} cannot reach the embedded cache, which is a Unix socket on this host. "
            "Set SUPER_CACHE to a cache that they and this host can reach, such as rediss://my-cache:6379, "
            "or set SUPER_COORDINATOR to a coordinator that runs them"
        )
    address = CacheAddress.parse(cache)
    if address.path:
        raise ConfigError(
            f"SUPER_CACHE={cache} is a Unix socket on this host, which functions on {location} cannot "
            "reach. Set it to a cache that both can reach, such as rediss://my-cache:6379"
        )
    Credentials.from_environment(environment).check_encrypted(address)


def _check_one_host(environment: Mapping[str, str], executor: str) -> None:
    # A cache has one coordinator, but each host would start its own.
    ranks = [environment.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    if all(map(str.isdecimal, ranks)) and int(ranks[0]) > int(ranks[1]):
        raise ConfigError(
            f"this run has {ranks[0]} ranks, {ranks[1]} of them on this host, so each host would start its "
            "own coordinator on the same cache. Start one for all of them "
            f"(superdl coordinator --executor {executor}) and set SUPER_COORDINATOR to its address"
        )


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """Settings for starting an embedded coordinator."""

    cache_bytes: int  # memory for its cache
    slots: int  # requests that its worker processes concurrently
    # The command, to which the coordinator's options are appended.
    program: tuple[str, ...] = (sys.executable, "-P", "-m", "superdl.coordinator.embedded")
    grace_s: float = 0.3  # how long the coordinator outlives its last rank
    choice: ExecutorChoice = field(default_factory=ExecutorChoice)

    @classmethod
    def of_this_host(cls) -> EmbeddedSettings:
        """Return this host's defaults. Raises ``ConfigError`` if an environment variable is invalid."""
        choice = ExecutorChoice.from_environment(os.environ)
        return cls(cache_bytes=cache_bytes(), slots=slots(), choice=choice)

    def command(self, directory: RunDirectory, listener: int) -> list[str]:
        """Return the command to start a coordinator that inherits the file descriptor ``listener``."""
        owner = f"embedded-{directory.path.name}"
        if self.choice.cache:  # hosts share the cache and the run's name
            owner = f"{owner}-{platform.node()}"
        options = {
            "--directory": str(directory.path),
            "--ranks": str(listener),
            "--grace": str(self.grace_s),
            "--cache-memory": "0" if self.choice.cache else str(self.cache_bytes),
            "--listen": f"unix:{directory.coordinator_socket}",
            "--cache": self.choice.cache or f"unix://{directory.cache_socket}",
            "--executor": self.choice.executor,
            "--slots": str(self.slots),
            "--worker-nice": str(_WORKER_NICE),
            "--owner": owner,
        }
        if metrics := os.environ.get("SUPER_METRICS"):
            options["--metrics-listen"] = metrics
        return [*self.program, *(word for option in options.items() for word in option)]

    def environment(self) -> dict[str, str]:
        """Return the coordinator's environment, without the variables meant for other coordinators."""
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_EMBEDDED}
        # NumPy's threads for matrices would spin while others start, and none of the processes needs them.
        threads = {"OPENBLAS_NUM_THREADS": kept.get("OPENBLAS_NUM_THREADS") or "1"}
        return kept | threads | {"SUPER_STORE": kept.get("SUPER_STORE") or "auto"}
