"""What the core may be told: bounds and waits, frozen and checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass

from super_wire.errors import ConfigError

__all__ = ["CoreSettings"]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Bounds of planning.

    ``budget_bytes`` of cache memory for records; ``lookahead_batches`` at most per rank; ``request_samples``
    at most per invocation; ``attempts`` per sample before a tombstone; ``backoff_s`` before the second
    attempt, doubled for each further one and never above ``backoff_max_s``; ``request_ttl_s`` for a function
    to begin a sample; ``tombstone_ttl_s`` before a spent sample may be tried again; ``forget_s`` after which
    a silent rank is forgotten.
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

    def __post_init__(self) -> None:
        for name in ("budget_bytes", "lookahead_batches", "request_samples", "attempts"):
            if getattr(self, name) < 1:
                msg = f"{name} is at least 1; not {getattr(self, name)}"
                raise ConfigError(msg)
        for name in ("backoff_s", "backoff_max_s", "request_ttl_s", "tombstone_ttl_s", "forget_s"):
            if not getattr(self, name) > 0:
                msg = f"{name} is above 0; not {getattr(self, name)}"
                raise ConfigError(msg)
        if self.attempts > 100:  # noqa: PLR2004  # attempts are counted in a byte
            msg = f"attempts is at most 100; not {self.attempts}"
            raise ConfigError(msg)

    def backoff_after_s(self, attempts: int) -> float:
        """Wait before the next attempt, after ``attempts`` that failed."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(max(attempts, 1) - 1, 64))
