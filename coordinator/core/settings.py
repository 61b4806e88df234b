"""Settings of the core: bounds, waits, prices and datasets, frozen and checked on creation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.coordinator.core.samples import Ints
    from superdl.coordinator.core.teams import Team


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per unit of use; all zero if nothing is billed by use.

    ``invocation``: one request to a function; ``gb_s``: one second of one GB (2**30 bytes) of its memory;
    ``source_request``: one GET, of the source or of a store in a bucket, ``store_put``: one PUT there;
    ``source_gb`` and ``record_gb``: one GB fetched from the source, and written to or read from the cache;
    ``hour``: the cache and the coordinator, used or not; ``coordinator_hour``: the coordinator's part of it.
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
        """True if any price is above 0."""
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
class DatasetFacts:
    """A catalog under a recipe; ``random`` recipes have fresh samples each epoch.

    ``content`` is its digest, ``record_bytes`` the expected length of a record; ``known_absent``: the cache
    was seen empty. ``runs`` (int64) are the places in the catalog where runs of neighbours begin
    (:func:`superdl.coordinator.core.runs_of`); ``None`` if each sample has its own object.
    """

    content: bytes
    size: int
    random: bool
    record_bytes: int
    known_absent: bool
    runs: Ints | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """Facts about an executor: its name for users, its prices, whether its functions see the store, and
    whether they decode; if not, they only restore and save.
    """

    name: str = "local"
    prices: Prices = field(default_factory=Prices)
    sees_store: bool = True
    decodes: bool = True


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Bounds of planning.

    ``budget_bytes`` of cache memory for records; ``lookahead_batches`` at most ahead of a rank;
    ``request_samples`` at most per invocation; ``attempts`` per sample before a tombstone; ``backoff_s``
    before the second attempt, doubled for each further one and never above ``backoff_max_s``;
    ``request_ttl_s`` for a function to begin a sample; ``tombstone_ttl_s`` before a sample without attempts
    left may be tried again; ``forget_s`` after which a silent rank is forgotten; ``lease_s`` after which
    nothing is looked ahead for it. A request that takes longer than ``hedge_quantile`` of all may be raced by
    a second one, as long as those are at most ``hedge_share`` of all requests. ``executors`` are listed
    cheapest first; ``max_usd_per_hour`` and ``max_usd`` bound spending at their prices; ``spent_usd`` was
    spent by earlier coordinators. ``teams`` share all this; ``teams_usd`` is the previous cost of each team's
    requests. ``store``: there is one; ``store_read_only``: nothing is written to it; ``whole_packs``: reading
    a whole pack costs hardly more than one record, as in a bucket.
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
    teams: tuple[Team, ...] = ()
    teams_usd: Mapping[str, float] = field(default_factory=dict)
    store: bool = False
    store_read_only: bool = False
    whole_packs: bool = False

    def backoff_after_s(self, attempts: int) -> float:
        """Return the wait in seconds after ``attempts`` that failed."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(max(attempts, 1) - 1, 64))
