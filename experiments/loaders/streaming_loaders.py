"""MosaicML Streaming's MDS shards and LitData's chunks of unchanged local files.

They follow the documentation: a custom dataset whose ``__getitem__`` decodes, and a DataLoader. MDS takes the
batch size; LitData has its own DataLoader, and its validation requests samples by index, which keeps their
order.
"""

from __future__ import annotations

import functools
import time
from math import ceil
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from superdl.experiments.loaders.conversion import convert_once, need_package
from superdl.experiments.loaders.samples import ImageMaker, list_samples
from superdl.experiments.loaders.torch_loader import DecodingLoader, epoch_sampler
from superdl.experiments.loaders.workers import collate, data_loader, decoded
from superdl.experiments.models import declare_operators

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from superdl.experiments.loaders.interface import Loader, LoaderRequest
    from superdl.experiments.loaders.samples import Samples
    from superdl.experiments.loaders.workers import DecodedSample

__all__ = ["open_litdata", "open_mds", "write_chunks", "write_shards"]

_MDS, _LITDATA = "mds", "litdata"
_MDS_NOTE = "it holds numpy below 2.2, so best in an environment of its own"
_SHARD_BYTES = 2**26  # the default of both packages, the maximum here
_CHUNK_BYTES_MIN = 2**20
_CHUNKS = 48  # the number for sets too small for full chunks
_BATCH_DECODE = 1  # LitData's "auto" for rows that are images


def _items(samples: Samples, order: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the files in an order, with their labels and indices."""
    for index in order:
        yield {"image": samples.read(index), "label": samples.labels[index], "index": index}


@functools.cache
def _images_class(kind: str) -> Any:
    """Return the dataset's class, made on demand: its base needs the package."""
    declare_operators()
    base: Any
    if kind == _MDS:
        from streaming import StreamingDataset as MdsDataset

        base = MdsDataset
    else:
        from litdata import StreamingDataset as LitDataset

        base = LitDataset

    class Images(base):  # type: ignore[misc]  # untyped
        """Decodes samples; each iteration in a process is the next epoch."""

        def __init__(self, samples: Samples, make: ImageMaker, **options: Any) -> None:
            super().__init__(**options)
            self.samples = samples
            self._make = make
            self.decoded_epoch = -1

        def __iter__(self) -> Any:
            self.decoded_epoch += 1
            return super().__iter__()

        def __getitem__(self, place: Any) -> DecodedSample:
            start_s = time.perf_counter()
            item = super().__getitem__(place)
            fetch_s = time.perf_counter() - start_s
            key = self.samples.keys[item["index"]]
            return decoded(item["image"], int(item["label"]), key, self.decoded_epoch, self._make, fetch_s)

        def __reduce__(self) -> tuple[Any, tuple[str, dict[str, Any]]]:
            return _restored, (kind, self.__dict__)

    return Images


def _restored(kind: str, state: dict[str, Any]) -> Any:
    """Restore a pickled dataset in a worker that was not forked."""
    dataset = object.__new__(_images_class(kind))
    dataset.__dict__.update(state)
    return dataset


# ----------------------------------------------------------------------------------------------- MDS


def write_shards(items: Iterable[dict[str, Any]], columns: Mapping[str, str], directory: Path) -> None:
    """Write items with these columns as MDS shards into an empty directory."""
    from streaming import MDSWriter

    with MDSWriter(out=str(directory), columns=dict(columns), size_limit=_SHARD_BYTES) as sink:
        for item in items:
            sink.write(item)


def _write_mds(samples: Samples, order: Sequence[int], _size_bytes: int, directory: Path) -> None:
    write_shards(_items(samples, order), {"image": "bytes", "label": "int", "index": "int"}, directory)


def open_mds(request: LoaderRequest) -> Loader:
    """Open a split, converted into shards first if necessary.

    Raises:
        ConfigError: the package is not installed, or the shards cannot be written.
        SourceError: the source cannot be listed or read.
    """
    need_package("streaming", _MDS, _MDS_NOTE)
    images = _images_class(_MDS)
    samples = list_samples(request.source, _MDS)
    make = ImageMaker(request.recipe, samples)
    converted = convert_once(samples, _MDS, _write_mds, request)
    arguments: dict[str, Any] = {"shuffle": request.training, "batch_size": request.loader.batch_size}
    if request.training:
        arguments |= {"shuffle_algo": "py1e", "shuffle_seed": request.seed}
    else:
        arguments |= {"num_canonical_nodes": 1}  # keeps the order
    dataset = images(samples, make, local=str(converted.directory), **arguments)
    return DecodingLoader(
        data_loader(dataset, request, batch_size=request.loader.batch_size, collate_fn=collate),
        length=ceil(len(samples) / request.loader.batch_size),
        samples=samples,
        settings={
            **request.worker_options(),
            **arguments,
            "size_limit": _SHARD_BYTES,
            "conversion_s": round(converted.seconds, 3),
        },
    )


# ------------------------------------------------------------------------------------------- LitData


def write_chunks(items: Iterable[dict[str, Any]], chunk_bytes: int, directory: Path) -> None:
    """Write items as LitData chunks of about ``chunk_bytes`` into an empty directory."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(directory), chunk_bytes=chunk_bytes)
    # One rank writes all; otherwise the writer would wait for other ranks.
    writer._distributed_env = type(writer._distributed_env)(1, 0, 1)  # noqa: SLF001  # no public way
    for place, item in enumerate(items):
        writer[place] = item
    writer.done()
    writer.merge()


def _write_litdata(samples: Samples, order: Sequence[int], size_bytes: int, directory: Path) -> None:
    chunk_bytes = min(max(size_bytes // _CHUNKS, _CHUNK_BYTES_MIN), _SHARD_BYTES)
    write_chunks(_items(samples, order), chunk_bytes, directory)


def open_litdata(request: LoaderRequest) -> Loader:
    """Open a split, converted into chunks first if necessary.

    Raises:
        ConfigError: the package is not installed, or the chunks cannot be written.
        SourceError: the source cannot be listed or read.
    """
    need_package("litdata", _LITDATA)
    images = _images_class(_LITDATA)
    from litdata import StreamingDataLoader

    samples = list_samples(request.source, _LITDATA)
    make = ImageMaker(request.recipe, samples)
    converted = convert_once(samples, _LITDATA, _write_litdata, request)
    arguments: dict[str, Any] = {
        "shuffle": request.training,
        "seed": request.seed,
        "drop_last": False,
        "batch_decode": _BATCH_DECODE,
    }
    dataset = images(samples, make, input_dir=str(converted.directory), **arguments)
    batch = request.loader.batch_size
    if request.training:
        batches = data_loader(
            dataset, request, StreamingDataLoader, batch_size=batch, drop_last=False, collate_fn=collate
        )
        len(batches)  # makes the shuffler
        _, intervals = dataset.shuffler.get_chunks_and_intervals_per_workers(
            dataset.distributed_env, max(request.loader.num_workers, 1), batch, 1
        )
        counts = [sum(end - start for _, start, end, _ in worker_intervals) for worker_intervals in intervals]
        length = sum(ceil(count / batch) for count in counts)
    else:
        places = _ByIndex(dataset)
        sampler = epoch_sampler(places, request)
        batches = data_loader(places, request, batch_size=batch, sampler=sampler, collate_fn=collate)
        length = len(batches)
    settings = {**request.worker_options(), **arguments, "conversion_s": round(converted.seconds, 3)}
    return DecodingLoader(batches, length=length, samples=samples, settings=settings)


class _ByIndex(Dataset[Any]):
    """A map-style view of a dataset that also supports streaming."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset.samples)

    def __getitem__(self, place: tuple[int, int]) -> DecodedSample:
        self._dataset.decoded_epoch, index = place
        sample: DecodedSample = self._dataset[index]
        return sample
