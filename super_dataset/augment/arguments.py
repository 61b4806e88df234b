"""Checks of what an ``Augment`` is given, and the form in which it keeps it. Names are torchvision's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DTYPES",
    "checked_dtype",
    "checked_seed",
    "jitter_range",
    "moments",
    "pair",
    "probability",
    "sides",
]

DTYPES = (torch.uint8, torch.float32, torch.bfloat16, torch.float16)
"""What images may be delivered as."""

_MAX_SIDE = 16384
_INT64 = 2**63
_PAIR = 2


def sides(value: object) -> tuple[int, int] | None:
    """Height and width of what is delivered, from a side or a pair; ``None``: as it comes."""
    if value is None:
        return None
    given = value if isinstance(value, (list, tuple)) else (value, value)
    whole = [side for side in given if isinstance(side, int) and not isinstance(side, bool)]
    if len(given) != _PAIR or len(whole) != _PAIR or not all(1 <= side <= _MAX_SIDE for side in whole):
        msg = f"size is a side or (height, width), whole pixels from 1 to {_MAX_SIDE}; not {value!r}"
        raise ConfigError(msg)
    return whole[0], whole[1]


def pair(name: str, value: Any, *, high: float) -> tuple[float, float]:
    """(low, high) of a range of numbers above 0."""
    numbers = _numbers(value)
    if numbers is None or len(numbers) != _PAIR or not 0 < numbers[0] <= numbers[1] <= high:
        msg = f"{name} is a pair (low, high) with 0 < low <= high <= {high:g}; not {value!r}"
        raise ConfigError(msg)
    return numbers[0], numbers[1]


def probability(name: str, value: object) -> float:
    """A number from 0 to 1."""
    numbers = _numbers([value])
    if numbers is None or not 0 <= numbers[0] <= 1:
        msg = f"{name} is a probability from 0 to 1; not {value!r}"
        raise ConfigError(msg)
    return numbers[0]


def jitter_range(name: str, value: Any) -> tuple[float, float] | None:
    """The range of a colour factor as ColorJitter takes it: a number or a pair; ``None``: no change."""
    centre, low, high = (0.0, -0.5, 0.5) if name == "hue" else (1.0, 0.0, math.inf)
    if isinstance(value, (list, tuple)):
        numbers = _numbers(value)
    else:
        width = _numbers([value])
        numbers = None if width is None or width[0] < 0 else [centre - width[0], centre + width[0]]
        if numbers is not None and name != "hue":
            numbers[0] = max(numbers[0], 0.0)
    if numbers is None or len(numbers) != _PAIR or not low <= numbers[0] <= numbers[1] <= high:
        span = "from 0 to 0.5" if name == "hue" else "not below 0"
        limits = f"with {low:g} <= low <= high" + (f" <= {high:g}" if math.isfinite(high) else "")
        msg = f"{name} is a number {span}, or a pair (low, high) {limits}; not {value!r}"
        raise ConfigError(msg)
    return None if numbers == [centre, centre] else (numbers[0], numbers[1])


def moments(mean: Any, std: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation for each channel, of pixels from 0 to 1; ``None`` if neither is given."""
    if mean is None and std is None:
        return None
    means, stds = _numbers(mean), _numbers(std)
    if means is None or stds is None or len(means) != len(stds) or not means or min(stds) <= 0:
        msg = (
            "mean and std go together: one number for each channel, for pixels from 0 to 1, each std above "
            f"0; not mean={mean!r}, std={std!r}"
        )
        raise ConfigError(msg)
    return tuple(means), tuple(stds)


def checked_dtype(dtype: object, *, normalised: bool) -> torch.dtype:
    """A dtype that images may be delivered as; uint8 only if they are not normalised."""
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        msg = f"dtype is one of {', '.join(map(str, DTYPES))}; not {dtype!r}"
        raise ConfigError(msg)
    if normalised and dtype == torch.uint8:
        msg = (
            "images that are normalised by mean and std are no uint8: leave mean and std out, or name a float"
        )
        raise ConfigError(msg)
    return dtype


def checked_seed(seed: object) -> int:
    """A whole number of 64 bits with sign."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not -_INT64 <= seed < _INT64:
        msg = f"seed is a whole number of 64 bits with sign; not {seed!r}"
        raise ConfigError(msg)
    return seed


def _numbers(values: Sequence[object] | object) -> list[float] | None:
    """Finite numbers as floats, ``None`` if there is anything else."""
    if not isinstance(values, (list, tuple)):
        return None
    good = [
        float(one)
        for one in values
        if isinstance(one, (int, float)) and not isinstance(one, bool) and math.isfinite(one)
    ]
    return good if len(good) == len(values) else None
