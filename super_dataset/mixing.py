"""``SuperMix``: several datasets, of which each batch has its share.

Which samples a batch has of which dataset is the sampler's. Here is how many an epoch has of each, and how a
batch is put together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import torch
from torch.utils.data import ConcatDataset, Subset

from superdl.super_dataset.indexing import place_of
from superdl.super_dataset.memory import as_type_of
from superdl.super_dataset.stacking import Columns
from superdl.super_wire.batch_ref import MixedRef
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["SuperMix", "whole_of"]

_ROUNDING = Fraction(1, 2**40)
"""Relative error of a proportion that is ignored: more than floats such as ``2 / 7`` and ``1 - 0.9999`` have,
and less than 1/500 of a sample in the longest epoch.
"""

Stopping = Literal["first_exhausted", "all_exhausted"]


class SuperMix(ConcatDataset[Any]):
    """SuperDatasets, each with its own recipe and transform, whose samples are mixed within each batch.

    A ``SuperSampler`` of it makes a job of each dataset. Every batch has the proportions, to within a sample
    or two; so has every rank's part. An epoch has exact counts. They follow from sizes and proportions alone,
    so that a run may go on with another number of ranks.

    An item is one batch: tensors of all parts one after the other, dataset by dataset, where dtype and shape
    are equal. Else all samples come as a list, as those of a SuperDataset do. What is no tensor, such as a
    :class:`BatchInfo`, comes as a list of one for each part. Labels stay those of their datasets.

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
        datasets: the proportion of each ``SuperDataset``, or ``Subset`` of one, in every batch; what they sum
            to does not matter. A sequence, or a ``ConcatDataset``: an epoch has each sample of all once.
        stopping_strategy: when an epoch of proportions ends. ``"first_exhausted"``: once a dataset has given
            each of its samples; of the others it has some, and each epoch draws others. ``"all_exhausted"``:
            once all have; samples of smaller ones come repeatedly, each as often as the others to within
            once. Without ``shuffle`` they come in the catalog's order, from its first one on. A dataset that
            gives not each sample once has at most 2**24 of them.

    Raises:
        ConfigError: an argument is wrong, or a proportion leaves a dataset without a sample in an epoch.
    """

    def __init__(
        self,
        datasets: Mapping[Any, float] | ConcatDataset[Any] | Iterable[Any],
        stopping_strategy: Stopping = "first_exhausted",
    ) -> None:
        if stopping_strategy not in get_args(Stopping):
            raise ConfigError(
                f"stopping_strategy is 'first_exhausted' or 'all_exhausted'; not {stopping_strategy!r}"
            )
        self.stopping_strategy = stopping_strategy
        self.proportions: tuple[Fraction, ...] | None = None
        """Of each dataset; ``None``: by its size."""
        if isinstance(datasets, Mapping):
            self.proportions = tuple(map(_proportion, datasets.values()))
        elif isinstance(datasets, ConcatDataset):
            datasets = datasets.datasets
        # ConcatDataset's own __init__ asks for lengths, which here would start a coordinator.
        self._members: list[Any] = list(datasets)
        self.datasets = self._members
        if not self._members:
            raise ConfigError("a SuperMix has one dataset or more")
        self._wholes = [whole_of(dataset) for dataset in self._members]

    @property
    def cumulative_sizes(self) -> list[int]:  # type: ignore[override]  # known only when it is asked for
        """How many samples the datasets have up to each one."""
        return list(accumulate(map(len, self._members)))

    def __bool__(self) -> bool:
        """True, also before lengths are known."""
        return True

    def __repr__(self) -> str:
        parts = self.proportions or (Fraction(1),) * len(self._members)
        named = ", ".join(
            f"{float(part):g} of {member!r}" for part, member in zip(parts, self._members, strict=True)
        )
        return f"<SuperMix, {self.stopping_strategy}: {named}>"

    def samples_of_each(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many samples an epoch has of each dataset, where they have so many."""
        if self.proportions is None:
            return tuple(sizes)
        lasting = [size / part for size, part in zip(sizes, self.proportions, strict=True)]
        if self.stopping_strategy == "all_exhausted":
            counts = tuple(math.ceil(part * max(lasting) * (1 - _ROUNDING)) for part in self.proportions)
        else:
            counts = tuple(math.floor(part * min(lasting) * (1 + _ROUNDING)) for part in self.proportions)
        if 0 in counts:
            raise ConfigError(
                f"of {self._members[counts.index(0)]!r} an epoch of this mix would have no sample: its "
                "proportion is too small for one until another dataset is exhausted: raise it, or use "
                "stopping_strategy='all_exhausted'"
            )
        return counts

    @property
    def may_draw(self) -> str:
        """As of a SuperDataset: what of its datasets may draw from shared generators."""
        return next(filter(None, (whole.may_draw for whole in self._wholes)), "")

    def __getitem__(self, ref: Any) -> Any:
        """Read one batch, or of an integer one sample, as a ConcatDataset. Raises as a SuperDataset does."""
        if isinstance(ref, MixedRef):
            return _joined([self._wholes[number][part] for number, part in ref.parts])
        return super().__getitem__(place_of(ref, self))  # type: ignore[no-untyped-call]

    def collated(self, ref: MixedRef, collate_fn: Callable[[list[Any]], Any]) -> Any:
        """A batch, put together by ``collate_fn`` of the samples of all parts."""
        made = _joined([self._wholes[number].collated(part, list) for number, part in ref.parts])
        return (collate_fn(made[0]), made[1]) if isinstance(made, tuple) else collate_fn(made)

    def __getitems__(self, refs: Any) -> NoReturn:
        """Refuse: a DataLoader calls this if it was not given ``batch_size=None``."""
        raise UsageError(
            f"a SuperMix was given a list of {len(refs)}: what its sampler yields are whole batches already. "
            "Pass batch_size=None to the DataLoader (and no batch_sampler)"
        )


def _joined(parts: list[Any]) -> Any:
    """The parts of a batch as one, of the same form."""
    first = parts[0]
    if all(isinstance(part, torch.Tensor) for part in parts):
        if len({(part.dtype, part.shape[1:]) for part in parts}) == 1 and first.ndim:
            return first if len(parts) == 1 else torch.cat(parts)
        return [sample for part in parts for sample in (part if part.ndim else [part])]
    if all(isinstance(part, tuple | Columns) and len(part) == len(first) for part in parts):
        return as_type_of(first, [_joined(list(of_each)) for of_each in zip(*parts, strict=True)])
    if all(isinstance(part, list | torch.Tensor) for part in parts):
        return [sample for part in parts for sample in part]
    if all(isinstance(part, Mapping) and part.keys() == first.keys() for part in parts):
        return {key: _joined([part[key] for part in parts]) for key in first}
    return parts


def whole_of(dataset: Any) -> Any:
    """What a ``Subset`` is of: samplers name batches of the whole dataset."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _proportion(value: Any) -> Fraction:
    """Read a proportion as it is written: 0.1 is a tenth."""
    try:
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if isinstance(value, bool) or share <= 0:
        raise ConfigError(f"a proportion is a finite number above 0; not {value!r}")
    return share
