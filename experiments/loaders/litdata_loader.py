"""LitData: chunks that hold the files unchanged, read from local disk.

As its documentation writes it: a dataset of one's own whose ``__getitem__`` decodes, and its
StreamingDataLoader. For several ranks it drops the last samples of an epoch, as it does unless told
otherwise, since it would give them all to one rank. Validation asks for samples by index, which keeps their
order.
"""

from __future__ import annotations

import functools
import time
from math import ceil
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset

from superdl.experiments.loaders.conversion import Format, convert_once
from superdl.experiments.loaders.decoding import DecodingLoader, collate, decoded
from superdl.experiments.loaders.packages import need_package
from superdl.experiments.loaders.pixels import ImageMaker
from superdl.experiments.loaders.samples import list_samples
from superdl.experiments.loaders.torch_loader import epoch_sampler, pads
from superdl.experiments.loaders.workers import leave_sigterm_to_the_run
from superdl.experiments.torchvision_operators import declare_operators

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from superdl.experiments.loaders.decoding import DecodedSample
    from superdl.experiments.loaders.interface import Loader, LoaderRequest
    from superdl.experiments.loaders.samples import Samples

__all__ = ["LITDATA", "open_litdata"]

_KIND = "litdata"
_DOCUMENTATION = "https://github.com/Lightning-AI/litData"
_CHUNK_BYTES = 2**26  # the package's default, the most here
_CHUNK_BYTES_MIN = 2**20
_CHUNKS = 48  # of a set that is too small for so many of them
_SAMPLE_BYTES = 32
_BATCH_DECODE = 1  # what its "auto" takes for rows that are images


def _write(samples: Samples, order: Sequence[int], size_bytes: int, directory: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    chunk_bytes = min(max(size_bytes // _CHUNKS, _CHUNK_BYTES_MIN), _CHUNK_BYTES)
    writer = BinaryWriter(str(directory), chunk_bytes=chunk_bytes)
    # One rank writes all; else it would wait for what the others write.
    writer._distributed_env = type(writer._distributed_env)(1, 0, 1)  # noqa: SLF001  # it has no other way
    for place, index in enumerate(order):
        writer[place] = {"image": samples.read(index), "label": samples.labels[index], "index": index}
    writer.done()
    writer.merge()


LITDATA = Format(_KIND, version=1, overhead_bytes=_SAMPLE_BYTES, write=_write)


def open_litdata(request: LoaderRequest) -> Loader:
    """Open a split, converted into chunks first unless it has been.

    Raises:
        ConfigError: the package is not installed, or the chunks cannot be written.
        SourceError: the source cannot be listed or read.

    """
    need_package("litdata", _KIND)
    images = _images_class()
    samples = list_samples(request.source, _KIND)
    make = ImageMaker(request.recipe, samples.bucket)
    converted = convert_once(samples, LITDATA, request)
    drop_last = request.training and request.replicas > 1
    arguments: dict[str, Any] = {
        "shuffle": request.training,
        "seed": request.seed,
        "drop_last": drop_last,
        "batch_decode": _BATCH_DECODE,
    }
    dataset = images(samples, make, input_dir=str(converted.directory), **arguments)
    # It finds a rank by torch.distributed, or by GLOBAL_RANK, which torchrun does not set.
    dataset.distributed_env = type(dataset.distributed_env)(request.replicas, request.rank, 1)
    options: dict[str, Any] = {
        "num_workers": request.loader.num_workers,
        "persistent_workers": request.loader.num_workers > 0,
        "pin_memory": request.pin_memory,
    }
    open_split = _shuffled if request.training else _in_order
    batches, length, given = open_split(dataset, request, options)
    return DecodingLoader(
        batches,
        length=length,
        classes=samples.classes,
        sample_count=len(samples),
        fingerprint=samples.fingerprint,
        settings={
            **options,
            **arguments,
            "dropped_samples": max(len(samples) - given, 0),
            "repeated_samples": max(given - len(samples), 0),
            **converted.settings(),
            "documentation": _DOCUMENTATION,
        },
        pads=not request.training and pads(len(samples), request),
    )


def _shuffled(dataset: Any, request: LoaderRequest, options: dict[str, Any]) -> tuple[Any, int, int]:
    """Training: the batches, how many they are, and how many samples all ranks get together."""
    from litdata import StreamingDataLoader

    batch, workers = request.loader.batch_size, max(request.loader.num_workers, 1)
    batches = StreamingDataLoader(
        dataset,
        batch_size=batch,
        drop_last=dataset.drop_last,
        collate_fn=collate,
        worker_init_fn=leave_sigterm_to_the_run,
        **options,
    )
    len(batches)  # makes the shuffler
    _, intervals = dataset.shuffler.get_chunks_and_intervals_per_workers(
        dataset.distributed_env, workers, batch, 1
    )
    counts = [sum(end - start for _, start, end, _ in one) for one in intervals]
    own = counts[request.rank * workers :][:workers]
    return batches, sum(ceil(count / batch) for count in own), sum(counts)


def _in_order(dataset: Any, request: LoaderRequest, options: dict[str, Any]) -> tuple[Any, int, int]:
    """Validation, by index: the same."""
    places = _ByIndex(dataset)
    sampler = epoch_sampler(places, request)
    batches: DataLoader[Any] = DataLoader(
        places,
        batch_size=request.loader.batch_size,
        sampler=sampler,
        collate_fn=collate,
        worker_init_fn=leave_sigterm_to_the_run,
        **options,
    )
    return batches, len(batches), len(sampler) * request.replicas


class _ByIndex(Dataset[Any]):
    """A map-style dataset over one that knows more ways."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        count: int = self._dataset.sample_count
        return count

    def __getitem__(self, place: tuple[int, int]) -> DecodedSample:
        self._dataset.epoch, index = place
        sample: DecodedSample = self._dataset[index]
        return sample


@functools.cache
def _images_class() -> Any:
    """The dataset's class, made once the package is there to derive it from."""
    declare_operators()
    from litdata import StreamingDataset

    class Images(StreamingDataset):  # type: ignore[misc]  # untyped
        """Decodes; each iteration in a process is the next epoch."""

        def __init__(self, samples: Samples, make: ImageMaker, **options: Any) -> None:
            super().__init__(**options)
            self._samples = samples
            self._make = make
            self.epoch = -1

        @property
        def sample_count(self) -> int:
            return len(self._samples)

        def __iter__(self) -> Any:
            self.epoch += 1
            return super().__iter__()

        def __getitem__(self, place: Any) -> DecodedSample:
            start_s = time.perf_counter()
            item = super().__getitem__(place)
            fetch_s = time.perf_counter() - start_s
            key = self._samples.keys[item["index"]]
            return decoded(item["image"], item["label"], key, self.epoch, self._make, fetch_s)

        def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
            return _restored, (self.__dict__,)

    return Images


def _restored(state: dict[str, Any]) -> Any:
    """A dataset that was pickled for a worker which was not forked."""
    dataset = object.__new__(_images_class())
    dataset.__dict__.update(state)
    return dataset
