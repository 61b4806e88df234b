"""What a transform of samples made, as a batch: stacked, listed, or to be finished on the device."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from superdl.super_dataset.memory import Unfinished, empty_batch, in_one_block, memory_here
from superdl.super_dataset.pictures import Planes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.super_dataset.pictures import End

__all__ = ["as_tensor", "batched", "batched_fields", "unfinished"]


def as_tensor(result: Any) -> Any:
    """An array as a tensor; a copy only of what torch cannot take as it is, such as a flipped one."""
    if not isinstance(result, np.ndarray):
        return result
    return torch.from_numpy(np.require(result, requirements=["C", "W"]))


def batched_fields(results: list[Any]) -> Any:
    """Of results that are dicts of the same names, a dict of batches."""
    first = results[0]
    if not all(isinstance(one, dict) and one.keys() == first.keys() for one in results):
        return batched(iter(results), len(results))
    return {name: batched((one[name] for one in results), len(results)) for name in first}


def batched(results: Iterator[Any], count: int, end: End | None = None) -> Any:
    """Tensors of one shape and dtype in one, each copied as soon as it is made, and images that only want
    their end as this makes them; others as a list.
    """
    first = next(results)
    if isinstance(first, Planes) and end is not None:
        like = torch.empty((), dtype=end.dtype).expand(first.pixels.shape)
    elif isinstance(first, torch.Tensor):
        like = first
    else:
        return [first, *results]
    stacked = empty_batch((count, *like.shape), like.dtype, like.device)
    for at, result in enumerate(chain([first], results)):
        if isinstance(result, Planes) and end is not None:
            if result.pixels.shape == like.shape and end.dtype == like.dtype and like.device.type == "cpu":
                end.write(result.pixels, stacked[at].numpy())
                continue
        elif _is_alike(result, like):
            stacked[at].copy_(result)
            continue
        return _listed([_finished(one, end) for one in chain(stacked[:at], [result], results)])
    return stacked


def unfinished(results: Iterator[Any], count: int, end: End) -> Any:
    """Images of one size as they are, with their end to come; others as :func:`_batched` makes them."""
    made: list[Any] = [next(results)]
    if isinstance(made[0], Planes):
        shape = made[0].pixels.shape
        stacked = empty_batch((count, *shape), torch.uint8, torch.device("cpu"))
        for at, result in enumerate(chain([made.pop()], results)):
            if not isinstance(result, Planes) or result.pixels.shape != shape:
                made = [*map(Planes, stacked[:at].numpy()), result]
                break
            np.copyto(stacked[at].numpy(), result.pixels)
        else:
            return Unfinished(stacked, end)
    return batched(chain(made, results), count, end)


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
    made = torch.empty(result.pixels.shape, dtype=end.dtype)
    end.write(result.pixels, made.numpy())
    return made


def _listed(results: list[Any]) -> list[Any]:
    if all(isinstance(result, torch.Tensor) and result.device.type == "cpu" for result in results):
        return in_one_block(results, memory_here())
    return results
