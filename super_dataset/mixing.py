"""``SuperMix``: several datasets, each with its share of every batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import torch
from torch.utils.data import ConcatDataset, Subset

from superdl.super_dataset.listed_source import checked_index
from superdl.super_dataset.memory.batch_memory import as_type_of
from superdl.super_dataset.pictures import Columns
from superdl.super_wire.batch_ref import MixedRef
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Relative error to ignore in a proportion. It exceeds the rounding errors of floats such as 2 / 7 and
# 1 - 0.9999, and is less than 1/500 of a sample in the longest epoch.
_ROUNDING = Fraction(1, 2**40)

Stopping = Literal["first_exhausted", "all_exhausted"]


class SuperMix(ConcatDataset[Any]):
    """Mixes samples of several SuperDatasets, each with its own recipe and transform, in every batch.

    Its ``SuperSampler`` opens one job per dataset. Each batch, and each rank's part of it, matches the
    proportions to within a sample or two. The counts per epoch are exact and depend only on sizes and
    proportions, so a run can resume with a different number of ranks.

    Each item is a batch. Tensors of the same dtype and shape are concatenated, dataset by dataset.
    Otherwise, all samples form a list, as in a SuperDataset. Other values, such as a :class:`BatchInfo`,
    form a list with one value per dataset. Each dataset keeps its own labels.

    >>> photos = SuperDataset("images", Recipe.image(resize=32, crop=32))
    >>> sketches = SuperDataset("images", Recipe.image(resize=40, crop=32))
    >>> mix = SuperMix({photos: 0.75, sketches: 0.25})
    >>> sampler = SuperSampler(mix, batch_size=4, shuffle=True)
    >>> sampler.counts, len(sampler)  # samples of each in an epoch, batches
    ((8, 2), 3)
    >>> loader = DataLoader(mix, sampler=sampler, batch_size=None)
    >>> [len(images) for images, labels in loader]
    [4, 4, 2]

    Args:
        datasets: maps each ``SuperDataset``, or ``Subset`` of one, to its proportion of every batch. The
            proportions need not add up to 1. With a sequence or a ``ConcatDataset`` instead, an epoch
            contains every sample of every dataset once.
        stopping_strategy: when to end an epoch that has proportions. ``"first_exhausted"`` ends it once one
            dataset is used up. The others contribute some of their samples, redrawn in each epoch.
            ``"all_exhausted"`` ends it once all are used up. Samples of smaller datasets are repeated,
            equally often to within one. Without ``shuffle``, samples come in the catalog's order, from the
            first. A dataset may contain at most 2**24 samples if they are not delivered exactly once.

    Raises:
        ConfigError: an argument is invalid, or a proportion is too small for one sample per epoch.
    """

    def __init__(
        self,
        datasets: Mapping[Any, float] | ConcatDataset[Any] | Iterable[Any],
        stopping_strategy: Stopping = "first_exhausted",
    ) -> None:
        if stopping_strategy not in get_args(Stopping):
            raise ConfigError(
                f"stopping_strategy must be 'first_exhausted' or 'all_exhausted', not {stopping_strategy!r}"
            )
        self.stopping_strategy = stopping_strategy
        self.proportions: tuple[Fraction, ...] | None = None
        """Each dataset's proportion, or ``None`` for proportions by size."""
        if isinstance(datasets, Mapping):
            self.proportions = tuple(map(_proportion, datasets.values()))
        elif isinstance(datasets, ConcatDataset):
            datasets = datasets.datasets
        # ConcatDataset.__init__ would read lengths, which starts a coordinator.
        self._members: list[Any] = list(datasets)
        self.datasets = self._members
        if not self._members:
            raise ConfigError("a SuperMix needs at least one dataset")
        self._wholes = [whole_of(dataset) for dataset in self._members]

    @property
    def cumulative_sizes(self) -> list[int]:  # type: ignore[override]  # computed on access
        """Return the cumulative sample counts of the datasets, in order."""
        return list(accumulate(map(len, self._members)))

    def __bool__(self) -> bool:
        """Return True, even before lengths are known."""
        return True

    def __repr__(self) -> str:
        parts = self.proportions or (Fraction(1),) * len(self._members)
        named = ", ".join(
            f"{float(part):g} of {member!r}" for part, member in zip(parts, self._members, strict=True)
        )
        return f"<SuperMix, {self.stopping_strategy}: {named}>"

    def samples_of_each(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the number of samples per epoch from each dataset, given the sizes of the datasets."""
        if self.proportions is None:
            return tuple(sizes)
        lengths = [size / part for size, part in zip(sizes, self.proportions, strict=True)]
        if self.stopping_strategy == "all_exhausted":
            counts = tuple(math.ceil(part * max(lengths) * (1 - _ROUNDING)) for part in self.proportions)
        else:
            counts = tuple(math.floor(part * min(lengths) * (1 + _ROUNDING)) for part in self.proportions)
        if 0 in counts:
            raise ConfigError(
                f"an epoch of this mix would contain no sample of {self._members[counts.index(0)]!r}, since "
                "another dataset is exhausted first. Raise its proportion, or use "
                "stopping_strategy='all_exhausted'"
            )
        return counts

    @property
    def may_use_rng(self) -> str:
        """Return the name of user code that may use a global random number generator, or an empty string."""
        return next(filter(None, (whole.may_use_rng for whole in self._wholes)), "")

    def __getitem__(self, ref: Any) -> Any:
        """Return a batch or, for an integer, a sample. Raises the same errors as a SuperDataset."""
        if isinstance(ref, MixedRef):
            return _joined([self._wholes[number][part] for number, part in ref.parts])
        return super().__getitem__(checked_index(ref, self))  # type: ignore[no-untyped-call]

    def collated(self, ref: MixedRef, collate_fn: Callable[[list[Any]], Any]) -> Any:
        """Return a batch that ``collate_fn`` builds from the samples of all datasets."""
        joined = _joined([self._wholes[number].collated(part, list) for number, part in ref.parts])
        return (collate_fn(joined[0]), joined[1]) if isinstance(joined, tuple) else collate_fn(joined)

    def __getitems__(self, refs: Any) -> NoReturn:
        """Raise ``UsageError``. A DataLoader calls this only if ``batch_size=None`` is missing."""
        raise UsageError(
            f"a SuperMix got a list of {len(refs)} items, but its sampler already yields whole batches. "
            "Pass batch_size=None to the DataLoader (and no batch_sampler)"
        )


def _joined(parts: list[Any]) -> Any:
    # Concatenate tensors, join structures value by value, and list everything else part by part.
    first = parts[0]
    if all(isinstance(part, torch.Tensor) for part in parts):
        if len({(part.dtype, part.shape[1:]) for part in parts}) == 1 and first.ndim:
            return first if len(parts) == 1 else torch.cat(parts)
        return [sample for part in parts for sample in (part if part.ndim else [part])]
    if all(isinstance(part, tuple | Columns) and len(part) == len(first) for part in parts):
        return as_type_of(first, [_joined(list(column)) for column in zip(*parts, strict=True)])
    if all(isinstance(part, list | torch.Tensor) for part in parts):
        return [sample for part in parts for sample in part]
    if all(isinstance(part, Mapping) and part.keys() == first.keys() for part in parts):
        return {key: _joined([part[key] for part in parts]) for key in first}
    return parts


def whole_of(dataset: Any) -> Any:
    """Return the full dataset behind a ``Subset``. Samplers refer to that dataset."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _proportion(value: Any) -> Fraction:
    try:
        # Parse the decimal notation, so that 0.1 is exactly a tenth.
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if isinstance(value, bool) or share <= 0:
        raise ConfigError(f"a proportion must be a finite number above 0, not {value!r}")
    return share
