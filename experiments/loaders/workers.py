"""Decode samples and form batches in the worker processes of a DataLoader.

Workers leave SIGTERM, which schedulers send to a whole process group (torchrun, Slurm, systemd), to the run:
it needs them for its last step and checkpoint.
"""

from __future__ import annotations

import hashlib
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from superdl.experiments.loaders.interface import WorkerFigures
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from superdl.experiments.loaders.interface import Batch, LoaderRequest
    from superdl.experiments.loaders.samples import ImageMaker

__all__ = [
    "DecodedSample",
    "collate",
    "data_loader",
    "decoded",
    "end_workers",
    "shared_bytes",
    "stack",
    "starting_workers",
]


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
    """Decode one file that took ``fetch_s`` to fetch; errors are those of ``make``."""
    start_s = time.perf_counter()
    pixels = make(content, key, epoch)
    return DecodedSample(pixels, label, key, fetch_s, time.perf_counter() - start_s)


def collate(samples: Sequence[DecodedSample]) -> Batch:
    """Stack with one copy, in a worker into shared memory like torch; never transposed.

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
    keys = "\0".join(sample.key for sample in samples)
    figures = WorkerFigures(
        batch_id=hashlib.blake2b(keys.encode(), digest_size=16).digest(),
        fetch_s=sum(sample.fetch_s for sample in samples),
        decode_s=sum(sample.decode_s for sample in samples),
        size_bytes=images.numel(),
    )
    return images, labels, figures


def stack(pixels: Sequence[npt.NDArray[np.uint8]], labels: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Stack images of one shape and their labels into a batch; see :func:`collate`."""
    first = pixels[0]
    shape = (len(pixels), *first.shape)
    if get_worker_info() is None:
        images = torch.empty(shape, dtype=torch.uint8)
    else:
        images = shared_bytes(len(pixels) * first.nbytes).view(shape)
    np.stack(pixels, out=images.numpy())
    return images.permute(0, 3, 1, 2), torch.tensor(labels, dtype=torch.int64)


def shared_bytes(size: int) -> Tensor:
    """Allocate shared memory as a tensor of bytes."""
    new_shared: Any = torch.UntypedStorage._new_shared  # noqa: SLF001  # as in torch's own collate
    storage: torch.UntypedStorage = new_shared(size)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,))


def data_loader(dataset: Any, request: LoaderRequest, kind: Any = DataLoader, **options: Any) -> Any:
    """Make a DataLoader with the workers that a spec requests."""
    return kind(dataset, **request.worker_options(), **options)


@contextmanager
def starting_workers() -> Iterator[None]:
    """Block SIGTERM in this thread, which the workers that it starts inherit.

    They leave the signal to the run, and end when their loader is closed or deleted. Other threads of this
    process still receive it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_workers(batches: Any) -> None:
    """Stop a DataLoader's workers at once; kill one that hangs, unlike torch."""
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
