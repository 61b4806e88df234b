"""Which functions the embedded default runs, and what it needs for them, read from ``SUPER_*`` variables.

``SUPER_EXECUTOR`` is ``local`` (a pool on this host, the default) or ``lambda``. Functions on AWS Lambda
reach no socket of this host, so they need a cache that they can reach too, ``SUPER_CACHE``; the supervisor
then starts a coordinator over that one, and no cache. What else Lambda wants (``SUPER_LAMBDA_*``) the
coordinator reads itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from super_wire.address import CacheAddress, Credentials
from super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EXECUTORS", "ExecutorChoice"]

EXECUTORS = ("local", "lambda")

_DECIDES = (
    "SUPER_LAMBDA_FUNCTION",
    "SUPER_LAMBDA_REGION",
    "SUPER_LAMBDA_ENDPOINT_URL",
    "SUPER_LAMBDA_INVOCATION",
)


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """The executor's name, the cache that it needs (empty: the supervisor's own), and what tells this choice
    from others: samplers of one run that choose otherwise get a coordinator of their own.
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
        executor = environment.get("SUPER_EXECUTOR", "") or "local"
        if executor not in EXECUTORS:
            raise ConfigError(f"SUPER_EXECUTOR is one of {', '.join(EXECUTORS)}; not {executor!r}")
        if executor == "local":
            return cls()
        cache = environment.get("SUPER_CACHE", "")
        _check_cache(cache, Credentials.from_environment(environment))
        _check_one_host(environment)
        facts = [executor, cache, *(environment.get(name, "") for name in _DECIDES)]
        return cls(executor, cache, "\n".join(facts))


def _check_cache(cache: str, credentials: Credentials) -> None:
    if not cache:
        raise ConfigError(
            "functions on Lambda cannot reach the embedded cache, which is a unix socket of this host: set "
            "SUPER_CACHE to a cache that they and this host reach, such as rediss://my-cache:6379, or name a "
            "coordinator that runs them by SUPER_COORDINATOR"
        )
    address = CacheAddress.parse(cache)
    if address.path:
        raise ConfigError(
            f"SUPER_CACHE={cache} is a unix socket of this host, which functions on Lambda cannot reach: "
            "name a cache that both reach, such as rediss://my-cache:6379"
        )
    credentials.check_encrypted(address)


def _check_one_host(environment: Mapping[str, str]) -> None:
    """One coordinator owns a cache, and each host's supervisor would start another."""
    ranks = [environment.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    if all(map(str.isdecimal, ranks)) and int(ranks[0]) > int(ranks[1]):
        raise ConfigError(
            f"this run has {ranks[0]} ranks, {ranks[1]} of them on this host, and its hosts would each start "
            "a coordinator over the one cache: start one for all (superdl coordinator --executor lambda) and "
            "name it by SUPER_COORDINATOR"
        )
