"""A transform that is said to draw nothing is tried on a sample before it is believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from superdl.super_dataset.splitting import drawn_from, name_of
from superdl.super_wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_draws_nothing"]

_TRIES = 8
"""A flip that is drawn with a probability of one half passes one time in 128."""


def check_draws_nothing(transform: Any, images: Any, make: Callable[[Any], Any]) -> bool:
    """Call ``transform`` several times on the first sample; return True if it makes the same each time.

    Args:
        transform: what is named, and looked at if its class is known.
        images: a batch: a tensor, a list of them, or a dict of either.
        make: calls the transform on a sample, its own each time, since it may write to it.

    Raises:
        UsageError: it does not.
    """
    made = [make(_first(images)) for _ in range(_TRIES)]
    if drawn_from(transform) or not all(_same(made[0], other) for other in made[1:]):
        raise UsageError(
            f"{name_of(transform)} draws at random, and seed=None says that it draws nothing: its results "
            "would differ from run to run. Leave seed out to have it seeded for each sample; if it keeps a "
            "generator of its own, let it take one as an argument generator (torch's) or rng (numpy's)"
        )
    return True


def _first(images: Any) -> Any:
    if isinstance(images, Mapping):
        return {name: values[0].clone() for name, values in images.items()}
    return images[0].clone()


def _same(one: Any, other: Any) -> bool:
    """Whether two results agree; of what cannot be compared, yes."""
    if isinstance(one, torch.Tensor | np.ndarray):
        if type(one) is not type(other) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        alike: Any = (one == other) | ((one != one) & (other != other))  # noqa: PLR0124 # NaN is like NaN
        return bool(alike.all())
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return len(one) == len(other) and all(map(_same, one, other))
    compares = getattr(type(one), "__eq__", None) is not object.__eq__
    return not compares or bool(one == other)
