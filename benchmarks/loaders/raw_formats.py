"""Loaders of previously decoded pixels: LitData, MDS, and an array in memory as a bound.

The array shows the cost without decoding, network or per-image work: the copy of a batch and, with workers,
its transfer to the main process. It is indexed by numpy, which requests huge pages from the system; torch
does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Dataset, RandomSampler

from benchmarks.harness.arm import Contender
from benchmarks.loaders.loading import Pairs, data_loader
from superdl.experiments.loaders.streaming_loaders import write_chunks, write_shards
from superdl.experiments.models import declare_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from benchmarks.harness.image_sets import Loading

__all__ = ["ARRAY", "FORMATS", "LITDATA", "MDS"]

ARRAY, LITDATA, MDS = "array", "litdata-raw", "mds-raw"
"""The folders of the formats."""

_CHUNK_BYTES = 64_000_000
_IMAGES, _LABELS = "images.npy", "labels.npy"


def _items(loading: Loading) -> Iterator[dict[str, Any]]:
    pairs = Pairs(loading)
    for index in range(len(pairs)):
        pixels, label = pairs[index]
        yield {"image": pixels.copy(), "label": label}


def _image_and_label(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return batch["image"].permute(0, 3, 1, 2), batch["label"].to(torch.int64)


# ------------------------------------------------------------------------------- loaders of others


def _write_mds(loading: Loading, target: Path) -> None:
    """Write MDS shards of pixels of one shape."""
    declare_operators()
    columns = {"image": f"ndarray:uint8:{loading.crop},{loading.crop},3", "label": "int"}
    write_shards(_items(loading), columns, target)


def _open_mds(loading: Loading) -> Contender:
    """Open MosaicML Streaming, collated by torch's own collate."""
    declare_operators()
    from streaming import StreamingDataset

    dataset = StreamingDataset(
        local=str(loading.format_directory(MDS)),
        batch_size=loading.batch_size,
        shuffle=True,
        shuffle_seed=loading.seed,
    )
    batches = data_loader(dataset, loading, batch_size=loading.batch_size)
    return Contender(batches, pair=_image_and_label)


def _write_litdata(loading: Loading, target: Path) -> None:
    """Write LitData chunks of pixels."""
    declare_operators()
    write_chunks(_items(loading), _CHUNK_BYTES, target)


def _open_litdata(loading: Loading) -> Contender:
    """Open LitData, image by image: batches of chunks cost more without decoding."""
    declare_operators()
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        str(loading.format_directory(LITDATA)),
        shuffle=True,
        seed=loading.seed,
        batch_decode=False,
    )
    batches = data_loader(dataset, loading, StreamingDataLoader, batch_size=loading.batch_size)
    return Contender(batches, pair=_image_and_label)


# --------------------------------------------------------------------------------- array in memory


def _write_array(loading: Loading, target: Path) -> None:
    """Write one array file of shape (images, height, width, 3), and one of their labels."""
    pairs = Pairs(loading)
    shape = (len(pairs), loading.crop, loading.crop, 3)
    images = np.lib.format.open_memmap(target / _IMAGES, mode="w+", dtype=np.uint8, shape=shape)
    labels = np.empty(len(pairs), dtype=np.int64)
    for index in range(len(pairs)):
        images[index], labels[index] = pairs[index]
    images.flush()
    np.save(target / _LABELS, labels)


def _open_array(loading: Loading) -> Contender:
    """Open the array, from which numpy gathers a batch by its indices."""
    batches = _ArrayBatches(loading)
    order = RandomSampler(batches, generator=torch.Generator().manual_seed(loading.seed))
    indices = BatchSampler(order, loading.batch_size, drop_last=False)
    return Contender(data_loader(batches, loading, sampler=indices, batch_size=None))


class _ArrayBatches(Dataset[tuple["Tensor", "Tensor"]]):
    """A dataset indexed by lists of indices. Forked workers share the images' memory."""

    def __init__(self, loading: Loading) -> None:
        directory = loading.format_directory(ARRAY)
        self._images = np.load(directory / _IMAGES)
        self._labels = torch.from_numpy(np.load(directory / _LABELS))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self._images[indices]).permute(0, 3, 1, 2), self._labels[indices]


FORMATS: Mapping[str, tuple[Callable[[Loading], Contender], Callable[[Loading, Path], None]]] = {
    MDS: (_open_mds, _write_mds),
    LITDATA: (_open_litdata, _write_litdata),
    ARRAY: (_open_array, _write_array),
}
"""Keyed by folder: the opener of a format, and its writer into an empty directory."""
