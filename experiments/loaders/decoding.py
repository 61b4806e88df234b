"""Loaders whose workers decode a source's unchanged files. ``torch`` is the baseline for SUPER."""

from __future__ import annotations

import hashlib
import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from superdl.experiments.loaders.samples import WorkerFigures, decode_image, list_samples
from superdl.experiments.records import LoaderCounters
from superdl.super_wire.errors import BadSampleError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from superdl.experiments.loaders.samples import Batch, LoaderRequest, Pixels, Samples
    from superdl.experiments.spec import RecipeSpec

_FORMAT = "counted batches"
_CHANNELS = 3


# ------------------------------------------------------------------------------------------ in a worker


class Decode:
    """Decode the raw samples of a batch and stack them: a picklable collate function.

    A raw sample is a mapping with the ``index`` of the sample, the bytes of its ``image``, and perhaps
    ``fetch_s``, the seconds to fetch it.

    Args:
        samples: the samples to which the indices refer. Their ids seed random steps.
        skips_bad: leave out images that cannot be decoded, instead of raising BadSampleError.

    Raises:
        RecipeError: ``recipe.steps`` is invalid.
        ConfigError: a custom step may not be imported here.
    """

    def __init__(self, samples: Samples, recipe: RecipeSpec, *, skips_bad: bool = False) -> None:
        from superdl.lambda_prefetch.settings import FunctionSettings

        self.samples = samples
        # The epoch of random steps. Workers see its changes.
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._recipe = recipe
        self._skips_bad = skips_bad
        self._modules: frozenset[str] = frozenset()
        if recipe.steps is not None:
            self._modules = FunctionSettings.from_environment().step_modules
        self._maker()  # rejects an impossible recipe now, not in a worker

    def __call__(self, raw: Sequence[Mapping[str, Any]]) -> Batch:
        """Return the batch of raw samples, in their order.

        Raises:
            BadSampleError: an image cannot be decoded.
            ConfigError: the images have different sizes, are not uint8 RGB, or are several arrays.
        """
        start_s = time.perf_counter()
        make = self._maker()
        keys: list[str] = []
        labels: list[int] = []
        pixels: list[Pixels] = []
        for sample in raw:
            index = int(sample["index"])
            key = self.samples.keys[index]
            try:
                pixels.append(self._made(make, sample["image"], key))
            except BadSampleError:
                if not self._skips_bad:
                    raise
                continue
            keys.append(key)
            labels.append(self.samples.labels[index])
        decode_s = time.perf_counter() - start_s
        images, stacked_labels = stack(pixels, labels)
        figures = WorkerFigures(
            batch_id=hashlib.blake2b("\0".join(keys).encode(), digest_size=16).digest(),
            fetch_s=sum(sample.get("fetch_s", 0.0) for sample in raw),
            decode_s=decode_s,
            size_bytes=images.numel(),
        )
        return images, stacked_labels, figures

    def _maker(self) -> Callable[[bytes, str], Any]:
        """Return the function that makes pixels of a file's content and its key."""
        recipe = self._recipe
        if recipe.steps is None:
            return lambda content, _: decode_image(content, resize=recipe.resize, crop=recipe.crop)
        from superdl.lambda_prefetch.transforms import Program
        from superdl.super_wire.recipe import Recipe
        from superdl.super_wire.request import Limits

        # The functions' own code: the same pixels for the same CPU time.
        return Program(
            Recipe(recipe.steps, augment_seed=recipe.augment_seed),
            bucket=self.samples.id_bucket,
            prefix=self.samples.prefix,
            epoch=int(self.epoch),
            limit_pixels=Limits().image_pixels,
            step_modules=self._modules,
        ).make

    def _made(self, make: Callable[[bytes, str], Any], content: bytes, key: str) -> Pixels:
        try:
            made = make(bytes(content), key)
        except MemoryError:  # not the image's fault
            raise
        except Exception as error:  # Pillow raises anything on broken bytes
            raise BadSampleError(
                f"{self.samples.bucket}/{key}: it cannot be decoded ({type(error).__name__}: {error})"
            ) from error
        if isinstance(made, dict):
            raise ConfigError("recipe.steps produce several arrays, but models here take a single image")
        pixels = np.asarray(made)
        if pixels.dtype != np.uint8 or pixels.ndim != _CHANNELS or pixels.shape[2] != _CHANNELS:
            raise ConfigError(
                f"recipe.steps produce {pixels.dtype} of shape {pixels.shape}, but models here take uint8 "
                "of shape (height, width, 3)"
            )
        return pixels


def stack(pixels: Sequence[Pixels], labels: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Stack images and their labels, as a channels_last view of one copy.

    Raises:
        ConfigError: the images have different heights or widths.
    """
    if not pixels:
        return torch.empty((0, _CHANNELS, 0, 0), dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
    shapes = sorted({image.shape[:2] for image in pixels})
    if len(shapes) > 1:
        raise ConfigError(
            f"the images of a batch have different heights and widths, {shapes[0]} and {shapes[-1]}: "
            "end recipe.steps with a crop"
        )
    shape = (len(pixels), *pixels[0].shape)
    if get_worker_info() is None:
        images = torch.empty(shape, dtype=torch.uint8)
    else:  # into shared memory, as torch's own collate
        size = len(pixels) * pixels[0].nbytes
        storage: Any = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]  # noqa: SLF001
        images = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,)).view(shape)
    np.stack(pixels, out=images.numpy())
    return images.permute(0, 3, 1, 2), torch.tensor(labels, dtype=torch.int64)


class SourceFiles(Dataset[dict[str, Any]]):
    """The files of a source as raw samples, for `Decode`."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Read one file. Raises what `Samples.read` raises."""
        start_s = time.perf_counter()
        content = self._samples.read(index)
        return {"index": index, "image": content, "fetch_s": time.perf_counter() - start_s}


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

    ``settings`` are named as in the loader's documentation. It cannot seek: a resumed epoch is read from its
    start, and the batches before the position are dropped. A loader that cannot repeat an order raises an
    error instead.

    Args:
        batches: yields the ``length`` batches of one rank each time it is iterated.
        decode: the collate function of these batches.
        choose_epoch: sets the order of the next iteration. Without it, orders count from 0.
        pads: whether this rank's last sample only pads it to the length of other ranks.
        requests: requests to a bucket that are billed for each sample.
    """

    def __init__(
        self,
        batches: Any,
        *,
        length: int,
        decode: Decode,
        settings: Mapping[str, object],
        choose_epoch: Callable[[int], object] | None = None,
        pads: bool = False,
        requests: int = 0,
    ) -> None:
        self._batches = batches
        self._length = length
        self._decode = decode
        self._choose_epoch = choose_epoch or (lambda _: None)
        self._pads = pads
        self._requests = requests
        self._counters = LoaderCounters()
        self._epoch = self._batch = 0  # start of the next iteration
        self._began_at = (0, 0)  # epoch and batch at which the latest iteration began
        self.settings = settings
        self.classes = decode.samples.classes
        self.sample_count = len(decode.samples)
        self.fingerprint = decode.samples.fingerprint.hex()
        self.resumes_within_epochs = choose_epoch is not None

    def __len__(self) -> int:
        """Return the number of batches in an epoch, or 0 once closed."""
        return 0 if self._batches is None else self._length

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, and keep a loaded batch position in it."""
        if epoch != self._epoch:
            self._epoch, self._batch = epoch, 0

    def _facts(self) -> dict[str, Any]:
        return {"format": _FORMAT, "samples": self.sample_count, "batches": self._length}

    def state_dict(self, batches: int) -> dict[str, Any]:
        """Return the position after ``batches`` of the latest iteration, as plain values."""
        epoch, batch = self._began_at
        return {**self._facts(), "epoch": epoch, "batch": batch + batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start the next iteration at a position from any rank's loader, or raise ConfigError."""
        for name, value in self._facts().items():
            if state.get(name) != value:
                raise ConfigError(
                    "the loader's state is of another loader.kind or of other data: "
                    f"{name} was {state.get(name)} and is now {value}"
                )
        if state["batch"] and not self.resumes_within_epochs:
            raise ConfigError(
                "this loader cannot resume within an epoch, since it would repeat some samples and skip "
                "others: resume from a checkpoint taken at the end of an epoch (training.checkpoint_every)"
            )
        self._epoch, self._batch = int(state["epoch"]), int(state["batch"])

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        self._began_at = epoch, dropped = self._epoch, self._batch
        self._epoch, self._batch = epoch + 1, 0
        self._decode.epoch.fill_(epoch)
        self._choose_epoch(epoch)
        for count, (images, labels, figures) in enumerate(self._batches, 1):
            # Dropped batches are counted too, since they cost as much.
            self._counters.fetch_s += figures.fetch_s
            self._counters.decode_s += figures.decode_s
            self._counters.samples_produced += len(labels)
            self._counters.source_requests += self._requests * len(labels)
            if count <= dropped:
                continue
            if self._pads and count == self._length:
                figures = replace(figures, padding=np.arange(len(labels)) == len(labels) - 1)  # noqa: PLW2901  # the last sample
            yield images, labels, figures

    def job_stats(self) -> LoaderCounters:
        """Return the work done so far."""
        return replace(self._counters)

    def close(self) -> None:
        """Stop the workers at once."""
        # The garbage collector stops workers in a cycle badly.
        batches, self._batches = self._batches, None
        end_workers(batches)


def open_torch(request: LoaderRequest) -> DecodingLoader:
    """Open a split of a directory or a bucket with the DataLoader of torch."""
    samples = list_samples(request.source, request.loader.kind)
    decode, files = Decode(samples, request.recipe), SourceFiles(samples)
    sampler: DistributedSampler[Any] = DistributedSampler(
        files,
        num_replicas=request.replicas,
        rank=request.rank,
        shuffle=request.training,
        seed=request.seed,
    )
    batch, options = request.loader.batch_size, request.worker_options()
    return DecodingLoader(
        DataLoader(files, batch_size=batch, sampler=sampler, collate_fn=decode, **options),
        length=ceil(len(sampler) / batch),
        decode=decode,
        settings={
            **options,
            "sampler": f"DistributedSampler(shuffle={request.training}), set_epoch each epoch",
            "repeated_samples": len(sampler) * request.replicas - len(samples),
        },
        choose_epoch=sampler.set_epoch,
        pads=request.rank > (len(samples) - 1) % request.replicas,  # DistributedSampler pads these ranks
        requests=int(samples.bucket.startswith("s3://")),
    )
