"""``Feed``: one iteration's supply of batches, and how a message of the coordinator becomes one of them.

What it wants is told here; :mod:`superdl.sampler.pages` gets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.sampler.given import GivenOut
from superdl.sampler.window import Planned, Window
from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.label_dtype import label_dtype_of

if TYPE_CHECKING:
    from superdl.sampler.given import Place
    from superdl.super_wire.binding import DatasetBinding

__all__ = ["Feed", "is_ready", "planned_batch"]

PAGE_BATCHES = 32
"""A page is asked for once there is room for so many."""
BUFFER_BATCHES = 2 * PAGE_BATCHES
"""Most batches that an iteration has received and not given out."""


class Feed:
    """What one iteration has received and not given out; an abandoned one just vanishes.

    Attributes:
        given: what has gone out; it may be kept when the feed is not.
        error: why the last page did not come; raised by the next demand, and then forgotten.
        not_before_s: nothing is asked for earlier than that, on the monotonic clock.
        refresh_at_s: when statuses of the window should be asked for, on the monotonic clock.
    """

    def __init__(self, start: Place, end: int, *, reorder: int = 1) -> None:
        self.epoch = start.epoch
        self.window = Window(start.position, end, reorder=reorder, given_ahead=start.given_ahead)
        self.given = GivenOut(start, reorder=reorder)
        self.error: Exception | None = None
        self.not_before_s = self.refresh_at_s = 0.0

    def take(self) -> BatchRef | None:
        """The next batch to give out, or ``None`` if nothing is here."""
        batch = self.window.take()
        if batch is not None:
            self.given.add(batch.position)
        return batch

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
    """The proto message ``Batch`` as something to give out; ``ValueError`` if it is none of its dataset's."""
    size, rest = divmod(len(batch.sample_ids), ID_BYTES)
    label_bytes = label_dtype_of(binding.label_dtype).itemsize
    for what, length, right in (
        ("bytes of sample ids", len(batch.sample_ids), size > 0 and not rest),
        ("bytes of a batch id", len(batch.batch_id), len(batch.batch_id) == ID_BYTES),
        ("bytes of labels", len(batch.labels), len(batch.labels) == size * label_bytes),
        ("bytes of padding", len(batch.padding), len(batch.padding) in {0, size}),
        ("keys", len(batch.keys), len(batch.keys) in {0, size}),
    ):
        if not right:
            raise ValueError(f"batch {batch.position} of {size} samples has {length} {what}")
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
