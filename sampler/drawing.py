"""The draws of a sampler: from its own arguments, or from torch objects passed in their place.

A ``Subset``, also one made by ``random_split``, selects samples of a dataset. ``SubsetRandomSampler`` selects
samples, and ``WeightedRandomSampler`` gives weights and a number of draws. Where torch would use its
generator, the sampler's seed and epoch are used.
"""

from __future__ import annotations

import logging
from typing import Any

from torch.utils.data import ConcatDataset, Subset, SubsetRandomSampler, WeightedRandomSampler

from superdl.super_wire.draws import Draws
from superdl.super_wire.errors import ConfigError

__all__ = ["drawn_from", "shuffle_or_default"]

_LOG = logging.getLogger(__name__)


def shuffle_or_default(*, shuffle: bool | None) -> bool:
    """Return ``shuffle``, or if it is None torch's default, and log that it is new."""
    if shuffle is None:
        _LOG.warning(
            "a SuperSampler without shuffle= keeps the catalog's order now, as a DataLoader does; it used to "
            "shuffle. Write shuffle=True to train, shuffle=False to silence this warning of one release"
        )
        return False
    return shuffle


def drawn_from(
    dataset: Any, indices: Any, weights: Any, *, draws: int | None, repeats: int, shuffle: bool
) -> tuple[Any, Draws | None]:
    """Return the dataset itself and what an epoch draws from it; ``None`` means each sample once.

    ``indices``, and weights without indices, refer to places in the dataset as it was passed.

    Raises:
        ConfigError: an argument is invalid, or two contradict each other.
    """
    if isinstance(indices, SubsetRandomSampler):
        indices = indices.indices
    if isinstance(weights, WeightedRandomSampler):
        if not weights.replacement:
            raise ConfigError(
                "a WeightedRandomSampler without replacement draws no sample twice, which weights of a "
                "SuperSampler do not promise: make it with replacement=True"
            )
        if draws is not None:
            raise ConfigError("draws is num_samples of the WeightedRandomSampler: leave it out")
        draws, weights = weights.num_samples, weights.weights
    while isinstance(dataset, Subset):
        indices = dataset.indices if indices is None else _chosen(dataset.indices, indices)
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset):
        raise ConfigError(
            "a part of a ConcatDataset is no single set of samples: split each dataset, and give "
            "ConcatDataset([part, other_part])"
        )
    if indices is None and weights is None and draws is None and repeats == 1:
        return dataset, None
    return dataset, Draws.of(indices, weights, count=draws, repeats=repeats, shuffle=shuffle)


def _chosen(of_subset: Any, places: Any) -> list[int]:
    try:
        chosen = [int(of_subset[place]) for place in places]
        least = min(places)
    except (IndexError, TypeError, ValueError) as error:
        raise ConfigError(
            f"indices are places of the Subset, which has {len(of_subset):,} samples: {error}"
        ) from error
    if least < 0:
        raise ConfigError(f"indices are places of the Subset, from 0; not {int(least)}")
    return chosen
