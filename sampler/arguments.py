"""Validation of a sampler's arguments."""

from __future__ import annotations

import logging
import operator
import os
from dataclasses import dataclass, replace
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
_NOT_FOR_MIXES = ("indices", "weights", "sampler", "batch_sampler")
_UINT32 = 2**32
_INT64 = 2**63
_DATASET_NAMES = ("source", "recipe", "key_list", "naming", "coordinator", "bind", "ping_cache")


@dataclass(frozen=True, slots=True)
class Arguments:
    """A sampler's validated arguments. If a Subset was passed, ``dataset`` is the full dataset behind it."""

    dataset: Any
    spec: JobSpec
    rank: int
    num_replicas: int
    order: UserOrder | None = None  # draws each epoch if the user passed a sampler


def resolve_shuffle(*, shuffle: bool | None, has_order: bool) -> bool:
    """Return ``shuffle``, or torch's default for ``None``. Warn about the default unless ``has_order``."""
    if shuffle is None and not has_order:
        _LOG.warning(
            "SuperSampler no longer shuffles by default. Like a DataLoader, it keeps the catalog's order. "
            "Pass shuffle=True for training, or shuffle=False to silence this warning, which the next "
            "release will drop"
        )
    return False if shuffle is None else shuffle


def validate(  # noqa: PLR0913 # an epoch has many parameters
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
) -> Arguments:
    """Validate the arguments of ``SuperSampler``, which documents them and the errors."""
    for name, flag in (("shuffle", shuffle), ("drop_last", drop_last)):
        if not isinstance(flag, bool):
            raise ConfigError(f"{name} must be True or False, not {flag!r}")
    rank, num_replicas = rank_in_run(
        None if rank is None else checked_int("rank", rank, 0, _UINT32),
        None if num_replicas is None else checked_int("num_replicas", num_replicas, 1, _UINT32),
    )
    seed = checked_int("seed", seed, -_INT64, _INT64)
    repeats = checked_int("repeats", repeats, 1, REPEATS_MAX + 1)
    if sampler is not None or batch_sampler is not None:
        given = {"shuffle": shuffle, "indices": indices, "weights": weights, "draws": draws}
        conflicts = [name for name, value in given.items() if value is not None and value is not False]
        conflicts += ["repeats"] * (repeats > 1)
        whole, order = _resolve_order(
            dataset, sampler, batch_sampler, batch_size=batch_size, drop_last=drop_last, conflicts=conflicts
        )
        # Each rank has a separate job because only its own sampler knows its part.
        spec = JobSpec(order.batch_size or 1, seed, False, False, 0, 1, draws=UNDRAWN)
        return Arguments(whole, spec, rank, num_replicas, order)
    if batch_size is None:
        raise ConfigError("batch_size is missing. Pass the number of samples per batch on this rank")
    count = None if draws is None else checked_int("draws", draws, 1, 2**40)
    whole, drawn = _resolve_draws(dataset, indices, weights, draws=count, repeats=repeats, shuffle=shuffle)
    _check_dataset(whole)
    spec = JobSpec(
        batch_size=checked_int("batch_size", batch_size, 1, _UINT32),
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        rank=rank,
        num_replicas=num_replicas,
        draws=drawn,
    )
    return Arguments(whole, spec, rank, num_replicas)


def validate_mix(
    mix: ConcatDataset[Any],
    *,
    coordinator: str | None,
    seed: int,
    shuffle: bool,
    draws: int | None,
    repeats: int,
    batching: str,
    **arguments: Any,
) -> list[Arguments]:
    """Validate a mix's arguments and return each member's. Raises the same errors as :func:`validate`."""
    given = ["repeats"] * (repeats != 1)
    given += [name for name in _NOT_FOR_MIXES if arguments.pop(name) is not None]
    if given:
        raise ConfigError(
            f"a mix does not accept {', '.join(given)}, because its batches combine its datasets' batches. "
            "To mix only part of a dataset, pass a Subset"
        )
    if batching not in _BATCHINGS:
        raise ConfigError(f"batching must be one of {', '.join(_BATCHINGS)}, not {batching!r}")
    members: list[Any] = list(mix.datasets)
    _bind_members(members, coordinator)
    sizes = [len(member) for member in members]
    counts = tuple(getattr(mix, "samples_of_each", tuple)(sizes))
    run = 1
    if batching == "per_dataset":
        _, ranks = rank_in_run(arguments["rank"], arguments["num_replicas"])
        run = ranks * checked_int("batch_size", arguments["batch_size"], 1, _UINT32)
    if draws is not None or run > 1:
        total = sum(counts) if draws is None else checked_int("draws", draws, 1, 2**31)
        counts = tuple(run * count for count in _split_total(max(1, total // run), counts))
    validated = []
    for number, (member, size, count) in enumerate(zip(members, sizes, counts, strict=True)):
        drawn: dict[str, Any] = {}
        # Draw each sample equally often.
        if count != size and shuffle:
            drawn = {"weights": torch.ones(size, dtype=torch.float64), "draws": count}
        elif count != size:
            drawn = {"indices": torch.arange(count) % size}
        own = validate(member, shuffle=shuffle, seed=_member_seed(seed, number), **drawn, **arguments)
        validated.append(replace(own, spec=replace(own.spec, mix=counts, member=number, mix_run=run)))
    return validated


def _bind_members(members: Sequence[Any], coordinator: str | None) -> None:
    datasets = {}
    for member in members:
        dataset = member
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        if not hasattr(dataset, "bind"):
            raise UsageError(
                f"a mix may only contain SuperDatasets and Subsets of them, not {type(dataset).__name__}"
            )
        datasets[id(dataset)] = dataset
    for dataset in datasets.values():
        if coordinator is not None:
            dataset.coordinator = coordinator
        # Bind the listing that a new sampler would use. This may start a coordinator.
        dataset.bind(describe(dataset, renew=True))


def _split_total(total: int, counts: Sequence[int]) -> list[int]:
    """Divide ``total`` in proportion to ``counts`` (largest-remainder method). Each share is at least 1."""
    quotas = [divmod(total * count, sum(counts)) for count in counts]
    shares = [whole for whole, _ in quotas]
    by_remainder = sorted(range(len(counts)), key=lambda number: -quotas[number][1])
    for number in by_remainder[: total - sum(shares)]:
        shares[number] += 1
    if 0 in shares:
        raise ConfigError(
            f"an epoch would contain no samples of the mix's dataset {shares.index(0)}. Raise draws or the "
            "dataset's proportion, or lower batch_size"
        )
    return shares


def _member_seed(seed: int, number: int) -> int:
    # With the same seed, similar datasets of the same size would get the same order.
    if not number:
        return seed
    return int.from_bytes(digest128(str(seed).encode(), str(number).encode())[:8], "little", signed=True)


def _resolve_order(
    dataset: Any,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    *,
    batch_size: int | None,
    drop_last: bool,
    conflicts: list[str],
) -> tuple[Any, UserOrder]:
    """Return the full dataset and its order. ``conflicts`` names arguments that a sampler rules out."""
    if sampler is not None and batch_sampler is not None:
        raise ConfigError("sampler and batch_sampler both define the epoch. Pass only one of them")
    source: Any = sampler
    if batch_sampler is not None:
        source = batch_sampler
        conflicts = [*conflicts, *["batch_size"] * (batch_size is not None), *["drop_last"] * drop_last]
    elif batch_size is None:
        raise ConfigError("sampler yields single indices. Pass batch_size too, or use batch_sampler")
    else:
        batch_size = checked_int("batch_size", batch_size, 1, _UINT32)
    if conflicts:
        name = "sampler" if batch_sampler is None else "batch_sampler"
        raise ConfigError(f"{name} already defines the epoch. Do not pass {', '.join(conflicts)}")
    whole, part = _resolve_draws(dataset, None, None, draws=None, repeats=1, shuffle=False)
    _check_dataset(whole)
    indices = None if part is None else torch.frombuffer(bytearray(part.indices), dtype=torch.int64)
    return whole, UserOrder(source, batch_size, drop_last=drop_last, indices=indices)


def _resolve_draws(
    dataset: Any, indices: Any, weights: Any, *, draws: int | None, repeats: int, shuffle: bool
) -> tuple[Any, Draws | None]:
    """Return the full dataset and an epoch's draws, which are ``None`` if each sample is drawn once."""
    # Indices, or weights without indices, refer to the dataset as it was passed.
    if isinstance(indices, SubsetRandomSampler):
        indices = indices.indices
    if isinstance(weights, WeightedRandomSampler):
        if not weights.replacement:
            raise ConfigError(
                "a WeightedRandomSampler without replacement never draws a sample twice, but weights of a "
                "SuperSampler may. Create it with replacement=True"
            )
        if draws is not None:
            raise ConfigError("draws conflicts with the WeightedRandomSampler's num_samples. Omit draws")
        draws, weights = weights.num_samples, weights.weights
    while isinstance(dataset, Subset):
        indices = dataset.indices if indices is None else _indices_of_subset(dataset.indices, indices)
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset):
        raise ConfigError(
            "a Subset of a ConcatDataset is not supported. Split each dataset separately, and pass "
            "ConcatDataset([part, other_part])"
        )
    # Where torch would use its generator, SUPER uses the sampler's seed and the epoch.
    if indices is None and weights is None and draws is None and repeats == 1:
        return dataset, None
    return dataset, Draws.of(indices, weights, count=draws, repeats=repeats, shuffle=shuffle)


def _indices_of_subset(subset: Any, indices: Any) -> list[int]:
    try:
        composed = [int(subset[index]) for index in indices]
        least = min(indices)
    except (IndexError, TypeError, ValueError) as error:
        raise ConfigError(
            f"indices must be positions in the Subset, which has {len(subset):,} samples: {error}"
        ) from error
    if least < 0:
        raise ConfigError(f"indices must be positions in the Subset, counted from 0, not {int(least)}")
    return composed


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
    """Raise ``ConfigError`` if indices or weights refer to an older listing of the source."""
    if draws is not None and (draws.indices or draws.weights) and before not in (None, now):
        raise ConfigError(
            f"{source} has changed since this dataset was listed, but indices, weights and Subsets still "
            "refer to the old list of samples. Create a new SuperDataset, and split or weight that one"
        )


def samples_per_rank(size: int, spec: JobSpec) -> int:
    """Return the number of samples per epoch on each rank, including padding."""
    whole, rest = divmod(size, spec.batch_size * spec.num_replicas)
    return whole * spec.batch_size + (0 if spec.drop_last else -(-rest // spec.num_replicas))


def checked_int(name: str, value: object, low: int, high: int) -> int:
    """Convert any type of integer to an int. Raises ``ConfigError`` unless it is in ``[low, high)``."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # any non-integer
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number < high:
        raise ConfigError(f"{name} must be an integer from {low} to {high - 1}, not {value!r}")
    return number
