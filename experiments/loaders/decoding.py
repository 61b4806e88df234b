"""What the loaders that decode in workers share: a decoded sample, the batch of them, and the opened loader.

Which samples come in which order is left to the loaders' own modules.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from superdl.experiments.job_counters import JobCounters
from superdl.experiments.loaders.places import CountedPlace
from superdl.experiments.loaders.workers import end_workers
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from torch import Tensor
    from torch.utils.data import DataLoader

    from superdl.experiments.loaders.interface import Batch
    from superdl.experiments.loaders.pixels import ImageMaker

__all__ = ["DecodedSample", "DecodingLoader", "WorkerFigures", "collate", "decoded", "shared_bytes", "stack"]


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What a worker measured while it made one batch; there is no cache to read, hit or miss."""

    batch_id: bytes
    fetch_s: float
    decode_s: float
    size_bytes: int
    read_s: float = 0.0
    hits: int = 0
    misses: int = 0
    padding: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class DecodedSample:
    """Pixels of shape (height, width, 3) with label and key, and what it took to fetch and to decode them."""

    pixels: npt.NDArray[np.uint8]
    label: int
    key: str
    fetch_s: float
    decode_s: float


def decoded(
    content: bytes | memoryview, label: int, key: str, epoch: int, make: ImageMaker, fetch_s: float
) -> DecodedSample:
    """Decode one file that took ``fetch_s`` to fetch; errors are those of ``make``."""
    start_s = time.perf_counter()
    pixels = make(content, key, epoch)
    return DecodedSample(pixels, label, key, fetch_s, time.perf_counter() - start_s)


def collate(samples: Sequence[DecodedSample]) -> Batch:
    """Stack with one copy: in a worker into shared memory, as torch's own collate does; never transposed.

    Raises:
        ConfigError: the images have different sizes.

    """
    first = samples[0].pixels
    if any(sample.pixels.shape != first.shape for sample in samples):
        shapes = sorted({sample.pixels.shape[:2] for sample in samples})
        raise ConfigError(
            f"the images of a batch have different heights and widths, {shapes[0]} and {shapes[-1]}: "
            "end recipe.steps with a crop"
        )
    images, labels = stack([sample.pixels for sample in samples], [sample.label for sample in samples])
    figures = WorkerFigures(
        batch_id=hashlib.blake2b(
            "\0".join(sample.key for sample in samples).encode(), digest_size=16
        ).digest(),
        fetch_s=sum(sample.fetch_s for sample in samples),
        decode_s=sum(sample.decode_s for sample in samples),
        size_bytes=images.numel(),
    )
    return images, labels, figures


def stack(pixels: Sequence[npt.NDArray[np.uint8]], labels: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Images of one shape and their labels as a batch; see :func:`collate`."""
    first = pixels[0]
    shape = (len(pixels), *first.shape)
    if get_worker_info() is None:
        images = torch.empty(shape, dtype=torch.uint8)
    else:
        images = shared_bytes(len(pixels) * first.nbytes).view(shape)
    np.stack(pixels, out=images.numpy())
    return images.permute(0, 3, 1, 2), torch.tensor(labels, dtype=torch.int64)


def shared_bytes(size: int) -> Tensor:
    """Fresh shared memory, as a tensor of bytes."""
    new_shared: Any = torch.UntypedStorage._new_shared  # noqa: SLF001  # what torch's own collate calls
    storage: torch.UntypedStorage = new_shared(size)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,))


def _last_is_padding(figures: WorkerFigures, samples: int) -> WorkerFigures:
    padding = np.zeros(samples, dtype=np.bool_)
    padding[-1] = True
    return replace(figures, padding=padding)


class DecodingLoader:
    """A DataLoader whose workers decode; what they decode is counted as a job's functions are.

    Args:
        batches: gives the batches of an epoch, those of one rank, each time it is iterated.
        length: how many there are.
        classes: their names.
        sample_count: samples of the split, all ranks together.
        fingerprint: of their listing.
        settings: what it was opened with, for the report.
        tell_epoch: has the next iteration of ``batches`` be that of an epoch; None: they count from 0.
        pads: whether this rank's last sample is only there to make ranks equally long.
        requests: for each sample it makes, those to a bucket, which are billed.

    """

    def __init__(
        self,
        batches: DataLoader[Any],
        *,
        length: int,
        classes: Sequence[str],
        sample_count: int,
        fingerprint: bytes,
        settings: Mapping[str, object],
        tell_epoch: Callable[[int], None] | None = None,
        pads: bool = False,
        requests: int = 0,
    ) -> None:
        self._place = CountedPlace({"samples": sample_count, "batches": length}, tell_epoch)
        self._pads = pads
        self._requests = requests
        self._batches: DataLoader[Any] | None = batches
        self._length = length
        self._classes = tuple(classes)
        self._sample_count = sample_count
        self._fingerprint = fingerprint.hex()
        self._settings = settings
        self._fetch_s = 0.0
        self._decode_s = 0.0
        self._samples = 0

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes."""
        return self._classes

    @property
    def sample_count(self) -> int:
        """How many samples the split has."""
        return self._sample_count

    @property
    def settings(self) -> Mapping[str, object]:
        """What it was opened with."""
        return self._settings

    @property
    def fingerprint(self) -> str:
        """Of the listing."""
        return self._fingerprint

    @property
    def resumes_within_epochs(self) -> bool:
        """Whether it can begin at the epoch, whose first batches are then dropped."""
        return self._place.resumes_within_epochs

    def __len__(self) -> int:
        """How many batches an epoch has; none once it is closed."""
        return 0 if self._batches is None else self._length

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next."""
        self._place.set_epoch(epoch)

    def state_dict(self, batches: int) -> dict[str, Any]:
        """The place after so many batches of the latest iteration."""
        return self._place.state_dict(batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at ``state``."""
        self._place.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch."""
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        dropped = self._place.begin()
        for count, (images, labels, figures) in enumerate(self._batches, 1):
            self._fetch_s += figures.fetch_s
            self._decode_s += figures.decode_s
            self._samples += len(labels)
            if count <= dropped:
                continue
            last = self._pads and count == self._length
            yield images, labels, _last_is_padding(figures, len(labels)) if last else figures

    def job_stats(self) -> JobCounters:
        """What was decoded until now."""
        return JobCounters(
            fetch_s=self._fetch_s,
            decode_s=self._decode_s,
            samples_produced=self._samples,
            source_requests=self._requests * self._samples,
        )

    def close(self) -> None:
        """End the workers at once: those of a loader in a reference cycle the collector would end badly."""
        batches, self._batches = self._batches, None
        end_workers(batches)
