"""Validation of a sampler's arguments, and the plans they describe."""

from __future__ import annotations

import logging
import operator
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import ConcatDataset, Subset, SubsetRandomSampler, WeightedRandomSampler

from superdl.sampler.distributed import rank_in_run
from superdl.sampler.ordering import UNDRAWN, UserOrder
from superdl.sampler.registration import describe
from superdl.sampler.session import JobSpec
from superdl.super_wire.draws import REPEATS_MAX, Draws
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.ids import digest128

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LOG = logging.getLogger(__name__)

_BATCHINGS = ("mixed", "per_dataset")
_OF_ONE_DATASET = ("indices", "weights", "sampler", "batch_sampler")
_UINT32 = 2**32
_INT64 = 2**63
_DATASET_NAMES = ("source", "recipe", "key_list", "naming", "coordinator", "bind", "ping_cache")


@dataclass(frozen=True, slots=True)
class Description:
    """The validated arguments of a sampler. For a Subset, ``dataset`` is the whole dataset behind it."""

    dataset: Any
    spec: JobSpec
    rank: int
    num_replicas: int
    order: UserOrder | None = None  # draws each epoch if the user passed a sampler


def shuffle_or_default(*, shuffle: bool | None, given: bool) -> bool:
    """Return ``shuffle``, or torch's default if it is ``None``. Warn then, unless an order is ``given``."""
    if shuffle is None and not given:
        _LOG.warning(
            "SuperSampler no longer shuffles by default: like a DataLoader, it keeps the catalog's order. "
            "Pass shuffle=True for training, or shuffle=False to silence this warning, which the next "
            "release will drop"
        )
    return False if shuffle is None else shuffle


def described(  # noqa: PLR0913 # an epoch has many parameters
    dataset: Any,
    *,
    batch_size: int | None,
    shuffle: bool,
    seed: int,
    drop_last: bool,
    rank: int | None,
    num_replicas: int | None,
    indices: Any = None,
    weights: Any = None,
    draws: int | None = None,
    repeats: int = 1,
    sampler: Iterable[Any] | None = None,
    batch_sampler: Iterable[Any] | None = None,
    mix: tuple[tuple[int, ...], int, int] = ((), 0, 1),
) -> Description:
    """Validate ``SuperSampler`` arguments, which are documented there, with the errors.

    ``mix``: samples per dataset per epoch, this dataset's index, and the run length per dataset.
    """
    for name, flag in (("shuffle", shuffle), ("drop_last", drop_last)):
        if not isinstance(flag, bool):
            raise ConfigError(f"{name} must be True or False, not {flag!r}")
    ranks = rank_in_run(
        None if rank is None else whole_number("rank", rank, 0, _UINT32),
        None if num_replicas is None else whole_number("num_replicas", num_replicas, 1, _UINT32),
    )
    seed = whole_number("seed", seed, -_INT64, _INT64)
    repeats = whole_number("repeats", repeats, 1, REPEATS_MAX + 1)
    if sampler is not None or batch_sampler is not None:
        given = {"shuffle": shuffle, "indices": indices, "weights": weights, "draws": draws}
        conflicts = [name for name, value in given.items() if value is not None and value is not False]
        conflicts += ["repeats"] * (repeats > 1)
        whole, order = _order_from(
            dataset, sampler, batch_sampler, batch_size=batch_size, drop_last=drop_last, others=conflicts
        )
        own = JobSpec(order.batch_size or 1, seed, False, False, 0, 1, draws=UNDRAWN)
        return Description(whole, own, *ranks, order)
    if batch_size is None:
        raise ConfigError("batch_size is missing: pass the number of samples per batch on this rank")
    count = None if draws is None else whole_number("draws", draws, 1, 2**40)
    whole, drawn = _drawn_from(dataset, indices, weights, draws=count, repeats=repeats, shuffle=shuffle)
    _check_dataset(whole)
    spec = JobSpec(
        batch_size=whole_number("batch_size", batch_size, 1, _UINT32),
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        rank=ranks[0],
        num_replicas=ranks[1],
        draws=drawn,
        mix=mix[0],
        member=mix[1],
        mix_run=mix[2],
    )
    return Description(whole, spec, *ranks)


def described_mix(
    mix: ConcatDataset[Any],
    *,
    coordinator: str | None,
    seed: int,
    shuffle: bool,
    draws: int | None,
    repeats: int,
    batching: str,
    **arguments: Any,
) -> list[Description]:
    """Validate a mix's arguments and return the plan of each dataset. Raises as :func:`described` does."""
    given = ["repeats"] * (repeats != 1)
    given += [name for name in _OF_ONE_DATASET if arguments.pop(name) is not None]
    if given:
        raise ConfigError(
            f"a mix does not accept {', '.join(given)}, because its batches are combined from those of its "
            "datasets. To mix only a part of a dataset, pass a Subset"
        )
    if batching not in _BATCHINGS:
        raise ConfigError(f"batching must be one of {', '.join(_BATCHINGS)}, not {batching!r}")
    members: list[Any] = list(mix.datasets)
    _bind_members(members, coordinator)
    # This may start a coordinator.
    sizes = [len(member) for member in members]
    counts = tuple(getattr(mix, "samples_of_each", tuple)(sizes))
    run = 1
    if batching == "per_dataset":
        ranks = rank_in_run(arguments["rank"], arguments["num_replicas"])[1]
        run = ranks * whole_number("batch_size", arguments["batch_size"], 1, _UINT32)
    if draws is not None or run > 1:
        whole = sum(counts) if draws is None else whole_number("draws", draws, 1, 2**31)
        counts = tuple(run * count for count in _split_total(max(1, whole // run), counts))
    return [
        described(
            member,
            shuffle=shuffle,
            seed=_seed_of(seed, number),
            mix=(counts, number, run),
            **_draw_arguments(size, count, shuffle=shuffle),
            **arguments,
        )
        for number, (member, size, count) in enumerate(zip(members, sizes, counts, strict=True))
    ]


def _bind_members(members: Sequence[Any], coordinator: str | None) -> None:
    datasets = {}
    for member in members:
        dataset = member
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        if not hasattr(dataset, "bind"):
            raise UsageError(
                f"a mix must consist of SuperDatasets and Subsets of them, not {type(dataset).__name__}"
            )
        datasets[id(dataset)] = dataset
    for dataset in datasets.values():
        if coordinator is not None:
            dataset.coordinator = coordinator
        # The same listing as for a sampler created now.
        dataset.bind(describe(dataset, renew=True))


def _draw_arguments(size: int, count: int, *, shuffle: bool) -> dict[str, Any]:
    """Return the arguments that draw ``count`` of ``size`` samples, each equally often."""
    if count == size:
        return {}
    if shuffle:
        return {"weights": torch.ones(size, dtype=torch.float64), "draws": count}
    return {"indices": torch.arange(count) % size}


def _split_total(total: int, counts: Sequence[int]) -> list[int]:
    """Divide ``total`` in proportion to ``counts``, by largest remainders. Each share is at least 1."""
    quotas = [divmod(total * count, sum(counts)) for count in counts]
    shares = [whole for whole, _ in quotas]
    by_remainder = sorted(range(len(counts)), key=lambda number: -quotas[number][1])
    for number in by_remainder[: total - sum(shares)]:
        shares[number] += 1
    if 0 in shares:
        raise ConfigError(
            f"an epoch would contain no samples of dataset {shares.index(0)} of the mix: raise draws or the "
            "dataset's proportion, or lower batch_size"
        )
    return shares


def _seed_of(seed: int, number: int) -> int:
    # With equal seeds, similar datasets of equal size would get the same order.
    if not number:
        return seed
    return int.from_bytes(digest128(str(seed).encode(), str(number).encode())[:8], "little", signed=True)


def _order_from(
    dataset: Any,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    *,
    batch_size: int | None,
    drop_last: bool,
    others: list[str],
) -> tuple[Any, UserOrder]:
    """Return the whole dataset and the order of its epochs. ``others`` are conflicting arguments."""
    if sampler is not None and batch_sampler is not None:
        raise ConfigError("sampler and batch_sampler both define the epoch: pass only one of them")
    source: Any = sampler
    if batch_sampler is not None:
        source = batch_sampler
        others = [*others, *["batch_size"] * (batch_size is not None), *["drop_last"] * drop_last]
    elif batch_size is None:
        raise ConfigError("sampler yields single indices: pass batch_size too, or use batch_sampler")
    else:
        batch_size = whole_number("batch_size", batch_size, 1, _UINT32)
    if others:
        name = "sampler" if batch_sampler is None else "batch_sampler"
        raise ConfigError(f"{name} already defines the epoch: do not pass {', '.join(others)}")
    whole, part = _drawn_from(dataset, None, None, draws=None, repeats=1, shuffle=False)
    _check_dataset(whole)
    indices = None if part is None else torch.frombuffer(bytearray(part.indices), dtype=torch.int64)
    return whole, UserOrder(source, batch_size, drop_last=drop_last, indices=indices)


def _drawn_from(
    dataset: Any, indices: Any, weights: Any, *, draws: int | None, repeats: int, shuffle: bool
) -> tuple[Any, Draws | None]:
    """Return the whole dataset and an epoch's draws, or ``None`` for each sample once."""
    # Indices, or weights if there are no indices, refer to the dataset as it was passed.
    if isinstance(indices, SubsetRandomSampler):
        indices = indices.indices
    if isinstance(weights, WeightedRandomSampler):
        if not weights.replacement:
            raise ConfigError(
                "a WeightedRandomSampler without replacement never draws a sample twice, but weights of a "
                "SuperSampler may: create it with replacement=True"
            )
        if draws is not None:
            raise ConfigError("do not pass draws: the WeightedRandomSampler's num_samples is used")
        draws, weights = weights.num_samples, weights.weights
    while isinstance(dataset, Subset):
        indices = dataset.indices if indices is None else _chosen(dataset.indices, indices)
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset):
        raise ConfigError(
            "a Subset of a ConcatDataset is not supported: split each dataset separately, and pass "
            "ConcatDataset([part, other_part])"
        )
    # Where torch would use its generator, the sampler's seed and epoch are used.
    if indices is None and weights is None and draws is None and repeats == 1:
        return dataset, None
    return dataset, Draws.of(indices, weights, count=draws, repeats=repeats, shuffle=shuffle)


def _chosen(subset: Any, indices: Any) -> list[int]:
    try:
        chosen = [int(subset[index]) for index in indices]
        least = min(indices)
    except (IndexError, TypeError, ValueError) as error:
        raise ConfigError(
            f"indices must be positions in the Subset, which has {len(subset):,} samples: {error}"
        ) from error
    if least < 0:
        raise ConfigError(f"indices must be positions in the Subset, counted from 0, not {int(least)}")
    return chosen


def _check_dataset(dataset: object) -> None:
    missing = [name for name in _DATASET_NAMES if not hasattr(dataset, name)]
    if not missing:
        return
    if isinstance(dataset, str | os.PathLike):
        remedy = (
            f"such as SuperDataset({os.fspath(dataset)!r}, Recipe.image(resize=256, crop=224)), not a path"
        )
    else:
        remedy = (
            "as in SuperSampler(dataset, batch_size=256), "
            f"but this {type(dataset).__name__} has no {', '.join(missing)}"
        )
    raise UsageError(f"SuperSampler needs a SuperDataset, {remedy}")


def check_listing(draws: Draws | None, before: bytes | None, now: bytes, source: str) -> None:
    """Raise ``ConfigError`` if indices or weights refer to a different listing of the source."""
    if draws is not None and (draws.indices or draws.weights) and before not in (None, now):
        raise ConfigError(
            f"{source} has changed since this dataset was listed, but indices, weights and Subsets still "
            "refer to the old list of samples: create a new SuperDataset, and split or weight that one"
        )


def samples_of_a_rank(size: int, spec: JobSpec) -> int:
    """Return the number of samples that each rank gets in an epoch, including padding."""
    whole, rest = divmod(size, spec.batch_size * spec.num_replicas)
    return whole * spec.batch_size + (0 if spec.drop_last else -(-rest // spec.num_replicas))


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """Convert an integer of any library to an int in ``[low, high)``. Raises ``ConfigError`` for others."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # any non-integer
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number < high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high - 1}, not {value!r}")
    return number
