"""A loader whose workers decode; in its plain form by Pillow, map-style.

The plain form is the baseline for SUPER. It reads files, or objects of a bucket.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset, DistributedSampler, Sampler

from superdl.experiments.loaders.samples import ImageMaker, list_samples
from superdl.experiments.loaders.workers import DecodedSample, collate, data_loader, decoded, end_workers
from superdl.experiments.records import LoaderCounters
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from superdl.experiments.loaders.interface import Batch, Loader, LoaderRequest
    from superdl.experiments.loaders.samples import Samples

__all__ = ["DecodingLoader", "EpochSampler", "SourceImages", "epoch_sampler", "open_torch"]

_log = logging.getLogger(__name__)
_FORMAT = "counted batches"


class DecodingLoader:
    """A DataLoader whose workers decode; they count as a job's functions do.

    It cannot seek. In a resumed epoch it reads from the epoch's start, drops the batches before the place,
    and logs this. A loader that cannot repeat an order raises an error instead.

    Args:
        batches: a DataLoader that yields one rank's batches of an epoch each time it is iterated.
        length: the number of batches.
        samples: those of the split, all ranks together.
        settings: the settings of the loader, for the report.
        tell_epoch: sets the epoch of the next iteration of ``batches``; None: they count from 0.
        pads: whether this rank's last sample only pads it to the length of other ranks.
        requests: the billed requests to a bucket for each sample.
    """

    def __init__(
        self,
        batches: Any,
        *,
        length: int,
        samples: Samples,
        settings: Mapping[str, object],
        tell_epoch: Callable[[int], None] | None = None,
        pads: bool = False,
        requests: int = 0,
    ) -> None:
        self._batches = batches
        self._length = length
        self._split = samples
        self.settings = settings
        self._tell_epoch = tell_epoch
        self._pads = pads
        self._requests = requests
        self._fetch_s = self._decode_s = 0.0
        self._samples = 0
        self._epoch = self._batch = 0  # start of the next iteration
        self._begun = 0  # iterations so far
        self._began_at = (0, 0)  # epoch and batch at which the latest iteration began

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes."""
        return self._split.classes

    @property
    def sample_count(self) -> int:
        """The number of samples in the split."""
        return len(self._split)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the listing."""
        return self._split.fingerprint.hex()

    @property
    def resumes_within_epochs(self) -> bool:
        """True if it can repeat an epoch's order, dropping the first batches."""
        return self._tell_epoch is not None

    def __len__(self) -> int:
        """Return the number of batches in an epoch; 0 once closed."""
        return 0 if self._batches is None else self._length

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next, and keep a loaded batch position in it."""
        if epoch != self._epoch:
            self._epoch, self._batch = epoch, 0

    def _facts(self) -> dict[str, int]:
        """Return the facts that determine the samples of a batch."""
        return {"samples": len(self._split), "batches": self._length}

    def state_dict(self, batches: int) -> dict[str, Any]:
        """Return the place after ``batches`` batches of the latest iteration."""
        epoch, batch = self._began_at
        return {"format": _FORMAT, **self._facts(), "epoch": epoch, "batch": batch + batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at ``state``.

        Raises:
            ConfigError: the state has another loader, samples or batches, or an unrepeatable order.
        """
        if state.get("format") != _FORMAT:
            raise ConfigError(
                "the loader's state is of a loader of another kind: set loader.kind as it was, or resume "
                "from the end of an epoch"
            )
        for name, value in self._facts().items():
            if state.get(name) != value:
                raise ConfigError(
                    f"the loader's state is of other data: {name} is {state.get(name)} there and {value} here"
                )
        if state["batch"] and not self.resumes_within_epochs:
            raise ConfigError(
                "this loader cannot go on in the middle of an epoch, since it would repeat samples and leave "
                "others out: resume from a checkpoint of the end of an epoch (training.checkpoint_every)"
            )
        self._epoch, self._batch = int(state["epoch"]), int(state["batch"])

    def _begin(self) -> int:
        """Begin the next iteration, and return the number of its batches to drop."""
        epoch, batch = self._epoch, self._batch
        if self._tell_epoch is not None:
            self._tell_epoch(epoch)
        elif epoch != self._begun:
            _log.warning(
                "this loader cannot begin at epoch %d: its order is that of epoch %d", epoch, self._begun
            )
        if batch:
            _log.warning(
                "this loader cannot seek: %d batches of epoch %d are read again and dropped", batch, epoch
            )
        self._began_at = (epoch, batch)
        self._begun += 1
        self._epoch, self._batch = epoch + 1, 0
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch."""
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        dropped = self._begin()
        for count, (images, labels, figures) in enumerate(self._batches, 1):
            # Dropped batches are counted too, since they cost as much.
            self._fetch_s += figures.fetch_s
            self._decode_s += figures.decode_s
            self._samples += len(labels)
            if count <= dropped:
                continue
            if self._pads and count == self._length:
                figures = replace(figures, padding=np.arange(len(labels)) == len(labels) - 1)  # noqa: PLW2901  # the last sample
            yield images, labels, figures

    def job_stats(self) -> LoaderCounters:
        """Return the work done so far."""
        return LoaderCounters(
            fetch_s=self._fetch_s,
            decode_s=self._decode_s,
            samples_produced=self._samples,
            source_requests=self._requests * self._samples,
        )

    def close(self) -> None:
        """Stop the workers at once: the garbage collector stops those in a cycle badly."""
        batches, self._batches = self._batches, None
        end_workers(batches)


class SourceImages(Dataset[DecodedSample]):
    """The images of a source, decoded on access by epoch and index."""

    def __init__(self, samples: Samples, make: ImageMaker) -> None:
        self._samples = samples
        self._make = make

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._samples)

    def __getitem__(self, place: tuple[int, int]) -> DecodedSample:
        """Read and decode one image; errors are those of `Samples.read` and `ImageMaker`."""
        epoch, index = place
        samples = self._samples
        start_s = time.perf_counter()
        content = samples.read(index)
        fetch_s = time.perf_counter() - start_s
        return decoded(content, samples.labels[index], samples.keys[index], epoch, self._make, fetch_s)


class EpochSampler(Sampler[tuple[int, int]]):
    """A DistributedSampler that adds the epoch to indices; each iteration is an epoch."""

    def __init__(self, indices: DistributedSampler[Any]) -> None:
        self._indices = indices
        self._epoch = -1

    def __len__(self) -> int:
        """Return the number of samples of this rank."""
        return len(self._indices)

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next."""
        self._epoch = epoch - 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Begin the next epoch."""
        self._epoch += 1
        self._indices.set_epoch(self._epoch)
        # Workers persist across epochs, so that each index must carry its epoch.
        return ((self._epoch, index) for index in self._indices)


def epoch_sampler(dataset: Dataset[Any], request: LoaderRequest) -> EpochSampler:
    """Return a rank's order: a new shuffle per epoch for training, else key order."""
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
        ConfigError: the labels of its key list are not class names.
    """
    samples = list_samples(request.source, "torch")
    in_bucket = samples.bucket.startswith("s3://")
    dataset = SourceImages(samples, ImageMaker(request.recipe, samples))
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
            "reads": "objects of a bucket" if in_bucket else "files",
        },
        tell_epoch=sampler.set_epoch,
        pads=request.rank > (len(samples) - 1) % request.replicas,  # DistributedSampler pads these ranks
        requests=int(in_bucket),
    )
