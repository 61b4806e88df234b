"""Core settings: limits, timeouts, prices, datasets and teams."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.coordinator.core.samples import Ints

NO_TEAM = ""  # for jobs whose token names no team
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHARE_MIN, _SHARE_MAX = 1e-3, 1e6
_PRIORITY_MAX = 1000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in US dollars. Raises ``ConfigError`` if one is negative or not finite.

    Attributes:
        invocation: per request to a function.
        gb_s: per second and GB (2**30 bytes) of function memory.
        source_request: per GET from the source or a store in a bucket.
        source_gb: per GB fetched from the source.
        record_gb: per GB written to or read from the cache.
        store_put: per PUT to a store in a bucket.
        hour: per hour of the cache and the coordinator, whether used or idle.
        coordinator_hour: the coordinator's part of ``hour``.
    """

    invocation: float = 0.0
    gb_s: float = 0.0
    source_request: float = 0.0
    source_gb: float = 0.0
    record_gb: float = 0.0
    store_put: float = 0.0
    hour: float = 0.0
    coordinator_hour: float = 0.0

    @property
    def billed(self) -> bool:
        """Return whether any price is above 0."""
        return any(getattr(self, entry.name) for entry in fields(self))

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"the price {entry.name} must be a finite number, 0 or more, not {value!r}")
        if self.coordinator_hour > self.hour:
            raise ConfigError(
                f"the price coordinator_hour ({self.coordinator_hour!r}) must not exceed hour ({self.hour!r})"
            )


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What the core knows about a dataset. A ``random`` recipe produces new samples in each epoch."""

    # Digest of catalog and recipe.
    content: bytes
    size: int
    random: bool
    # Expected record length in bytes.
    record_bytes: int
    # Whether the cache is known to hold none of the samples.
    known_absent: bool
    # First index of each run (lookahead.runs_of), or None if every sample is an object.
    runs: Ints | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """An executor's fixed properties."""

    name: str = "local"
    prices: Prices = field(default_factory=Prices)
    sees_store: bool = True
    # If false, its functions only restore and save.
    decodes: bool = True


@dataclass(frozen=True, slots=True)
class Team:
    """A team's limits. Raises ``ConfigError`` if one is out of range.

    Attributes:
        name: up to 64 letters, digits and ``. _ -``.
        share: share of function time and cache memory, relative to other teams' shares.
        priority: teams with a higher priority go first; the others get the remaining capacity.
        max_usd: maximum cost of the team's requests, in US dollars.
    """

    name: str = NO_TEAM
    share: float = 1.0
    priority: int = 0
    max_usd: float = math.inf

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigError(
                "a team's name must be 1 to 64 letters, digits, '.', '_' or '-', and start with a letter or "
                f"digit, not {self.name[:80]!r}"
            )
        for name, low, high in (
            ("share", _SHARE_MIN, _SHARE_MAX),
            ("priority", -_PRIORITY_MAX, _PRIORITY_MAX),
            ("max_usd", 0, math.inf),
        ):
            if not low <= (value := getattr(self, name)) <= high:
                raise ConfigError(f"team {self.name}: {name} must be from {low:g} to {high:g}, not {value}")


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Planning limits."""

    # Cache memory for records, in bytes.
    budget_bytes: int
    # Maximum look-ahead per rank.
    lookahead_batches: int = 64
    # Maximum samples per invocation.
    request_samples: int = 64
    # Attempts per sample before a tombstone.
    attempts: int = 3
    # Wait before the second attempt, doubled for each further attempt, up to the maximum.
    backoff_s: float = 0.2
    backoff_max_s: float = 5.0
    # Time within which a function must start a sample.
    request_ttl_s: float = 60.0
    # Time before a sample without attempts left is retried.
    tombstone_ttl_s: float = 60.0
    # A rank that is silent for this long is removed.
    forget_s: float = 1800.0
    # A rank that is silent for this long gets no look-ahead.
    lease_s: float = 15.0
    # A request slower than this quantile may be hedged, for at most this share of requests.
    hedge_quantile: float = 0.95
    hedge_share: float = 0.05
    # Cheapest first.
    executors: tuple[ExecutorFacts, ...] = (ExecutorFacts(),)
    max_usd_per_hour: float = math.inf
    max_usd: float = math.inf
    # Spent by earlier coordinators, in total and by team.
    spent_usd: float = 0.0
    teams_usd: Mapping[str, float] = field(default_factory=dict)
    teams: tuple[Team, ...] = ()
    store: bool = False
    store_read_only: bool = False
    # Whether reading a whole pack costs little more than a single record, as in a bucket.
    whole_packs: bool = False

    def backoff_after_s(self, attempts: int) -> float:
        """Return the wait in seconds after this number of failed attempts."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(max(attempts, 1) - 1, 64))
