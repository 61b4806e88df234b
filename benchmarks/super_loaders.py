"""SUPER in the two forms that a user can choose: the dataset in a DataLoader, and ``SuperLoader``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from benchmarks.loading import Contender, Loading
    from superdl.sampler import SuperSampler
    from superdl.super_dataset import SuperDataset

__all__ = ["open_planned", "open_super", "open_super_loader"]


def open_planned(loading: Loading) -> tuple[SuperDataset, SuperSampler]:
    """The dataset and its sampler, on the coordinator that ``loading`` names or, without one, embedded."""
    from superdl.sampler import SuperSampler  # the other contenders' processes need neither
    from superdl.super_dataset import Recipe, SuperDataset

    recipe = Recipe.image(resize=loading.resize, crop=loading.crop)
    dataset = SuperDataset(f"file://{loading.directory}", recipe=recipe)
    sampler = SuperSampler(
        dataset,
        batch_size=loading.batch_size,
        seed=loading.seed,
        coordinator=loading.coordinator or None,
    )
    return dataset, sampler


def open_super(loading: Loading) -> Contender:
    """SUPER in a DataLoader."""
    dataset, sampler = open_planned(loading)
    batches: DataLoader[Any] = DataLoader(
        dataset,
        sampler=sampler,
        batch_size=None,
        num_workers=loading.num_workers,
        persistent_workers=loading.num_workers > 0,
        pin_memory=loading.pin_memory,
    )
    return _Super(batches, sampler)


def open_super_loader(loading: Loading) -> Contender:
    """SUPER by threads of the main process, without a worker."""
    from superdl.super_dataset import SuperLoader

    dataset, sampler = open_planned(loading)
    device = loading.device if loading.pin_memory else None
    return _Super(SuperLoader(dataset, sampler, device), sampler)


class _Super:
    def __init__(self, batches: Any, sampler: SuperSampler) -> None:
        self._batches = batches
        self._sampler = sampler

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches)

    def produced(self) -> int:
        return int(self._sampler.job_stats().samples_produced)

    def close(self) -> None:
        if hasattr(self._batches, "close"):
            self._batches.close()
        self._batches = ()  # the last reference: a DataLoader's persistent workers end with it
        self._sampler.close()
