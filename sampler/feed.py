"""``Feed``: one iteration's supply of batches, and how a message of the coordinator becomes one of them.

What it wants is told here; :mod:`sampler.pages` gets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sampler.window import Planned
from super_wire.batch_ref import BatchRef
from super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from sampler.window import Window
    from super_wire.binding import DatasetBinding

__all__ = ["Feed", "is_ready", "planned_batch"]

PAGE_BATCHES = 32
"""A page is asked for once there is room for so many."""
BUFFER_BATCHES = 2 * PAGE_BATCHES
"""Most batches that an iteration has received and not given out."""


class Feed:
    """What one iteration has received and not given out; an abandoned one just vanishes.

    Attributes:
        error: why the last page did not come; raised by the next demand, and then forgotten.
        refresh_at_s: when statuses of the window should be asked for, on the monotonic clock.
    """

    def __init__(self, epoch: int, window: Window) -> None:
        self.epoch = epoch
        self.window = window
        self.error: Exception | None = None
        self.refresh_at_s = 0.0

    def wants_page(self) -> bool:
        """Whether there is more to ask for, and room for it."""
        window = self.window
        if self.error is not None or window.asked >= window.end:
            return False
        return len(window) <= BUFFER_BATCHES - PAGE_BATCHES

    def room(self) -> int:
        """How many batches may be asked for."""
        return BUFFER_BATCHES - len(self.window)

    def wants_statuses(self) -> bool:
        """Whether newer statuses could change what goes next."""
        return self.error is None and self.window.waits_for_head()


def planned_batch(batch: Any, binding: DatasetBinding, job: str, rank: int, epoch: int) -> Planned:
    """The proto message ``Batch`` as something to give out; ``ValueError`` if it holds no samples."""
    if not batch.sample_ids or len(batch.sample_ids) % ID_BYTES:
        raise ValueError(f"batch {batch.position} has {len(batch.sample_ids)} bytes of sample ids")
    ref = BatchRef(
        dataset_id=binding.dataset_id,
        job=job,
        rank=rank,
        epoch=epoch,
        position=batch.position,
        batch_id=batch.batch_id,
        sample_ids=batch.sample_ids,
        labels=batch.labels,
        label_dtype=binding.label_dtype,
        padding=batch.padding,
        keys=tuple(batch.keys),
        cache=binding.cache,
    )
    return Planned(ref, ready=is_ready(batch))


def is_ready(batch: Any) -> bool:
    """Whether a reader would find every sample of the proto message ``Batch``, or its tombstone."""
    return bool((batch.resident + batch.failed) * ID_BYTES >= len(batch.sample_ids))
