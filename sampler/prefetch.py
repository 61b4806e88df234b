"""One iteration's batches on their way to the trainer: what was asked for, what goes next, what has gone out.

In order, the next batch is the head: the lowest position. With ``reorder`` above 1, a batch whose samples are
all in the cache (or failed) may go before a head that still waits, if it lies among the first ``reorder``
positions from the head on. A position in the plan is then more than a number: some batches beyond it are gone
already. No I/O and no threads: :mod:`superdl.sampler.pages` brings both.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superdl.super_wire.batch_ref import BatchRef, Places
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.labels import unpack_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.super_wire.batch_ref import DatasetBinding

__all__ = [
    "Delivered",
    "PlanPosition",
    "PrefetchBuffer",
    "is_ready",
    "planned_batch",
]

PAGE_BATCHES = 32
"""A page is asked for once there is room for so many."""
BUFFER_BATCHES = 2 * PAGE_BATCHES
"""Most batches that an iteration has received and not given out."""


@dataclass(frozen=True, slots=True)
class PlanPosition:
    """All batches of ``epoch`` before ``position`` were given out, and of the others those in
    ``delivered_ahead``.
    """

    epoch: int = 0
    position: int = 0
    delivered_ahead: tuple[int, ...] = ()


class Delivered:
    """The batches that an iteration has given out, and the place after any number of them.

    In order, counting suffices. Else the positions are kept, 8 bytes each; since no batch goes more than
    ``reorder - 1`` positions early, the place after ``n`` batches follows from the last few before the n-th.

    Args:
        start: where the iteration began.
        reorder: positions among which the next batch is chosen; 1: in order.
    """

    def __init__(self, start: PlanPosition, *, reorder: int = 1) -> None:
        self.start = start
        self.count = 0
        self._span = max([reorder, *(position - start.position + 1 for position in start.delivered_ahead)])
        self._order = array("Q") if self._span > 1 else None

    def add(self, position: int) -> None:
        """The batch at ``position`` was given out."""
        self.count += 1
        if self._order is not None:
            self._order.append(position)

    def place(self, count: int | None = None) -> PlanPosition:
        """Where a reader of the first ``count`` batches stands (``None``: of all); at most ``self.count``."""
        count = self.count if count is None else count
        start = self.start
        if self._order is None:
            return PlanPosition(start.epoch, start.position + count)
        known = {*start.delivered_ahead, *self._order[max(0, count - 2 * self._span) : count]}
        gone = count + len(start.delivered_ahead)
        head = max(start.position, start.position + gone - self._span)
        while head in known:
            head += 1
        ahead = sorted(position for position in known if position > head)
        return PlanPosition(start.epoch, head, tuple(ahead))


class PrefetchBuffer:
    """What one iteration has received and not given out; an abandoned one just vanishes.

    Attributes:
        head: the first position not given out.
        asked: the first position not received yet.
        end: batches in the epoch.
        delivered: what has gone out; it may be kept when the buffer is not.
        error: why the last page did not come; raised by the next demand, and then forgotten.
        not_before_s: nothing is asked for earlier than that, on the monotonic clock.
        refresh_at_s: when statuses of the window should be asked for, on the monotonic clock.
    """

    def __init__(self, start: PlanPosition, end: int, *, reorder: int = 1) -> None:
        self.epoch = start.epoch
        self.head = self.asked = start.position
        self.end = end
        self.delivered = Delivered(start, reorder=reorder)
        self.error: Exception | None = None
        self.not_before_s = self.refresh_at_s = 0.0
        self._reorder = reorder
        self._waiting: dict[int, BatchRef] = {}
        self._ready: set[int] = set()  # of those that wait
        # by an earlier iteration that this one goes on with
        self._delivered_before = frozenset(start.delivered_ahead)

    def __len__(self) -> int:
        """Batches that could be given out."""
        return len(self._waiting)

    @property
    def exhausted(self) -> bool:
        """Whether all of the epoch was given out."""
        return self.head >= self.end

    def add(self, batch: BatchRef, *, ready: bool) -> None:
        """Take the batch at ``asked``, unless it was given out before; ``ValueError`` if it is another.

        ``ready``: a reader would find all of it at once, as far as is known.
        """
        if batch.position != self.asked or self.asked >= self.end:
            raise ValueError(f"batch {batch.position} came where {self.asked} of {self.end} was next")
        if self.asked not in self._delivered_before:
            self._waiting[self.asked] = batch
            if ready:
                self._ready.add(self.asked)
        self.asked += 1
        self._pass_delivered()

    def mark_ready(self, position: int) -> None:
        """A newer status: all samples of that batch are in the cache, or failed."""
        if position in self._waiting:
            self._ready.add(position)

    def take(self) -> BatchRef | None:
        """The next batch to give out, or ``None`` if nothing is here."""
        if not self._waiting:
            return None
        position = next((one for one in self.reorderable() if one in self._ready), self.head)
        self._ready.discard(position)
        batch = self._waiting.pop(position)
        self._pass_delivered()
        self.delivered.add(position)
        return batch

    def reorderable(self) -> range:
        """Positions among which the next is chosen."""
        return range(self.head, min(self.head + self._reorder, self.asked))

    def wants_statuses(self) -> bool:
        """Whether newer statuses could change what goes next."""
        waits = self.head in self._waiting and self.head not in self._ready
        return self.error is None and self._reorder > 1 and waits

    def wants_page(self) -> bool:
        """Whether there is more to ask for, and room for it."""
        return self.error is None and self.asked < self.end and self.room() >= PAGE_BATCHES

    def room(self) -> int:
        """How many batches may be asked for."""
        return BUFFER_BATCHES - len(self._waiting)

    def _pass_delivered(self) -> None:
        while self.head < self.asked and self.head not in self._waiting:
            self.head += 1


def planned_batch(
    batch: Any,
    packs: Sequence[str],
    binding: DatasetBinding,
    job: str,
    rank: int,
    epoch: int,
    seed: int = 0,
    *,
    may_be_empty: bool = False,
    alone: bool = False,
) -> BatchRef:
    """The proto message ``Batch`` as something to give out; ``ValueError`` if it is none of its dataset's.

    ``packs`` are those that its page names. What is part of a mix's batch may be empty. ``alone`` is as in
    :class:`BatchRef`.
    """
    size, rest = divmod(len(batch.sample_ids), ID_BYTES)
    for what, length, right in (
        ("bytes of sample ids", len(batch.sample_ids), not rest and (size > 0 or may_be_empty)),
        ("bytes of a batch id", len(batch.batch_id), len(batch.batch_id) == ID_BYTES),
        ("bytes of padding", len(batch.padding), len(batch.padding) in {0, size}),
        ("bytes of repetitions", len(batch.repetitions), len(batch.repetitions) in {0, 4 * size}),
        ("keys", len(batch.keys), len(batch.keys) in {0, size}),
        ("bytes of packs' numbers", len(batch.pack_of), len(batch.pack_of) in {0, 4 * size}),
        ("bytes of places", len(batch.offsets), len(batch.offsets) == 2 * len(batch.pack_of)),
        ("bytes of lengths", len(batch.lengths), len(batch.lengths) == len(batch.pack_of)),
    ):
        if not right:
            raise ValueError(f"batch {batch.position} of {size} samples has {length} {what}")
    places = None
    try:
        unpack_labels(batch.labels, binding.label_dtype, size)
        if batch.pack_of and binding.store:
            places = Places.of_page(packs, batch.pack_of, batch.offsets, batch.lengths)
    except ValueError as error:
        raise ValueError(f"batch {batch.position}: {error}") from error
    return BatchRef(
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
        store=binding.store,
        places=places,
        seed=seed,
        repetitions=batch.repetitions,
        alone=alone,
    )


def is_ready(batch: Any) -> bool:
    """Whether a reader would find every sample of the proto message ``Batch``, or its tombstone, now."""
    return bool((batch.resident + batch.failed) * ID_BYTES >= len(batch.sample_ids))
