"""The plain way: a map-style dataset that decodes with Pillow inside DataLoader workers.

The baseline that SUPER is measured against. It reads files, or objects of a bucket by boto3.
"""

from __future__ import annotations

import time
from math import ceil
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset, DistributedSampler, Sampler

from superdl.experiments.loaders.decoding import DecodingLoader
from superdl.experiments.loaders.samples import ImageMaker, list_samples
from superdl.experiments.loaders.workers import DecodedSample, collate, data_loader, decoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.experiments.loaders.interface import Loader, LoaderRequest
    from superdl.experiments.loaders.samples import Samples

__all__ = ["EpochSampler", "SourceImages", "epoch_sampler", "open_torch"]


class SourceImages(Dataset[DecodedSample]):
    """The images of a source, decoded when they are asked for, by epoch and index."""

    def __init__(self, samples: Samples, make: ImageMaker) -> None:
        self._samples = samples
        self._make = make

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._samples)

    def __getitem__(self, place: tuple[int, int]) -> DecodedSample:
        """Read and decode one image; errors as `Samples.read` and `ImageMaker` have them."""
        epoch, index = place
        samples = self._samples
        start_s = time.perf_counter()
        content = samples.read(index)
        fetch_s = time.perf_counter() - start_s
        return decoded(content, samples.labels[index], samples.keys[index], epoch, self._make, fetch_s)


class EpochSampler(Sampler[tuple[int, int]]):
    """What a DistributedSampler gives, each index with its epoch; each iteration is the next epoch."""

    def __init__(self, indices: DistributedSampler[Any]) -> None:
        self._indices = indices
        self._epoch = -1

    def __len__(self) -> int:
        """How many samples this rank has."""
        return len(self._indices)

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next."""
        self._epoch = epoch - 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Begin the next epoch."""
        self._epoch += 1
        self._indices.set_epoch(self._epoch)
        return ((self._epoch, index) for index in self._indices)


def epoch_sampler(dataset: Dataset[Any], request: LoaderRequest) -> EpochSampler:
    """The order of a rank: shuffled afresh each epoch by the seed for training, else in key order."""
    return EpochSampler(
        DistributedSampler(
            dataset,
            num_replicas=request.replicas,
            rank=request.rank,
            shuffle=request.training,
            seed=request.seed,
        )
    )


def open_torch(request: LoaderRequest) -> Loader:
    """Open a split of a directory or a bucket.

    Raises:
        SourceError: it cannot be listed.
        ConfigError: the labels of its key list are no class names.

    """
    samples = list_samples(request.source, "torch")
    in_bucket = samples.bucket.startswith("s3://")
    dataset = SourceImages(samples, ImageMaker(request.recipe, samples.bucket))
    sampler = epoch_sampler(dataset, request)
    return DecodingLoader(
        data_loader(
            dataset, request, batch_size=request.loader.batch_size, sampler=sampler, collate_fn=collate
        ),
        length=ceil(len(sampler) / request.loader.batch_size),
        samples=samples,
        settings={
            **request.worker_options(),
            "sampler": f"DistributedSampler(shuffle={request.training}), set_epoch each epoch",
            "repeated_samples": len(sampler) * request.replicas - len(samples),
            "reads": "objects by boto3" if in_bucket else "files",
        },
        tell_epoch=sampler.set_epoch,
        pads=request.rank > (len(samples) - 1) % request.replicas,  # DistributedSampler fills up so
        requests=int(in_bucket),
    )
