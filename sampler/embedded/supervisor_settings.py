"""``SupervisorSettings``: what a supervisor is told when it is started."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field

from superdl.sampler.embedded.executor_choice import ExecutorChoice
from superdl.sampler.embedded.host import cache_bytes, pool_workers

__all__ = ["SupervisorSettings"]


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """What may differ between supervisors; goes to the process as JSON.

    ``cache_bytes`` bounds the cache, ``workers`` the function processes. ``coordinator`` is the command that
    the coordinator's arguments are appended to. ``grace_s`` is how long the supervisor outlives its last
    rank: long enough for a launcher that restarts all ranks after one failed. ``choice`` is which functions
    the coordinator runs; where it names a cache, the supervisor starts none.
    """

    cache_bytes: int
    workers: int
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
            workers=pool_workers(),
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
