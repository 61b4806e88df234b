"""Bounds: the decoded images as one array in memory, indexed batch by batch.

No decoding, no network, nothing per image: what remains is the copy of a batch and, with workers, its way to
the main process. Whoever's images fit into memory would write the first form. The others show what is left
of it where memory is dealt with well: numpy asks the system for huge pages, torch does not; and a worker can
write into shared memory at once, where torch else copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from benchmarks.loading import Contender, Loading, Opened
from benchmarks.plain_loaders import Pairs
from superdl.experiments.loaders.decoding import shared_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["FORMAT", "open_numpy", "open_shared", "open_torch", "write"]

FORMAT = "array"
_IMAGES, _LABELS = "images.npy", "labels.npy"


def write(loading: Loading, target: Path) -> None:
    """Decode all images into one array file of shape (images, height, width, 3), and one of their labels."""
    pairs = Pairs(loading)
    shape = (len(pairs), loading.crop, loading.crop, 3)
    images = np.lib.format.open_memmap(target / _IMAGES, mode="w+", dtype=np.uint8, shape=shape)
    labels = np.empty(len(pairs), dtype=np.int64)
    for index in range(len(pairs)):
        images[index], labels[index] = pairs[index]
    images.flush()
    np.save(target / _LABELS, labels)


def open_torch(loading: Loading) -> Contender:
    """Index a tensor."""
    return _open(_Batches(loading))


def open_numpy(loading: Loading) -> Contender:
    """Index a numpy array."""
    return _open(_NumpyBatches(loading))


def open_shared(loading: Loading) -> Contender:
    """Index a numpy array, in a worker into shared memory."""
    return _open(_SharedBatches(loading))


class _Batches(Dataset[tuple["Tensor", "Tensor"]]):
    """A batch for each list of indices. Forked workers share the images' memory."""

    def __init__(self, loading: Loading) -> None:
        self.loading = loading
        directory = loading.format_directory(FORMAT)
        self._images = torch.from_numpy(np.load(directory / _IMAGES))
        self._labels = torch.from_numpy(np.load(directory / _LABELS))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self._gathered(indices).permute(0, 3, 1, 2), self._labels[indices]

    def _gathered(self, indices: list[int]) -> Tensor:
        return self._images[indices]


class _NumpyBatches(_Batches):
    def _gathered(self, indices: list[int]) -> Tensor:
        return torch.from_numpy(self._images.numpy()[indices])


class _SharedBatches(_Batches):
    def _gathered(self, indices: list[int]) -> Tensor:
        shape = (len(indices), *self._images.shape[1:])
        gathered = shared_bytes(int(np.prod(shape))).view(shape)
        # Any mode but "raise", which would gather elsewhere first.
        np.take(self._images.numpy(), indices, axis=0, out=gathered.numpy(), mode="clip")
        return gathered


def _open(batches: _Batches) -> Contender:
    loading = batches.loading
    order = RandomSampler(batches, generator=torch.Generator().manual_seed(loading.seed))
    return Opened(
        DataLoader(
            batches,
            sampler=BatchSampler(order, loading.batch_size, drop_last=False),
            batch_size=None,
            num_workers=loading.num_workers,
            persistent_workers=loading.num_workers > 0,
        )
    )
