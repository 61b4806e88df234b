"""Turns a received batch into tensors: views of the buffer where possible, never a decode.

The rule for samples: records that agree in dtype and shape are stacked along a new first dimension; others
come as a list of tensors. Images, that is uint8 records of shape (height, width, channels) with 1, 3 or 4
channels, are viewed as (channels, height, width), so that a batch of them is (batch, channels, height, width)
in channels_last memory format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from superdl.super_dataset.reading.checks import layout_columns
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.label_dtype import label_dtype_of
from superdl.super_wire.record import parse_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superdl.super_dataset.reading.buffer import BatchBuffer

__all__ = ["IMAGE_CHANNELS", "check_label_dtype", "label_tensor", "sample_tensors"]

IMAGE_CHANNELS = (1, 3, 4)
"""Sizes of a uint8 record's third dimension that make it an image."""

_IMAGE_NDIM = 3
_ALIGNMENT = 64  # bytes; a multiple of every dtype's size


def check_label_dtype(name: str) -> None:
    """Refuse, by :class:`~superdl.super_wire.errors.ConfigError`, a label dtype that no tensor can have."""
    try:
        label_tensor(np.empty(0, dtype=label_dtype_of(name)), None)
    except TypeError as error:
        msg = f"labels of dtype {name!r} cannot be a tensor: {error}"
        raise ConfigError(msg) from error


def label_tensor(labels: NDArray[Any], order: Sequence[int] | None) -> torch.Tensor | dict[str, torch.Tensor]:
    """Labels as a tensor of their own dtype and shape (samples, ...), a copy; a dict of such tensors where
    they have named fields. Those at ``order`` if it is given.
    """
    chosen = labels if order is None else labels[np.asarray(order, dtype=np.intp)]
    if chosen.dtype.names is None:
        return torch.from_numpy(chosen.copy() if order is None else chosen)
    return {name: torch.from_numpy(chosen[name].copy()) for name in chosen.dtype.names}


def sample_tensors(buffer: BatchBuffer, order: Sequence[int] | None) -> torch.Tensor | list[torch.Tensor]:
    """The batch's samples, all of them good; those at ``order`` if it is given.

    Without ``order`` a batch of one layout is the buffer's own block, with it a copy (in memory of the
    same kind).
    """
    chosen = range(buffer.size) if order is None else order
    layouts = layout_columns(buffer.raw_headers[list(chosen)])
    if not (layouts == layouts[0]).all():
        flat = _ragged_in_shared_memory(buffer, chosen) if buffer.memory.shared else _ragged(buffer, chosen)
        return [_shaped(item, buffer, offset) for item, offset in zip(flat, chosen, strict=True)]
    if order is None and buffer.block is not None and not buffer.own:
        return _shaped(buffer.block, buffer, chosen[0], stacked=buffer.size)
    item_bytes = len(buffer.payload(chosen[0]))
    stacked = buffer.memory.take(len(chosen) * item_bytes)
    for row, offset in zip(stacked.numpy().reshape(len(chosen), item_bytes), chosen, strict=True):
        row[:] = buffer.payload(offset)
    return _shaped(stacked, buffer, chosen[0], stacked=len(chosen))


def _ragged(buffer: BatchBuffer, chosen: Sequence[int]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.asarray(buffer.payload(offset))) for offset in chosen]


def _ragged_in_shared_memory(buffer: BatchBuffer, chosen: Sequence[int]) -> list[torch.Tensor]:
    """One shared block for samples of different sizes: a block each would cost a file descriptor each."""
    payloads = [np.asarray(buffer.payload(offset)) for offset in chosen]
    starts = [0]
    for payload in payloads:
        starts.append(starts[-1] + -(-payload.nbytes // _ALIGNMENT) * _ALIGNMENT)
    block = buffer.memory.take(starts[-1])
    for start, payload in zip(starts, payloads, strict=False):
        block[start : start + payload.nbytes] = torch.from_numpy(payload)
    return [block[start : start + p.nbytes] for start, p in zip(starts, payloads, strict=False)]


def _shaped(
    flat: torch.Tensor, buffer: BatchBuffer, offset: int, *, stacked: int | None = None
) -> torch.Tensor:
    """Bytes as the sample at ``offset`` is laid out, or as ``stacked`` samples of that layout."""
    header = parse_header(bytes(buffer.raw_headers[offset]))
    shape = header.shape if stacked is None else (stacked, *header.shape)
    tensor = flat.view(getattr(torch, header.dtype)).view(shape)
    if header.dtype == "uint8" and len(header.shape) == _IMAGE_NDIM and header.shape[-1] in IMAGE_CHANNELS:
        return tensor.movedim(-1, -3)
    return tensor
