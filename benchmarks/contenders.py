"""The loaders that ``superdl bench read`` compares, each as its users would write it, behind one small
interface.

A new contender is one function here (or in a module beside this one) and one row in `CONTENDERS`. All are
given the same files, batch size, workers and seed, shuffle, and give uint8 images of shape (batch, 3, height,
width).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from experiments.loaders.torch_loader import FolderImages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt
    from torch import Tensor

    from sampler import SuperSampler

__all__ = ["CONTENDERS", "PLAIN", "SUPER", "Contender", "Loading"]

PLAIN = "DataLoader + Pillow"
SUPER = "SUPER"


@dataclass(frozen=True, slots=True)
class Loading:
    """What is loaded and how. ``coordinator`` is an address; contenders without one leave it alone."""

    directory: str
    resize: int
    crop: int
    batch_size: int
    num_workers: int
    coordinator: str
    seed: int = 0


class Contender(Protocol):
    """An opened loader. Each iteration is one epoch."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Begin the next epoch."""

    def produced(self) -> int:
        """How many samples functions have decoded until now; 0 for a loader that decodes by itself."""

    def close(self) -> None:
        """End the workers and whatever else was opened."""


def open_super(loading: Loading) -> Contender:
    """SUPER in a DataLoader."""
    from sampler import SuperSampler  # the other contenders' processes need neither
    from super_dataset import Recipe, SuperDataset

    dataset = SuperDataset(
        f"file://{loading.directory}", recipe=Recipe.image(resize=loading.resize, crop=loading.crop)
    )
    sampler = SuperSampler(
        dataset, batch_size=loading.batch_size, seed=loading.seed, coordinator=loading.coordinator
    )
    batches: DataLoader[Any] = DataLoader(
        dataset,
        sampler=sampler,
        batch_size=None,
        num_workers=loading.num_workers,
        persistent_workers=loading.num_workers > 0,
    )
    return _Super(batches, sampler)


def open_plain(loading: Loading) -> Contender:
    """Pillow in a DataLoader, over the files themselves."""
    batches: DataLoader[Any] = DataLoader(
        _Pairs(FolderImages(Path(loading.directory), resize=loading.resize, crop=loading.crop)),
        batch_size=loading.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(loading.seed),
        num_workers=loading.num_workers,
        persistent_workers=loading.num_workers > 0,
        collate_fn=_collate,
    )
    return _Plain(batches)


CONTENDERS: Mapping[str, Callable[[Loading], Contender]] = {PLAIN: open_plain, SUPER: open_super}


class _Super:
    def __init__(self, batches: DataLoader[Any], sampler: SuperSampler) -> None:
        self._batches: DataLoader[Any] | None = batches
        self._sampler = sampler

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches or ())

    def produced(self) -> int:
        return int(self._sampler.job_stats().samples_produced)

    def close(self) -> None:
        self._batches = None  # the last reference: persistent workers end with it
        self._sampler.close()


class _Plain:
    def __init__(self, batches: DataLoader[Any]) -> None:
        self._batches: DataLoader[Any] | None = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches or ())

    def produced(self) -> int:
        return 0

    def close(self) -> None:
        self._batches = None  # as above


_Pair = tuple["npt.NDArray[np.uint8]", int]


class _Pairs(Dataset[_Pair]):
    """Pixels and label of each file; the figures that `FolderImages` gives beside them are left out."""

    def __init__(self, images: FolderImages) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> _Pair:
        item = self._images[index]
        return item.pixels, item.label


def _collate(pairs: list[_Pair]) -> tuple[Tensor, Tensor]:
    """Stack with one copy: in a worker into shared memory, as torch's own collate does; never transposed."""
    first = pairs[0][0]
    shape = (len(pairs), *first.shape)
    if get_worker_info() is None:
        images = torch.empty(shape, dtype=torch.uint8)
    else:
        images = _shared_bytes(len(pairs) * first.nbytes).view(shape)
    np.stack([pixels for pixels, _ in pairs], out=images.numpy())
    return images.permute(0, 3, 1, 2), torch.tensor([label for _, label in pairs], dtype=torch.int64)


def _shared_bytes(size: int) -> Tensor:
    new_shared: Any = torch.UntypedStorage._new_shared  # noqa: SLF001  # what torch's own collate calls
    storage: torch.UntypedStorage = new_shared(size)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,))
