"""Says what each received record is: a good sample, a tombstone, or corrupt and why.

The headers of a whole batch are compared at once with the first good one; only those that differ are read one
by one. The payload hash, which costs more than the read, is verified for a share of the samples that changes
from epoch to epoch, so that in time every sample has its turn, or for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from super_wire.errors import RecordError
from super_wire.ids import ID_BYTES
from super_wire.record import HEADER_BYTES, Kind, Tombstone, parse_header, read_tombstone, verify_payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from super_dataset.buffer import BatchBuffer
    from super_wire.record import Header

__all__ = ["VERIFIED_SHARE", "Verdict", "Verify", "check_records", "layout_columns", "to_verify"]

Verify: TypeAlias = Literal["sample", "all"]

VERIFIED_SHARE = 64
"""With ``verify="sample"``, one in this many payloads is hashed."""

# The bytes of a header that two samples of one layout share: magic to payload length, and shape.
_LAYOUT = np.r_[0:16, 24:48]


@dataclass(slots=True)
class Verdict:
    """What was found out about some samples of a batch, by offset."""

    tombstones: dict[int, Tombstone] = field(default_factory=dict)
    corrupt: dict[int, RecordError] = field(default_factory=dict)


def layout_columns(raw_headers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Of headers as uint8 of shape (n, 64), the bytes that are equal where dtype and shape are."""
    return raw_headers[:, _LAYOUT]


def to_verify(sample_ids: bytes, epoch: int, verify: Verify) -> NDArray[np.bool_]:
    """Which samples of a batch have their payload hashed, as an array of shape (samples,)."""
    count = len(sample_ids) // ID_BYTES
    if verify == "all":
        return np.ones(count, dtype=np.bool_)
    chance = np.frombuffer(sample_ids, dtype="<u8")[::2]
    chosen: NDArray[np.bool_] = (chance + np.uint64(epoch % VERIFIED_SHARE)) % np.uint64(VERIFIED_SHARE) == 0
    return chosen


def check_records(buffer: BatchBuffer, offsets: Sequence[int], verify: NDArray[np.bool_]) -> Verdict:
    """Check the records received for ``offsets``; those in neither of the verdict's mappings are good.

    Args:
        buffer: every one of ``offsets`` has a record in it.
        offsets: the samples to check.
        verify: whose payload is hashed, shape (samples of the batch,).
    """
    verdict = Verdict()
    if not offsets:
        return verdict
    raw = buffer.raw_headers[offsets]
    first = _check_one(buffer, offsets[0], verdict)
    if first is None:
        strangers = list(range(1, len(offsets)))
    else:
        layout = layout_columns(raw)
        lengths = buffer.record_bytes[offsets]
        alike = (layout == layout[0]).all(axis=1) & (lengths == lengths[0])
        strangers = np.flatnonzero(~alike).tolist()
    for place in strangers:
        _check_one(buffer, offsets[place], verdict)
    for place in np.flatnonzero(verify[offsets]).tolist():
        offset = offsets[place]
        if offset not in verdict.corrupt and offset not in verdict.tombstones:
            _verify_one(buffer, offset, verdict)
    return verdict


def _check_one(buffer: BatchBuffer, offset: int, verdict: Verdict) -> Header | None:
    """Check one record on its own; its header if it is good data."""
    try:
        record_bytes = int(buffer.record_bytes[offset])
        if record_bytes < HEADER_BYTES:
            parse_header(buffer.payload(offset))
        raw_header = bytes(buffer.raw_headers[offset])
        header = parse_header(raw_header, record_bytes=record_bytes)
        if header.kind is Kind.TOMBSTONE:
            verdict.tombstones[offset] = read_tombstone(raw_header + bytes(buffer.payload(offset)))
            return None
    except RecordError as error:
        verdict.corrupt[offset] = error
        return None
    return header


def _verify_one(buffer: BatchBuffer, offset: int, verdict: Verdict) -> None:
    try:
        verify_payload(parse_header(bytes(buffer.raw_headers[offset])), buffer.payload(offset))
    except RecordError as error:
        verdict.corrupt[offset] = error
