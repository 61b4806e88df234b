"""Validation of a sampler's arguments, and the plan they describe."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from superdl.sampler.distributed import place_in_run
from superdl.sampler.drawing import drawn_from, shuffle_or_default
from superdl.sampler.ordering import UNDRAWN, UserOrder
from superdl.sampler.session import JobSpec
from superdl.super_wire.draws import REPEATS_MAX
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.super_wire.draws import Draws

__all__ = ["Description", "check_places", "described", "samples_of_a_rank", "whole_number"]

_UINT32 = 2**32
_INT64 = 2**63
_DATASET_NAMES = ("source", "recipe", "key_list", "naming", "coordinator", "bind", "ping_cache")


@dataclass(frozen=True, slots=True)
class Description:
    """The validated arguments of a sampler.

    Attributes:
        dataset: the dataset itself, also if a Subset of it was passed.
        spec: the plan, as sent to the coordinator.
        rank: of this process.
        num_replicas: total number of ranks.
        order: draws the order of each epoch if the user passed a sampler.
    """

    dataset: Any
    spec: JobSpec
    rank: int
    num_replicas: int
    order: UserOrder | None = None


def described(  # noqa: PLR0913 # what an epoch is made of has many sides
    dataset: Any,
    *,
    batch_size: int | None,
    shuffle: bool | None,
    seed: int,
    drop_last: bool,
    rank: int | None,
    num_replicas: int | None,
    indices: Any,
    weights: Any,
    draws: int | None,
    repeats: int,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    mix: tuple[tuple[int, ...], int, int],
) -> Description:
    """Validate the arguments of a ``SuperSampler``, where they are documented.

    Raises:
        ConfigError: an argument is invalid, or two contradict each other.
        UsageError: ``dataset`` is not a SuperDataset.
    """
    for name, flag in (("shuffle", bool(shuffle) if shuffle is None else shuffle), ("drop_last", drop_last)):
        if not isinstance(flag, bool):
            raise ConfigError(f"{name} is True or False; not {flag!r}")
    place = place_in_run(
        None if rank is None else whole_number("rank", rank, 0, _UINT32),
        None if num_replicas is None else whole_number("num_replicas", num_replicas, 1, _UINT32),
    )
    seed = whole_number("seed", seed, -_INT64, _INT64)
    repeats = whole_number("repeats", repeats, 1, REPEATS_MAX + 1)
    if sampler is not None or batch_sampler is not None:
        given = {"shuffle": shuffle, "indices": indices, "weights": weights, "draws": draws}
        conflicts = [name for name, value in given.items() if value is not None and value is not False]
        conflicts += ["repeats"] * (repeats > 1) + ["a mix of datasets"] * bool(mix[0])
        whole, order = _order_from(
            dataset, sampler, batch_sampler, batch_size=batch_size, drop_last=drop_last, others=conflicts
        )
        own = JobSpec(order.batch_size or 1, seed, False, False, 0, 1, draws=UNDRAWN)
        return Description(whole, own, *place, order)
    if batch_size is None:
        raise ConfigError("batch_size says how many samples a batch has on this rank: give it")
    shuffle = shuffle_or_default(shuffle=shuffle)
    count = None if draws is None else whole_number("draws", draws, 1, 2**40)
    whole, drawn = drawn_from(dataset, indices, weights, draws=count, repeats=repeats, shuffle=shuffle)
    _check_dataset(whole)
    spec = JobSpec(
        batch_size=whole_number("batch_size", batch_size, 1, _UINT32),
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        rank=place[0],
        num_replicas=place[1],
        draws=drawn,
        mix=mix[0],
        member=mix[1],
        mix_run=mix[2],
    )
    return Description(whole, spec, *place)


def _order_from(
    dataset: Any,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    *,
    batch_size: int | None,
    drop_last: bool,
    others: list[str],
) -> tuple[Any, UserOrder]:
    """Return the dataset itself and what draws its epochs; ``others`` conflict."""
    if sampler is not None and batch_sampler is not None:
        raise ConfigError("sampler and batch_sampler both say what an epoch has: give one of them")
    source: Any = sampler
    if batch_sampler is not None:
        source = batch_sampler
        others = [*others, *["batch_size"] * (batch_size is not None), *["drop_last"] * drop_last]
    elif batch_size is None:
        raise ConfigError("sampler yields indices one by one: give batch_size too, or a batch_sampler")
    else:
        batch_size = whole_number("batch_size", batch_size, 1, _UINT32)
    if others:
        name = "sampler" if batch_sampler is None else "batch_sampler"
        raise ConfigError(f"{name} says what an epoch has: leave out {', '.join(others)}")
    whole, part = drawn_from(dataset, None, None, draws=None, repeats=1, shuffle=False)
    _check_dataset(whole)
    places = None if part is None else torch.frombuffer(bytearray(part.indices), dtype=torch.int64)
    return whole, UserOrder(source, batch_size, drop_last=drop_last, places=places)


def _check_dataset(dataset: object) -> None:
    missing = [name for name in _DATASET_NAMES if not hasattr(dataset, name)]
    if not missing:
        return
    if isinstance(dataset, str | os.PathLike):
        remedy = (
            f"SuperDataset({os.fspath(dataset)!r}, Recipe.image(resize=256, crop=224)) in place of the text"
        )
    else:
        remedy = (
            "as in SuperSampler(dataset, batch_size=256); "
            f"this {type(dataset).__name__} has no {', '.join(missing)}"
        )
    raise UsageError(f"SuperSampler takes the SuperDataset itself, {remedy}")


def check_places(draws: Draws | None, before: bytes | None, now: bytes, source: str) -> None:
    """Raise ``ConfigError`` if places were counted in a different listing of the source."""
    if draws is not None and (draws.indices or draws.weights) and before not in (None, now):
        raise ConfigError(
            f"{source} was changed since this dataset was listed, and indices, weights or a Subset count the "
            "samples as they were then: make a new SuperDataset, and split or weigh that"
        )


def samples_of_a_rank(size: int, spec: JobSpec) -> int:
    """Return the number of samples that each rank gets in an epoch, padding included."""
    whole, rest = divmod(size, spec.batch_size * spec.num_replicas)
    return whole * spec.batch_size + (0 if spec.drop_last else -(-rest // spec.num_replicas))


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """Return ``value``, also numpy's or torch's, as an int in ``[low, high)``; no booleans."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # any non-integer
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number < high:
        raise ConfigError(f"{name} is a whole number from {low} to {high - 1}; not {value!r}")
    return number
