"""What the core may be told: bounds, waits and prices, frozen and checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from superdl.super_wire.errors import ConfigError

__all__ = ["CoreSettings", "ExecutorFacts", "Prices"]

_ABOVE_ZERO = (
    "backoff_s",
    "backoff_max_s",
    "request_ttl_s",
    "tombstone_ttl_s",
    "forget_s",
    "lease_s",
    "max_usd_per_hour",
    "max_usd",
)


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for each unit of what is counted; all zero where nothing is billed by use.

    ``invocation`` one request to a function; ``gb_s`` one second of one GB (2**30 bytes) of its memory;
    ``source_request`` one GET; ``source_gb`` and ``record_gb`` one GB fetched from the source, and written to
    or read from the cache; ``hour`` the cache and the coordinator, used or not, of which
    ``coordinator_hour`` is the coordinator's.
    """

    invocation: float = 0.0
    gb_s: float = 0.0
    source_request: float = 0.0
    source_gb: float = 0.0
    record_gb: float = 0.0
    hour: float = 0.0
    coordinator_hour: float = 0.0

    @property
    def billed(self) -> bool:
        """Whether anything costs anything."""
        return any(getattr(self, entry.name) for entry in fields(self))

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"the price {entry.name} is a number from 0 up; not {value!r}")
        if self.coordinator_hour > self.hour:
            raise ConfigError(
                f"the price coordinator_hour is a part of hour, {self.hour!r}; not {self.coordinator_hour!r}"
            )


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """What the core is told of an executor: what people call it, and what its work costs."""

    name: str = "local"
    prices: Prices = field(default_factory=Prices)


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Bounds of planning.

    ``budget_bytes`` of cache memory for records; ``lookahead_batches`` at most ahead of a rank;
    ``request_samples`` at most per invocation; ``attempts`` per sample before a tombstone; ``backoff_s``
    before the second attempt, doubled for each further one and never above ``backoff_max_s``;
    ``request_ttl_s`` for a function to begin a sample; ``tombstone_ttl_s`` before a spent sample may be
    tried again; ``forget_s`` after which a silent rank is forgotten; ``lease_s`` after which it is no
    longer looked ahead for. A request that takes longer than ``hedge_quantile`` of all may be raced by a
    second one, as long as those are no more than ``hedge_share`` of all requests. ``executors`` are those
    that there are, the cheapest first; ``max_usd_per_hour`` and ``max_usd`` bound what is spent at their
    prices; ``spent_usd`` was spent before, by earlier coordinators.
    """

    budget_bytes: int
    lookahead_batches: int = 64
    request_samples: int = 64
    attempts: int = 3
    backoff_s: float = 0.2
    backoff_max_s: float = 5.0
    request_ttl_s: float = 60.0
    tombstone_ttl_s: float = 60.0
    forget_s: float = 1800.0
    lease_s: float = 15.0
    hedge_quantile: float = 0.95
    hedge_share: float = 0.05
    executors: tuple[ExecutorFacts, ...] = (ExecutorFacts(),)
    max_usd_per_hour: float = math.inf
    max_usd: float = math.inf
    spent_usd: float = 0.0

    def __post_init__(self) -> None:
        for name in ("budget_bytes", "lookahead_batches", "request_samples", "attempts"):
            if getattr(self, name) < 1:
                msg = f"{name} is at least 1; not {getattr(self, name)}"
                raise ConfigError(msg)
        if not self.executors:
            raise ConfigError("executors are at least 1; not 0")
        if not 0 <= self.spent_usd < math.inf:
            msg = f"spent_usd is a sum of money; not {self.spent_usd}"
            raise ConfigError(msg)
        for name in _ABOVE_ZERO:
            if not getattr(self, name) > 0:
                msg = f"{name} is above 0; not {getattr(self, name)}"
                raise ConfigError(msg)
        if not 0 < self.hedge_quantile < 1:
            msg = f"hedge_quantile lies between 0 and 1; not {self.hedge_quantile}"
            raise ConfigError(msg)
        if not 0 <= self.hedge_share <= 1:
            msg = f"hedge_share is from 0 to 1; not {self.hedge_share}"
            raise ConfigError(msg)
        if self.attempts > 100:  # noqa: PLR2004  # attempts are counted in a byte
            msg = f"attempts is at most 100; not {self.attempts}"
            raise ConfigError(msg)

    def backoff_after_s(self, attempts: int) -> float:
        """Wait before the next attempt, after ``attempts`` that failed."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(max(attempts, 1) - 1, 64))
