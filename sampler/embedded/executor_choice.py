"""Which functions the embedded default runs, and what it needs for them, read from ``SUPER_*`` variables.

``SUPER_EXECUTOR`` is ``local`` (a pool on this host, the default), ``ray``, ``lambda``, or several of them
with commas between, the cheapest first. Functions on AWS Lambda or the nodes of a Ray cluster reach no socket
of this host, so they need a cache that they can reach too, ``SUPER_CACHE``; the supervisor then starts a
coordinator over that one, and no cache. What else they want (``SUPER_LAMBDA_*``, ``SUPER_RAY_*``) the
coordinator reads itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.super_wire.cache import CacheAddress, Credentials
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import EXECUTORS, RunsOn, executor_names

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ExecutorChoice"]


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The executors' names as the coordinator takes them, the cache that they need (empty: the supervisor's
    own), and what tells this choice from others: samplers of one run that choose otherwise get a coordinator
    of their own.
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
        chosen = [EXECUTORS[name] for name in names]
        elsewhere = [kind for kind in chosen if kind.runs_on is not RunsOn.THIS_HOST]
        if not elsewhere:
            return cls() if names == ("local",) else cls(",".join(names), variant=",".join(names))
        cache, executor = environment.get("SUPER_CACHE", ""), ",".join(names)
        _check_cache(cache, Credentials.from_environment(environment), elsewhere[0].place)
        _check_one_host(environment, executor)
        decisive = [f"SUPER_{name.upper()}" for kind in EXECUTORS.values() for name in kind.chosen_by]
        facts = [executor, cache, *(environment.get(name, "") for name in decisive)]
        return cls(executor, cache, "\n".join(facts))


def _check_cache(cache: str, credentials: Credentials, elsewhere: str) -> None:
    if not cache:
        raise ConfigError(
            f"functions on {elsewhere} cannot reach the embedded cache, which is a unix socket of this host: "
            "set SUPER_CACHE to a cache that they and this host reach, such as rediss://my-cache:6379, or "
            "name a coordinator that runs them by SUPER_COORDINATOR"
        )
    address = CacheAddress.parse(cache)
    if address.path:
        raise ConfigError(
            f"SUPER_CACHE={cache} is a unix socket of this host, which functions on {elsewhere} cannot "
            "reach: name a cache that both reach, such as rediss://my-cache:6379"
        )
    credentials.check_encrypted(address)


def _check_one_host(environment: Mapping[str, str], executor: str) -> None:
    """One coordinator owns a cache, and each host's supervisor would start another."""
    ranks = [environment.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    if all(map(str.isdecimal, ranks)) and int(ranks[0]) > int(ranks[1]):
        raise ConfigError(
            f"this run has {ranks[0]} ranks, {ranks[1]} of them on this host, and its hosts would each start "
            "a coordinator over the one cache: start one for all "
            f"(superdl coordinator --executor {executor}) and name it by SUPER_COORDINATOR"
        )
