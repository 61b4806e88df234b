"""Building a batch from a transform's results, and taking batches apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from superdl.super_dataset.memory.batch_memory import empty_batch, in_one_block, memory_here
from superdl.super_dataset.memory.device import Unfinished, as_type_of
from superdl.super_dataset.pictures import Planes
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.super_dataset.pictures import End

_NUMBERS = (bool, int, float, np.bool_, np.number)
_PYTHONS_DTYPES = (torch.int64, torch.float64, torch.bool)


class Columns(list[Any]):
    """A list of batches, as one per crop. Other lists have one entry per sample."""


def batched(results: Iterator[Any], count: int, end: End | None = None) -> Any:
    """Return ``count`` results as a batch, as ``default_collate`` does, in recycled memory."""
    results = map(_as_tensor, results)
    first = next(results)
    if isinstance(first, Planes) and end is not None:
        template = torch.empty((), dtype=end.dtype).expand(first.pixels.shape)
    elif isinstance(first, torch.Tensor):
        template = first
    else:
        return _in_structure([first, *results])
    stacked = empty_batch((count, *template.shape), template.dtype, template.device)
    for at, result in enumerate(chain([first], results)):
        if isinstance(result, Planes) and end is not None:
            if (
                result.pixels.shape == template.shape
                and end.dtype == template.dtype
                and template.device.type == "cpu"
            ):
                end.write(result.pixels, stacked[at].numpy())
                continue
        elif _is_alike(result, template):
            stacked[at].copy_(result)
            continue
        # Samples that differ stay a list, where default_collate would raise.
        return _listed([_finished(sample, end) for sample in chain(stacked[:at], [result], results)])
    return stacked


def unfinished(results: Iterator[Any], count: int, end: End) -> Any:
    """Return images of one size without their end; others as :func:`batched`."""
    head: list[Any] = [next(results)]
    if isinstance(head[0], Planes):
        shape = head[0].pixels.shape
        stacked = empty_batch((count, *shape), torch.uint8, torch.device("cpu"))
        for at, result in enumerate(chain([head.pop()], results)):
            if not isinstance(result, Planes) or result.pixels.shape != shape:
                head = [*map(Planes, stacked[:at].numpy()), result]
                break
            np.copyto(stacked[at].numpy(), result.pixels)
        else:
            return Unfinished(stacked, end)
    return batched(chain(head, results), count, end)


def rows_of(batch: Any, *, numbers: bool = False) -> list[Any]:
    """Return a batch's samples, which share its memory."""
    if isinstance(batch, dict):
        columns = [rows_of(part, numbers=numbers) for part in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]
    # Python's numbers, if default_collate would restore the same dtype.
    if numbers and isinstance(batch, torch.Tensor) and batch.ndim == 1 and batch.dtype in _PYTHONS_DTYPES:
        return list(batch.tolist())
    return list(batch)


def only_sample(batch: Any) -> Any:
    """Return the sample of a batch of one; values without an axis stay."""
    if isinstance(batch, Mapping):
        return as_type_of(batch, {name: only_sample(part) for name, part in batch.items()})
    if isinstance(batch, tuple | Columns) or (isinstance(batch, list) and len(batch) != 1):
        return as_type_of(batch, [only_sample(part) for part in batch])
    is_batch = isinstance(batch, list) or (isinstance(batch, torch.Tensor) and batch.ndim and len(batch) == 1)
    return rows_of(batch, numbers=True)[0] if is_batch else batch


def checked_columns(columns: object) -> dict[str, str]:
    """Return column names and their parts, from a mapping or a list of unchanged names."""
    if isinstance(columns, Sequence) and not isinstance(columns, str):
        pairs = [(name, name) for name in columns]
    else:
        pairs = [*columns.items()] if isinstance(columns, Mapping) else []
    if not pairs or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise ConfigError(
            'columns names parts of a batch, as ["image", "mask"], or renames them, as {"pixel_values": '
            f'"images", "labels": "labels"}}; not {columns!r}'
        )
    return dict(pairs)


def in_columns(columns: Mapping[str, str], images: Any, labels: Any) -> dict[str, Any]:
    """Return a batch as a dict of these columns; ``UsageError`` if it lacks a part."""
    parts = dict(images) if isinstance(images, dict) else {"images": images}
    parts["labels"] = labels
    if isinstance(labels, dict):
        parts |= {f"labels.{name}": values for name, values in labels.items()}
    if unknown := [part for part in columns.values() if part not in parts]:
        raise UsageError(
            f"columns names {', '.join(map(repr, unknown))}, and a batch of this dataset has "
            f"{', '.join(map(repr, parts))}"
        )
    return {name: parts[part] for name, part in columns.items()}


def _in_structure(samples: list[Any]) -> Any:
    first, count = samples[0], len(samples)
    if isinstance(first, Mapping):
        if all(isinstance(sample, Mapping) and sample.keys() == first.keys() for sample in samples):
            columns = {name: batched((sample[name] for sample in samples), count) for name in first}
            return as_type_of(first, columns)
    elif isinstance(first, Sequence) and not isinstance(first, str | bytes):
        if all(isinstance(sample, Sequence) and len(sample) == len(first) for sample in samples):
            parts = Columns(batched(iter(column), count) for column in zip(*samples, strict=True))
            return as_type_of(first, parts) if hasattr(first, "_fields") else parts
    elif all(isinstance(sample, _NUMBERS) for sample in samples):
        return default_collate(samples)
    return samples


def _as_tensor(result: Any) -> Any:
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "biufc":
        return result
    # Copied only if torch cannot take it, as a flipped one.
    return torch.from_numpy(np.require(result, requirements=["C", "W"]))


def _is_alike(result: object, first: torch.Tensor) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and result.shape == first.shape
        and result.dtype == first.dtype
        and result.device == first.device
    )


def _finished(result: Any, end: End | None) -> Any:
    if end is None or not isinstance(result, Planes):
        return result
    finished = torch.empty(result.pixels.shape, dtype=end.dtype)
    end.write(result.pixels, finished.numpy())
    return finished


def _listed(results: list[Any]) -> list[Any]:
    if all(isinstance(result, torch.Tensor) and result.device.type == "cpu" for result in results):
        return in_one_block(results, memory_here())
    return results
