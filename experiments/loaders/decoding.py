"""Loaders that decode a source's original files in workers. ``torch`` is the baseline for SUPER."""

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

from superdl.experiments.loaders.samples import WorkerMetrics, decode_image, list_samples
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
    """A picklable collate function that decodes the raw samples of a batch and stacks them.

    A raw sample is a mapping with the sample's ``index``, the bytes of its ``image``, and optionally
    ``fetch_s``, the fetch time in seconds.

    Args:
        samples: the samples that the indices refer to. Their ids seed random steps.
        skips_bad: skip images that cannot be decoded instead of raising BadSampleError.

    Raises:
        RecipeError: ``recipe.steps`` is invalid.
        ConfigError: this process may not import a custom step.
    """

    def __init__(self, samples: Samples, recipe: RecipeSpec, *, skips_bad: bool = False) -> None:
        from superdl.lambda_prefetch.settings import FunctionSettings

        self.samples = samples
        # Seeds random steps. Workers see its changes, because it is in shared memory.
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._recipe = recipe
        self._skips_bad = skips_bad
        self._modules: frozenset[str] = frozenset()
        if recipe.steps is not None:
            self._modules = FunctionSettings.from_environment().step_modules
        self._decoder()  # raises here, not in a worker, if the recipe is invalid

    def __call__(self, raw: Sequence[Mapping[str, Any]]) -> Batch:
        """Decode raw samples into a batch, in order.

        Raises:
            BadSampleError: an image cannot be decoded.
            ConfigError: the images differ in size, are not uint8 RGB, or consist of several arrays.
        """
        start_s = time.perf_counter()
        decode = self._decoder()
        keys: list[str] = []
        labels: list[int] = []
        pixels: list[Pixels] = []
        for sample in raw:
            index = int(sample["index"])
            key = self.samples.keys[index]
            try:
                pixels.append(self._decode_sample(decode, sample["image"], key))
            except BadSampleError:
                if not self._skips_bad:
                    raise
                continue
            keys.append(key)
            labels.append(self.samples.labels[index])
        decode_s = time.perf_counter() - start_s
        images, stacked_labels = stack(pixels, labels)
        metrics = WorkerMetrics(
            batch_id=hashlib.blake2b("\0".join(keys).encode(), digest_size=16).digest(),
            fetch_s=sum(sample.get("fetch_s", 0.0) for sample in raw),
            decode_s=decode_s,
            size_bytes=images.numel(),
        )
        return images, stacked_labels, metrics

    def _decoder(self) -> Callable[[bytes, str], Any]:
        recipe = self._recipe
        if recipe.steps is None:
            return lambda content, _: decode_image(content, resize=recipe.resize, crop=recipe.crop)
        from superdl.lambda_prefetch.image_steps import Program
        from superdl.super_wire.recipe import Recipe
        from superdl.super_wire.request import Limits

        # The code that functions run, so both pixels and CPU time are comparable.
        return Program(
            Recipe(recipe.steps, augment_seed=recipe.augment_seed),
            bucket=self.samples.id_bucket,
            prefix=self.samples.prefix,
            epoch=int(self.epoch),
            limit_pixels=Limits().image_pixels,
            step_modules=self._modules,
        ).make

    def _decode_sample(self, decode: Callable[[bytes, str], Any], content: bytes, key: str) -> Pixels:
        try:
            decoded = decode(bytes(content), key)
        except MemoryError:  # not the image's fault
            raise
        except Exception as error:  # Pillow raises arbitrary errors for corrupt files
            raise BadSampleError(
                f"cannot decode {self.samples.bucket}/{key}: {type(error).__name__}: {error}"
            ) from error
        pixels = np.asarray(decoded)  # several arrays become an object array
        if pixels.dtype != np.uint8 or pixels.ndim != _CHANNELS or pixels.shape[2] != _CHANNELS:
            raise ConfigError(
                f"recipe.steps produce {pixels.dtype} of shape {pixels.shape}, but a model needs one uint8 "
                "array of shape (height, width, 3)"
            )
        return pixels


def stack(pixels: Sequence[Pixels], labels: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Stack images into a channels_last tensor with a single copy. Return it with a tensor of the labels.

    Raises:
        ConfigError: the images differ in height or width.
    """
    if not pixels:
        return torch.empty((0, _CHANNELS, 0, 0), dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
    shapes = sorted({image.shape[:2] for image in pixels})
    if len(shapes) > 1:
        raise ConfigError(
            f"cannot stack images of different heights and widths, {shapes[0]} and {shapes[-1]}. End "
            "recipe.steps with a crop."
        )
    shape = (len(pixels), *pixels[0].shape)
    if get_worker_info() is None:
        images = torch.empty(shape, dtype=torch.uint8)
    else:  # in shared memory, as in torch's default_collate
        size = len(pixels) * pixels[0].nbytes
        storage: Any = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]  # noqa: SLF001
        images = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,)).view(shape)
    np.stack(pixels, out=images.numpy())
    return images.permute(0, 3, 1, 2), torch.tensor(labels, dtype=torch.int64)


class SourceFiles(Dataset[dict[str, Any]]):
    """A dataset of a source's files, as raw samples for `Decode`."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Read one file. Raises the same errors as `Samples.read`."""
        start_s = time.perf_counter()
        content = self._samples.read(index)
        return {"index": index, "image": content, "fetch_s": time.perf_counter() - start_s}


# --------------------------------------------------------------------------------- in the main process


@contextmanager
def starting_workers() -> Iterator[None]:
    """Block SIGTERM in this thread, and thus in workers that it starts, but not in other threads."""
    # Schedulers send SIGTERM to the whole process group, but a run needs its workers for the
    # last step and checkpoint.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_workers(batches: Any) -> None:
    """Stop a DataLoader's workers at once. Unlike torch, kill any that hang."""
    # torch does this when the last reference is dropped, and has no public method for it.
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
    """A DataLoader whose workers decode images, with the counters of a job. Each iteration is an epoch.

    It cannot seek. A resumed epoch is read from its start, and batches before the position are dropped.

    Args:
        batches: an iterable that yields one rank's ``length`` batches on each iteration.
        decode: the collate function that creates these batches.
        settings: the options to report, named as in the loader's documentation.
        choose_epoch: a function that is called with each epoch to set its order. Without it, the loader
            cannot repeat an order and refuses to resume within an epoch.
        pads: whether this rank's last sample is padding that makes it as long as the other ranks.
        requests: the number of billed bucket requests per sample.
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
        """Return the number of batches in an epoch, or 0 if the loader is closed."""
        return 0 if self._batches is None else self._length

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. A batch position loaded for that epoch is kept."""
        if epoch != self._epoch:
            self._epoch, self._batch = epoch, 0

    def _facts(self) -> dict[str, Any]:
        return {"format": _FORMAT, "samples": self.sample_count, "batches": self._length}

    def state_dict(self, batches: int) -> dict[str, Any]:
        """Return the position after ``batches`` batches of the latest iteration, as plain values."""
        epoch, batch = self._began_at
        return {**self._facts(), "epoch": epoch, "batch": batch + batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start at a position saved by any rank's loader. Raises ConfigError."""
        for name, value in self._facts().items():
            if state.get(name) != value:
                raise ConfigError(
                    f"the loader's state belongs to another loader.kind or to other data: {name} was "
                    f"{state.get(name)} and is now {value}"
                )
        if state["batch"] and not self.resumes_within_epochs:
            raise ConfigError(
                "this loader cannot resume within an epoch: it would repeat some samples and skip others. "
                "Resume from a checkpoint taken at the end of an epoch (training.checkpoint_every)."
            )
        self._epoch, self._batch = int(state["epoch"]), int(state["batch"])

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        self._began_at = epoch, dropped = self._epoch, self._batch
        self._epoch, self._batch = epoch + 1, 0
        self._decode.epoch.fill_(epoch)
        self._choose_epoch(epoch)
        for count, (images, labels, metrics) in enumerate(self._batches, 1):
            # Dropped batches cost as much, so they count too.
            self._counters.fetch_s += metrics.fetch_s
            self._counters.decode_s += metrics.decode_s
            self._counters.samples_produced += len(labels)
            self._counters.source_requests += self._requests * len(labels)
            if count <= dropped:
                continue
            if self._pads and count == self._length:
                metrics = replace(metrics, padding=np.arange(len(labels)) == len(labels) - 1)  # noqa: PLW2901  # the last sample
            yield images, labels, metrics

    def job_stats(self) -> LoaderCounters:
        """Return the counters so far."""
        return replace(self._counters)

    def close(self) -> None:
        """Stop the workers at once."""
        # Do not rely on the garbage collector: it stops workers in a reference cycle too late.
        batches, self._batches = self._batches, None
        end_workers(batches)


def open_torch(request: LoaderRequest) -> DecodingLoader:
    """Open a split of a directory or bucket with torch's DataLoader."""
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
        pads=request.rank > (len(samples) - 1) % request.replicas,  # as DistributedSampler does
        requests=int(samples.bucket.startswith("s3://")),
    )
