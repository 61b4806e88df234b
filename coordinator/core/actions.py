"""What the core wants done: frozen instructions that the runtime carries out and answers with events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.core.samples import SetKey

__all__ = ["Action", "Audit", "Drop", "Prefetch", "ReadBack", "Warn", "WriteTombstones"]


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Ask a function for these samples; answered by ``RequestDone`` or ``RequestFailed``.

    ``expires_in_s`` counts from now: what has not been begun by then is not begun. ``hedge_of`` names a
    request in flight for the same samples, which this one races; ``executor`` is the number of the one that
    is to carry it out.
    """

    request_id: int
    job: str
    samples: SetKey
    indices: NDArray[np.int64]
    expires_in_s: float
    hedge_of: int | None = None
    executor: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """Ask the cache whether it holds these samples; answered by ``Audited``.

    ``whole``: read each record to its end and check it, since a reader says that it is spoilt.
    """

    audit_id: int
    samples: SetKey
    indices: NDArray[np.int64]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete these samples' records; not answered."""

    samples: SetKey
    indices: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WriteTombstones:
    """Write tombstones that expire, for ``reason``; not answered."""

    samples: SetKey
    indices: NDArray[np.int64]
    messages: tuple[str, ...]
    expires_in_s: float
    reason: str = "retries_spent"


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Read a record that an executor has just written, and check it; answered by ``RecordReadBack``, or not
    at all where it is not there.
    """

    samples: SetKey
    index: int
    executor: int


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell people; not answered."""

    message: str


Action: TypeAlias = Audit | Drop | Prefetch | ReadBack | Warn | WriteTombstones
