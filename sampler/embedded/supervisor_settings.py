"""What a supervisor is told when it starts: shares of this host, which functions run, over which cache.

``SUPER_EXECUTOR`` is ``local`` (a worker on this host, the default), ``lambda``, or both with a comma
between, the cheapest first. Functions elsewhere reach no socket of this host: they need ``SUPER_CACHE``, and
the supervisor then starts no cache. The rest (``SUPER_LAMBDA_*``) the coordinator reads itself.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from superdl.super_wire.cache import CacheAddress, Credentials
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import EXECUTORS, RunsOn, executor_names
from superdl.super_wire.host import cache_bytes, slots

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ExecutorChoice", "SupervisorSettings"]


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The executors' names, and the cache that they need (empty: the supervisor's own).

    Samplers of one run with different ``variant`` s get coordinators of their own.
    """

    executor: str = "local"
    cache: str = ""
    variant: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ExecutorChoice:
        """Read the variables.

        Raises:
            ConfigError: there is no such executor, or what it needs is missing; says what to set.
        """
        names = executor_names(environment.get("SUPER_EXECUTOR", "") or "local", "SUPER_EXECUTOR")
        elsewhere = [EXECUTORS[name] for name in names if EXECUTORS[name].runs_on is not RunsOn.THIS_HOST]
        executor = ",".join(names)
        if not elsewhere:
            return cls(executor, variant="" if executor == "local" else executor)
        cache = environment.get("SUPER_CACHE", "")
        _check_cache(cache, environment, elsewhere[0].place)
        _check_one_host(environment, executor)
        decisive = [f"SUPER_{name.upper()}" for kind in EXECUTORS.values() for name in kind.chosen_by]
        facts = [executor, cache, *(environment.get(name, "") for name in decisive)]
        return cls(executor, cache, "\n".join(facts))


def _check_cache(cache: str, environment: Mapping[str, str], place: str) -> None:
    if not cache:
        raise ConfigError(
            f"functions on {place} cannot reach the embedded cache, which is a unix socket of this host: "
            "set SUPER_CACHE to a cache that they and this host reach, such as rediss://my-cache:6379, or "
            "name a coordinator that runs them by SUPER_COORDINATOR"
        )
    address = CacheAddress.parse(cache)
    if address.path:
        raise ConfigError(
            f"SUPER_CACHE={cache} is a unix socket of this host, which functions on {place} cannot "
            "reach: name a cache that both reach, such as rediss://my-cache:6379"
        )
    Credentials.from_environment(environment).check_encrypted(address)


def _check_one_host(environment: Mapping[str, str], executor: str) -> None:
    """One coordinator owns a cache, and each host's supervisor would start another."""
    ranks = [environment.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    if all(map(str.isdecimal, ranks)) and int(ranks[0]) > int(ranks[1]):
        raise ConfigError(
            f"this run has {ranks[0]} ranks, {ranks[1]} of them on this host, and its hosts would each start "
            "a coordinator over the one cache: start one for all "
            f"(superdl coordinator --executor {executor}) and name it by SUPER_COORDINATOR"
        )


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """What may differ between supervisors; goes to the process as JSON.

    ``coordinator`` is the command that the coordinator's arguments are appended to. ``grace_s`` is how long
    the supervisor outlives its last rank: long enough for torchrun to restart all ranks.
    """

    cache_bytes: int
    slots: int
    coordinator: tuple[str, ...]
    grace_s: float = 2.0
    choice: ExecutorChoice = field(default_factory=ExecutorChoice)

    @classmethod
    def of_this_host(cls) -> SupervisorSettings:
        """The defaults: shares of this host's memory and cores, and the executor that the environment names.

        Raises:
            ConfigError: a variable is wrong, or one is missing that the executor needs.
        """
        return cls(
            cache_bytes=cache_bytes(),
            slots=slots(),
            coordinator=(sys.executable, "-P", "-m", "superdl.coordinator"),
            choice=ExecutorChoice.from_environment(os.environ),
        )

    def to_json(self) -> str:
        """As text for the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SupervisorSettings:
        """From what :meth:`to_json` gave."""
        fields = json.loads(text)
        typed = {"coordinator": tuple(fields["coordinator"]), "choice": ExecutorChoice(**fields["choice"])}
        return cls(**{**fields, **typed})
