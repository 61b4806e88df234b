"""Delivery of a batch: conversion of its samples to tensors, and its ``BatchInfo``."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
import torch

from superdl.super_dataset.memory.batch_memory import cut_up, in_one_block
from superdl.super_dataset.reading.batch import LAYOUT, bad_sample_error
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.labels import RaggedLabels, label_fields_of
from superdl.super_wire.record import RecordKind, parse_header
from superdl.super_wire.record_kinds import array_locations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from superdl.super_dataset.reading.batch import Batch
    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.labels import Labels
    from superdl.super_wire.record_kinds import ArrayLocation

OnBadSample: TypeAlias = Literal["raise", "skip", "replace"]
Padding: TypeAlias = Literal["keep", "skip"]
_Tensors: TypeAlias = "torch.Tensor | list[torch.Tensor]"
SampleTensors: TypeAlias = "_Tensors | dict[str, _Tensors]"

_IMAGE_CHANNELS = (1, 3, 4)
_IMAGE_NDIM = 3


def delivered_order(
    ref: BatchRef, bad: Mapping[int, str], policy: OnBadSample, padding: Padding = "keep"
) -> list[int] | None:
    """Return the offsets to deliver, in order, or ``None`` to deliver all samples as planned.

    The list is empty if all samples are bad. ``skip`` drops bad samples. ``replace`` repeats the batch's next
    good sample, wrapping around at the end. ``raise`` raises ``BadSampleError``.
    """
    offsets = list(range(len(ref)))
    if padding == "skip" and ref.padding:
        # A batch of only padding keeps one sample, so that all ranks take the same number of steps.
        offsets = np.flatnonzero(~ref.padding_mask()).tolist() or offsets[:1]
    if not bad:
        return offsets if len(offsets) < len(ref) else None
    if policy == "raise":
        raise bad_sample_error(ref, bad)
    good = [offset for offset in offsets if offset not in bad]
    if policy == "skip" or not good:
        return good
    return [good[bisect_left(good, offset) % len(good)] for offset in offsets]


def check_label_dtype(name: str) -> None:
    """Raise ``ConfigError`` for a label dtype that torch lacks."""
    try:
        for field in label_fields_of(name).values():
            torch.from_numpy(np.empty(0, dtype=field.dtype.base))
    except TypeError as error:
        raise ConfigError(f"labels of dtype {name!r} cannot be converted to a tensor: {error}") from error


def label_tensor(labels: Labels, order: Sequence[int] | None) -> SampleTensors:
    """Copy labels, or those at the indices in ``order``, to a tensor of shape (samples, ...).

    Lists of varying length become a list of tensors. Named fields become a dict of such values.
    """
    indices = np.arange(len(labels)) if order is None else np.asarray(order, dtype=np.intp)
    chosen = labels[indices]
    if isinstance(chosen, RaggedLabels):
        fields = {name: _column_tensors(chosen, name) for name in chosen.names}
        return fields.get("", fields)
    if chosen.dtype.names is None:
        return torch.from_numpy(chosen)
    return {name: torch.from_numpy(chosen[name].copy()) for name in chosen.dtype.names}


def _column_tensors(labels: RaggedLabels, name: str) -> _Tensors:
    if name not in labels.values:
        return torch.from_numpy(labels.of_rows(name).copy())
    return list(torch.split(torch.from_numpy(labels.values[name]), labels.of_rows(name).tolist()))


def sample_tensors(buffer: BatchBuffer, order: Sequence[int] | None) -> SampleTensors:
    """Return a batch's samples, if all are good, or a copy of those at the indices in ``order``.

    Records of the same dtype and shape are stacked. Others become a list of tensors. Named arrays become a
    dict of either, which is always a copy. Raises ``UsageError`` if names differ between samples.
    """
    chosen = range(buffer.size) if order is None else order
    kinds = buffer.headers["kind"][list(chosen)]
    if (kinds == RecordKind.ARRAYS).any():
        return _field_tensors(buffer, chosen)
    layouts = buffer.raw_headers[list(chosen)][:, LAYOUT]
    if not (layouts == layouts[0]).all():
        payloads = [torch.from_numpy(np.asarray(buffer.payload(offset))) for offset in chosen]
        for at, offset in enumerate(chosen):
            if offset in chosen[:at]:  # repeated samples must not share memory
                payloads[at] = payloads[at].clone()
        flat = in_one_block(payloads, buffer.memory)
        return [_shaped(item, buffer, offset) for item, offset in zip(flat, chosen, strict=True)]
    if order is None and buffer.block is not None and not buffer.own:
        # Return the buffer's block without a copy.
        return _shaped(buffer.block, buffer, chosen[0], stacked=buffer.size)
    item_bytes = len(buffer.payload(chosen[0]))
    stacked = buffer.memory.take(len(chosen) * item_bytes)
    for row, offset in zip(stacked.numpy().reshape(len(chosen), item_bytes), chosen, strict=True):
        row[:] = buffer.payload(offset)
    return _shaped(stacked, buffer, chosen[0], stacked=len(chosen))


def _shaped(
    flat: torch.Tensor, buffer: BatchBuffer, offset: int, *, stacked: int | None = None
) -> torch.Tensor:
    """View bytes as the sample at ``offset``, or as ``stacked`` samples with the same layout."""
    header = parse_header(bytes(buffer.raw_headers[offset]))
    return _laid_out(flat, header.dtype, header.shape, stacked)


def _laid_out(
    flat: torch.Tensor, dtype: str, shape: tuple[int, ...], stacked: int | None = None
) -> torch.Tensor:
    tensor = flat.view(getattr(torch, dtype)).view(shape if stacked is None else (stacked, *shape))
    if dtype == "uint8" and len(shape) == _IMAGE_NDIM and shape[-1] in _IMAGE_CHANNELS:
        # A view as (channels, height, width) makes a batch channels_last.
        return tensor.movedim(-1, -3)
    return tensor


def _field_tensors(buffer: BatchBuffer, chosen: Sequence[int]) -> dict[str, _Tensors]:
    samples = [_arrays_in(buffer, offset) for offset in chosen]
    if len(names := {tuple(arrays) for arrays in samples}) > 1:
        raise UsageError(
            "a recipe must produce the same fields for each sample, but in this batch some have "
            + ", others ".join("(" + (", ".join(keys) or "one unnamed array") + ")" for keys in names)
        )
    # Put all fields into one block, name by name, so that a worker sends a single block.
    columns = {name: [arrays[name] for arrays in samples] for name in samples[0]}
    alike = {
        name: len({(array.dtype, array.shape) for array in column}) == 1 for name, column in columns.items()
    }
    sizes = {name: [array.stop - array.start for array in column] for name, column in columns.items()}
    pieces = [[sum(sizes[name])] if alike[name] else sizes[name] for name in columns]
    flats = iter(cut_up(buffer.memory, [size for piece in pieces for size in piece]))
    tensors: dict[str, _Tensors] = {}
    for name, column in columns.items():
        first = column[0]
        if alike[name]:
            flat = next(flats)
            targets = list(flat.numpy().reshape(len(column), sizes[name][0]))
            tensors[name] = _laid_out(flat, first.dtype.name, first.shape, len(column))
        else:
            parts = [next(flats) for _ in column]
            targets = [part.numpy() for part in parts]
            tensors[name] = [
                _laid_out(part, array.dtype.name, array.shape)
                for part, array in zip(parts, column, strict=True)
            ]
        for target, offset, array in zip(targets, chosen, column, strict=True):
            target[:] = buffer.payload(offset)[array.start : array.stop]
    return tensors


def _arrays_in(buffer: BatchBuffer, offset: int) -> dict[str, ArrayLocation]:
    """Return the locations of a sample's named arrays, or an empty dict for a single array."""
    if buffer.headers["kind"][offset] != RecordKind.ARRAYS:
        return {}
    return {array.name: array for array in array_locations(buffer.payload(offset))}


@dataclass(slots=True, eq=False)  # not frozen: Lightning refuses frozen dataclasses in batches
class BatchInfo:
    """Origin, read statistics and bad samples of a batch.

    It is small when pickled, and pinning, collating or moving it to a device leaves it unchanged.
    ``sample_ids`` (16 bytes each), ``keys`` (empty if the plan's page had no room for them) and ``padding``
    (bool of shape (samples,), or ``None`` if no sample is padding) match the delivered samples in order, even
    if some were skipped or replaced. If all were bad and samples of an earlier batch are repeated instead,
    all of them count as padding.

    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32), return_info=True)
    >>> sampler = SuperSampler(dataset, batch_size=3, shuffle=False, job="info")
    >>> *_, (images, labels, info) = SuperLoader(dataset, sampler)
    >>> info.epoch, info.position, info.keys, info.bad
    (0, 2, ('dog/00003.jpg', 'dog/00007.jpg'), ())
    """

    job: str
    batch_id: bytes
    """The planned batch's id, 16 bytes."""
    epoch: int
    position: int
    """The batch's position in this rank's epoch, counted from 0."""
    rank: int
    sample_ids: bytes
    keys: tuple[str, ...]
    padding: NDArray[np.bool_] | None
    fetch_s: float
    """Time in seconds that functions spent fetching the delivered samples, in this epoch or earlier."""
    decode_s: float
    """Time in seconds that functions spent decoding and transforming the delivered samples."""
    read_s: float
    """Time in seconds spent reading packs, querying the cache and receiving."""
    check_s: float
    """Time in seconds spent checking headers and hashing payloads."""
    wait_s: float
    """Time in seconds spent waiting because samples were missing or the cache was unreachable."""
    size_bytes: int
    """Size of the records read from cache and packs, in bytes."""
    hits: int
    """Number of samples found by the first GET."""
    misses: int
    """Number of samples that the first GET did not find or found corrupt."""
    straight: int = 0
    """Number of samples read directly from the store's packs, which are neither hits nor misses."""
    seed: int = 0
    """The sampler's seed."""
    bad: tuple[tuple[str, str], ...] = ()
    """The (key, reason) of each sample that could not be produced and was skipped or replaced."""
    repetitions: NDArray[np.uint32] | None = None
    """Number of earlier draws of each delivered sample in this epoch, or ``None`` if all are 0."""

    @property
    def draw_ids(self) -> bytes:
        """Return a 16-byte random seed for each delivered sample.

        The seed is the sample's id. If the sample was already drawn in this epoch, the id is altered so
        that each draw has its own seed.
        """
        if self.repetitions is None:
            return self.sample_ids
        words = np.frombuffer(self.sample_ids, dtype="<u4").reshape(-1, ID_BYTES // 4).copy()
        words[:, -1] ^= self.repetitions
        return words.tobytes()

    def to(self, *_args: object, **_how: object) -> Self:
        """Return ``self``. Frameworks call this method on everything in a batch."""
        return self


def batch_info(read: Batch, order: Sequence[int] | None) -> BatchInfo:
    """Return the info for the samples at the indices in ``order``, or for all samples if it is ``None``."""
    ref, headers = read.ref, read.buffer.headers
    sample_ids, keys, padding = ref.sample_ids, ref.keys, ref.padding_mask() if ref.padding else None
    repetitions = np.frombuffer(ref.repetitions, dtype="<u4") if ref.repetitions else None
    if order is not None:
        headers = headers[list(order)]
        sample_ids = b"".join(sample_ids[at * ID_BYTES : (at + 1) * ID_BYTES] for at in order)
        keys = tuple(keys[at] for at in order) if keys else ()
        padding = None if padding is None else padding[list(order)]
        repetitions = None if repetitions is None else repetitions[list(order)]
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
        size_bytes=read.size_bytes + read.straight_bytes,
        hits=read.hits,
        misses=len(ref) - read.hits - read.straight,
        straight=read.straight,
        seed=ref.seed,
        bad=tuple((ref.name_of(at), reason) for at, reason in sorted(read.bad.items())),
        repetitions=repetitions,
    )


_KEPT_MAX = 8


class LastGood:
    """A few samples of the last good batch, kept to fill batches that have no good samples."""

    def __init__(self, images: SampleTensors, labels: SampleTensors, info: BatchInfo) -> None:
        # Copies, since the training loop may change a batch in place. Eight samples cost little.
        self._count = min(_KEPT_MAX, len(info.sample_ids) // ID_BYTES)
        kept = range(self._count)
        self._images, self._labels, self._info = _copies(images, kept), _copies(labels, kept), info

    def fill(self, info: BatchInfo, size: int) -> tuple[SampleTensors, SampleTensors, BatchInfo]:
        """Return ``size`` samples, repeated as needed, as padding in place of the batch of ``info``."""
        rows, last = [row % self._count for row in range(size)], self._info
        ids = (last.sample_ids[at * ID_BYTES : (at + 1) * ID_BYTES] for at in rows)
        filled = replace(
            info,
            sample_ids=b"".join(ids),
            keys=tuple(last.keys[at] for at in rows) if last.keys else (),
            padding=np.ones(size, dtype=np.bool_),
            repetitions=None if last.repetitions is None else last.repetitions[rows],
        )
        return _copies(self._images, rows), _copies(self._labels, rows), filled


def _copies(tensors: SampleTensors, rows: Sequence[int]) -> Any:
    if isinstance(tensors, dict):
        return {name: _copies(part, rows) for name, part in tensors.items()}
    if isinstance(tensors, list):
        return [tensors[at].clone() for at in rows]
    return tensors[list(rows)]
