"""The interface of a compared loader, and the loaders of SUPER and of specs.

SUPER comes in the two forms that a user can choose: the dataset in a DataLoader, and ``SuperLoader``. Loaders
that a spec may name are opened as for training, without their figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, Sampler

from benchmarks.harness.arm import Contender
from superdl.coordinator.core import Plan
from superdl.experiments.data import Source
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.experiments.loaders.samples import decode_image, list_samples
from superdl.experiments.loaders.workers import stack
from superdl.experiments.spec import LoaderSpec, RecipeSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from benchmarks.harness.image_sets import Loading
    from superdl.sampler import SuperSampler
    from superdl.super_dataset import SuperDataset

__all__ = [
    "Pair",
    "Pairs",
    "PlannedOrder",
    "collate",
    "convert_named",
    "data_loader",
    "open_boto3",
    "open_in_planned_order",
    "open_named",
    "open_planned",
    "open_super",
    "open_super_loader",
]

Pair = tuple["npt.NDArray[np.uint8]", int]
"""Pixels of shape (height, width, 3), and the label."""


def data_loader(dataset: Any, loading: Loading, kind: Any = DataLoader, **options: Any) -> Any:
    """Return a DataLoader, or another ``kind``, whose workers stay from epoch to epoch."""
    workers = {"num_workers": loading.num_workers, "persistent_workers": loading.num_workers > 0}
    return kind(dataset, **workers, **options)


# --------------------------------------------------------------------------------------------- SUPER


def open_planned(loading: Loading) -> tuple[SuperDataset, SuperSampler]:
    """Return dataset and sampler, on the coordinator of ``loading``, else embedded."""
    from superdl.sampler import SuperSampler  # the other contenders' processes need neither
    from superdl.super_dataset import Recipe, SuperDataset

    recipe = Recipe.image(resize=loading.resize, crop=loading.crop)
    source = loading.shards or f"file://{loading.directory}"
    dataset = SuperDataset(source, recipe=recipe, key_list=loading.key_list or None)
    sampler = SuperSampler(
        dataset,
        batch_size=loading.batch_size,
        shuffle=True,
        seed=loading.seed,
        coordinator=loading.coordinator or None,
    )
    return dataset, sampler


def open_super(loading: Loading) -> Contender:
    """Open SUPER in a DataLoader."""
    dataset, sampler = open_planned(loading)
    return Contender(data_loader(dataset, loading, sampler=sampler, batch_size=None), sampler=sampler)


def open_super_loader(loading: Loading) -> Contender:
    """Open SUPER with threads of the main process, without workers."""
    from superdl.super_dataset import SuperLoader

    dataset, sampler = open_planned(loading)
    return Contender(SuperLoader(dataset, sampler), sampler=sampler)


# ----------------------------------------------------------------------- the loaders that specs name


def open_named(kind: str, loading: Loading) -> Contender:
    """Open a loader of this kind over the files, which are converted if need be."""
    return _opened(kind, loading, loading.format_directory(kind))


def convert_named(kind: str, loading: Loading, target: Path) -> None:
    """Write the images into an empty directory, in the format of this kind."""
    _opened(kind, loading, target).close()


def open_boto3(loading: Loading) -> Contender:
    """Open Pillow in a DataLoader, with a boto3 GET per image, from the set's bucket."""
    directory = Path(loading.directory)
    return _opened("torch", loading, Path(), Source(f"s3://{directory.parent.name}/{directory.name}/"))


def _opened(kind: str, loading: Loading, converted: Path, source: Source | None = None) -> Contender:
    request = LoaderRequest(
        source=source or Source(f"file://{loading.directory}"),
        recipe=RecipeSpec(resize=loading.resize, crop=loading.crop),
        loader=LoaderSpec(kind=kind, batch_size=loading.batch_size, num_workers=loading.num_workers),
        training=True,
        seed=loading.seed,
        pin_memory=False,
        converted=converted,
    )
    return Contender(open_loader(request), pair=lambda batch: (batch[0], batch[1]))


# ------------------------------------------------------------------------------------ decoded images


class Pairs(Dataset[Pair]):
    """Pixels and label of each file, in key order: the input of conversions to decoded pixels."""

    def __init__(self, loading: Loading) -> None:
        self._samples = list_samples(Source(f"file://{loading.directory}"), "torch")
        self._resize = loading.resize
        self._crop = loading.crop

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._samples)

    def __getitem__(self, index: int) -> Pair:
        """Read and decode one file."""
        content = self._samples.read(index)
        return decode_image(content, resize=self._resize, crop=self._crop), self._samples.labels[index]


class PlannedOrder(Sampler[list[int]]):
    """SUPER's plan as a batch sampler for other loaders: equal batches in equal order.

    Each iteration is the next epoch of the plan of a shuffled SuperSampler with one rank. Indices refer to
    the images sorted by key, as in the catalog.
    """

    def __init__(self, size: int, batch_size: int, seed: int) -> None:
        self._plan = Plan(size=size, batch_size=batch_size, seed=seed, shuffle=True)
        self._epoch = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return self._plan.batches_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Begin the next epoch."""
        # A generator: a DataLoader that makes two iterators but uses one begins one epoch.
        epoch, self._epoch = self._epoch, self._epoch + 1
        for position in range(len(self)):
            yield self._plan.batch(epoch, position, 0).indices.tolist()


def open_in_planned_order(loading: Loading) -> Contender:
    """Open Pillow in a DataLoader, in the order of SUPER's plan."""
    pairs = Pairs(loading)
    order = PlannedOrder(len(pairs), loading.batch_size, loading.seed)
    return Contender(data_loader(pairs, loading, batch_sampler=order, collate_fn=collate))


def collate(pairs: list[Pair]) -> tuple[Tensor, Tensor]:
    """Stack with one copy, into shared memory in a worker."""
    return stack([pixels for pixels, _ in pairs], [label for _, label in pairs])
