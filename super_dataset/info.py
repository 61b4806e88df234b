"""``BatchInfo``: what is known of one delivered batch beside its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superdl.super_dataset.reading.progress import BatchProgress

__all__ = ["BatchInfo", "batch_info"]


@dataclass(slots=True, eq=False)  # not frozen: what Lightning does to batches it refuses to do to those
class BatchInfo:
    """Where a batch came from, what it cost and what was wrong with it.

    It pickles small; pinning and collating leave it as it is, and so does moving it to a device.
    ``sample_ids`` (16 bytes each), ``keys`` (empty if the plan's page had no room for them) and ``padding``
    (bool of shape (samples,); ``None``: no sample is padding) follow the delivered samples, in their order,
    also where some were skipped or replaced.
    """

    job: str
    batch_id: bytes
    """Of the batch as planned; 16 bytes."""
    epoch: int
    position: int
    """Which batch of this rank's epoch, from 0."""
    rank: int
    sample_ids: bytes
    keys: tuple[str, ...]
    padding: NDArray[np.bool_] | None
    fetch_s: float
    """Seconds that functions spent fetching the delivered samples, whenever that was; from the records."""
    decode_s: float
    """Seconds that functions spent decoding and transforming them."""
    read_s: float
    """Seconds spent asking the cache and receiving."""
    check_s: float
    """Seconds spent checking headers, and the payloads whose hash is verified."""
    wait_s: float
    """Seconds slept between attempts because samples were missing or the cache was away."""
    size_bytes: int
    """Bytes of records received."""
    hits: int
    """Samples that the first GET found."""
    misses: int
    """Samples that it did not find, or found corrupt."""
    bad: tuple[tuple[str, str], ...] = ()
    """(key, reason) of samples that could not be produced and were skipped or replaced."""

    def to(self, *_args: object, **_how: object) -> Self:
        """Itself: there is nothing in it to be moved. Frameworks call this on all that a batch holds."""
        return self


def batch_info(read: BatchProgress, order: Sequence[int] | None) -> BatchInfo:
    """The info of a batch of which the samples at ``order`` are delivered; ``None``: all, as planned."""
    ref, headers = read.ref, read.buffer.headers
    sample_ids, keys, padding = ref.sample_ids, ref.keys, ref.padding_mask() if ref.padding else None
    if order is not None:
        headers = headers[list(order)]
        sample_ids = b"".join(sample_ids[at * ID_BYTES : (at + 1) * ID_BYTES] for at in order)
        keys = tuple(keys[at] for at in order) if keys else ()
        padding = None if padding is None else padding[list(order)]
    return BatchInfo(
        job=ref.job,
        batch_id=ref.batch_id,
        epoch=ref.epoch,
        position=ref.position,
        rank=ref.rank,
        sample_ids=sample_ids,
        keys=keys,
        padding=padding,
        fetch_s=float(headers["fetch_us"].sum(dtype=np.int64)) / 1e6,
        decode_s=float(headers["decode_us"].sum(dtype=np.int64)) / 1e6,
        read_s=read.read_s,
        check_s=read.check_s,
        wait_s=read.wait_s,
        size_bytes=read.size_bytes,
        hits=read.hits,
        misses=len(ref) - read.hits,
        bad=tuple((ref.name_of(at), reason) for at, reason in sorted(read.bad.items())),
    )
