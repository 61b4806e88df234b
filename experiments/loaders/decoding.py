"""Loaders whose workers decode. The plain form, ``torch``, is the baseline for SUPER."""

from __future__ import annotations

import hashlib
import logging
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, get_worker_info

from superdl.experiments.loaders.samples import ImageMaker, WorkerFigures, list_samples
from superdl.experiments.records import LoaderCounters
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from superdl.experiments.loaders.samples import Batch, LoaderRequest, Samples

_log = logging.getLogger(__name__)
_FORMAT = "counted batches"


# ------------------------------------------------------------------------------------------ in a worker


@dataclass(frozen=True, slots=True)
class DecodedSample:
    """Pixels of shape (height, width, 3), label, key, and seconds to fetch and decode."""

    pixels: npt.NDArray[np.uint8]
    label: int
    key: str
    fetch_s: float
    decode_s: float


def decoded(
    content: bytes | memoryview, label: int, key: str, epoch: int, make: ImageMaker, fetch_s: float
) -> DecodedSample:
    """Decode a file that took ``fetch_s`` to fetch. Raises what ``make`` raises."""
    start_s = time.perf_counter()
    pixels = make(content, key, epoch)
    return DecodedSample(pixels, label, key, fetch_s, time.perf_counter() - start_s)


def collate(samples: Sequence[DecodedSample]) -> Batch:
    """Stack samples into a batch."""
    shapes = sorted({sample.pixels.shape[:2] for sample in samples})
    if len(shapes) > 1:
        raise ConfigError(
            f"the images of a batch have different heights and widths, {shapes[0]} and {shapes[-1]}: "
            "end recipe.steps with a crop"
        )
    images, labels = stack([sample.pixels for sample in samples], [sample.label for sample in samples])
    keys = "\0".join(sample.key for sample in samples)
    figures = WorkerFigures(
        batch_id=hashlib.blake2b(keys.encode(), digest_size=16).digest(),
        fetch_s=sum(sample.fetch_s for sample in samples),
        decode_s=sum(sample.decode_s for sample in samples),
        size_bytes=images.numel(),
    )
    return images, labels, figures


def stack(pixels: Sequence[npt.NDArray[np.uint8]], labels: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Stack images of one shape and their labels, as a channels_last view of one copy."""
    shape = (len(pixels), *pixels[0].shape)
    if get_worker_info() is None:
        images = torch.empty(shape, dtype=torch.uint8)
    else:  # into shared memory, as torch's own collate
        size = len(pixels) * pixels[0].nbytes
        storage: Any = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]  # noqa: SLF001
        images = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,)).view(shape)
    np.stack(pixels, out=images.numpy())
    return images.permute(0, 3, 1, 2), torch.tensor(labels, dtype=torch.int64)


# --------------------------------------------------------------------------------- in the main process


@contextmanager
def starting_workers() -> Iterator[None]:
    """Block SIGTERM in this thread and the workers it starts. Other threads still receive the signal."""
    # Schedulers send SIGTERM to the whole process group, but the run needs its workers for
    # its last step and checkpoint.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_workers(batches: Any) -> None:
    """Stop the workers of a DataLoader at once. Unlike torch, kill one that hangs."""
    # Torch does this when the last reference goes, without a public name.
    iterator = getattr(batches, "_iterator", None)
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is None:
        return
    shut_down()
    for process in getattr(iterator, "_workers", ()):
        if process.is_alive():
            process.kill()
            process.join()


class DecodingLoader:
    """A DataLoader whose workers decode, counted like a job's functions. Each iteration is an epoch.

    ``settings`` are named as in the loader's documentation. With ``resumes_within_epochs`` it can
    resume within an epoch with exactly the remaining samples.

    It cannot seek: a resumed epoch is read from its start, and the batches before the position are
    dropped. A loader that cannot repeat an order raises an error instead.

    Args:
        batches: yields the ``length`` batches of one rank each time it is iterated.
        choose_epoch: sets the epoch of the next iteration. Without it, epochs count from 0.
        pads: whether this rank's last sample only pads it to the length of other ranks.
        requests: requests to a bucket that are billed for each sample.
    """

    def __init__(
        self,
        batches: Any,
        *,
        length: int,
        samples: Samples,
        settings: Mapping[str, object],
        choose_epoch: Callable[[int], None] | None = None,
        pads: bool = False,
        requests: int = 0,
    ) -> None:
        self._batches = batches
        self._length = length
        self._choose_epoch = choose_epoch
        self._pads = pads
        self._requests = requests
        self._fetch_s = self._decode_s = 0.0
        self._samples = 0
        self._epoch = self._batch = 0  # start of the next iteration
        self._begun = 0  # iterations so far
        self._began_at = (0, 0)  # epoch and batch at which the latest iteration began
        self.settings = settings
        self.classes = samples.classes
        self.sample_count = len(samples)
        self.fingerprint = samples.fingerprint.hex()
        self.resumes_within_epochs = choose_epoch is not None

    def __len__(self) -> int:
        """Return the number of batches in an epoch, or 0 once closed."""
        return 0 if self._batches is None else self._length

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, and keep a loaded batch position in it."""
        if epoch != self._epoch:
            self._epoch, self._batch = epoch, 0

    def _facts(self) -> dict[str, Any]:
        return {"samples": self.sample_count, "batches": self._length}

    def state_dict(self, batches: int) -> dict[str, Any]:
        """Return the position after ``batches`` of the latest iteration, as plain values."""
        epoch, batch = self._began_at
        return {"format": _FORMAT, **self._facts(), "epoch": epoch, "batch": batch + batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start the next iteration at a position from any rank's loader, or raise ConfigError."""
        if state.get("format") != _FORMAT:
            raise ConfigError(
                "the loader's state was saved by another kind of loader: restore loader.kind, or resume from "
                "the end of an epoch"
            )
        for name, value in self._facts().items():
            if state.get(name) != value:
                raise ConfigError(
                    f"the loader's state is for other data: {name} was {state.get(name)} and is now {value}"
                )
        if state["batch"] and not self.resumes_within_epochs:
            raise ConfigError(
                "this loader cannot resume within an epoch, since it would repeat some samples and skip "
                "others: resume from a checkpoint taken at the end of an epoch (training.checkpoint_every)"
            )
        self._epoch, self._batch = int(state["epoch"]), int(state["batch"])

    def _begin(self) -> int:
        """Start the next iteration, and return how many of its batches to drop."""
        epoch, batch = self._epoch, self._batch
        if self._choose_epoch is not None:
            self._choose_epoch(epoch)
        elif epoch != self._begun:
            _log.warning(
                "this loader cannot start at epoch %d: its order is that of epoch %d", epoch, self._begun
            )
        if batch:
            _log.warning(
                "this loader cannot seek, so %d batches of epoch %d are read again and dropped", batch, epoch
            )
        self._began_at = (epoch, batch)
        self._begun += 1
        self._epoch, self._batch = epoch + 1, 0
        return batch

    def __iter__(self) -> Iterator[Batch]:
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
        """Stop the workers at once."""
        # The garbage collector stops workers in a cycle badly.
        batches, self._batches = self._batches, None
        end_workers(batches)


# ----------------------------------------------------------------------------------------------- torch


class SourceImages(Dataset[DecodedSample]):
    """The images of a source, decoded when accessed by epoch and index."""

    def __init__(self, samples: Samples, make: ImageMaker) -> None:
        self._samples = samples
        self._make = make

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, place: tuple[int, int]) -> DecodedSample:
        """Read and decode one image. Raises what `Samples.read` and `ImageMaker` raise."""
        epoch, index = place
        samples = self._samples
        start_s = time.perf_counter()
        content = samples.read(index)
        fetch_s = time.perf_counter() - start_s
        return decoded(content, samples.labels[index], samples.keys[index], epoch, self._make, fetch_s)


class EpochSampler(Sampler[tuple[int, int]]):
    """The order of one rank, shuffled for training, else by key. Each index carries its epoch."""

    def __init__(self, dataset: Dataset[Any], request: LoaderRequest) -> None:
        self._indices: DistributedSampler[Any] = DistributedSampler(
            dataset,
            num_replicas=request.replicas,
            rank=request.rank,
            shuffle=request.training,
            seed=request.seed,
        )
        self._epoch = -1

    def __len__(self) -> int:
        return len(self._indices)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch."""
        # __iter__ increments it.
        self._epoch = epoch - 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self._epoch += 1
        self._indices.set_epoch(self._epoch)
        # Workers persist across epochs, so that each index must carry its epoch.
        return ((self._epoch, index) for index in self._indices)


def open_torch(request: LoaderRequest) -> DecodingLoader:
    """Open a split of a directory or a bucket with the DataLoader of torch."""
    samples = list_samples(request.source, "torch")
    in_bucket = samples.bucket.startswith("s3://")
    dataset = SourceImages(samples, ImageMaker(request.recipe, samples))
    sampler, batch_size = EpochSampler(dataset, request), request.loader.batch_size
    options = request.worker_options()
    return DecodingLoader(
        DataLoader(dataset, batch_size=batch_size, sampler=sampler, collate_fn=collate, **options),
        length=ceil(len(sampler) / batch_size),
        samples=samples,
        settings={
            **options,
            "sampler": f"DistributedSampler(shuffle={request.training}), set_epoch each epoch",
            "repeated_samples": len(sampler) * request.replicas - len(samples),
            "reads": "objects of a bucket" if in_bucket else "files",
        },
        choose_epoch=sampler.set_epoch,
        pads=request.rank > (len(samples) - 1) % request.replicas,  # DistributedSampler pads these ranks
        requests=int(in_bucket),
    )
