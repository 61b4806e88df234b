"""MosaicML Streaming's MDS shards and LitData's chunks, which hold the files unchanged, read from local disk.

As their documentation writes it: a dataset of one's own whose ``__getitem__`` decodes, and a DataLoader. MDS
takes the batch size, so that it deals out whole batches. It finds the rank by itself, in ``RANK``,
``WORLD_SIZE`` and ``LOCAL_WORLD_SIZE``, and makes ranks equal by repeating samples.

LitData has a DataLoader of its own. For several ranks it drops the last samples of an epoch, its default,
since it would else give them all to one rank. Its validation asks for samples by index, which keeps their
order.
"""

from __future__ import annotations

import functools
import os
import time
from math import ceil
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset

from superdl.experiments.loaders.conversion import Format, convert_once, need_package
from superdl.experiments.loaders.decoding import DecodingLoader
from superdl.experiments.loaders.samples import ImageMaker, list_samples
from superdl.experiments.loaders.torch_loader import epoch_sampler, pads
from superdl.experiments.loaders.workers import collate, decoded, leave_sigterm_to_the_run
from superdl.experiments.models import declare_operators
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from superdl.experiments.loaders.interface import Loader, LoaderRequest
    from superdl.experiments.loaders.samples import Samples
    from superdl.experiments.loaders.workers import DecodedSample

__all__ = ["open_litdata", "open_mds", "write_chunks", "write_shards"]

_MDS, _LITDATA = "mds", "litdata"
_MDS_DOCUMENTATION = "https://docs.mosaicml.com/projects/streaming/en/stable/"
_MDS_NOTE = "it holds numpy below 2.2, so best in an environment of its own"
_LITDATA_DOCUMENTATION = "https://github.com/Lightning-AI/litData"
_SHARD_BYTES = 2**26  # the default of both packages, the most here
_CHUNK_BYTES_MIN = 2**20
_CHUNKS = 48  # of a set that is too small for so many of them
_SAMPLE_BYTES = 32
_BATCH_DECODE = 1  # what LitData's "auto" takes for rows that are images


def _items(samples: Samples, order: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The files in an order, with their labels and places in key order."""
    for index in order:
        yield {"image": samples.read(index), "label": samples.labels[index], "index": index}


@functools.cache
def _images_class(kind: str) -> Any:
    """The dataset's class, made once the package is there to derive it from."""
    declare_operators()
    base: Any
    if kind == _MDS:
        from streaming import StreamingDataset as MdsDataset

        base = MdsDataset
    else:
        from litdata import StreamingDataset as LitDataset

        base = LitDataset

    class Images(base):  # type: ignore[misc]  # untyped
        """Decodes; each iteration in a process is the next epoch."""

        def __init__(self, samples: Samples, make: ImageMaker, **options: Any) -> None:
            super().__init__(**options)
            self._samples = samples
            self._make = make
            self.decoded_epoch = -1

        @property
        def sample_count(self) -> int:
            return len(self._samples)

        def __iter__(self) -> Any:
            self.decoded_epoch += 1
            return super().__iter__()

        def __getitem__(self, place: Any) -> DecodedSample:
            start_s = time.perf_counter()
            item = super().__getitem__(place)
            fetch_s = time.perf_counter() - start_s
            key = self._samples.keys[item["index"]]
            return decoded(item["image"], int(item["label"]), key, self.decoded_epoch, self._make, fetch_s)

        def __reduce__(self) -> tuple[Any, tuple[str, dict[str, Any]]]:
            return _restored, (kind, self.__dict__)

    return Images


def _restored(kind: str, state: dict[str, Any]) -> Any:
    """A dataset that was pickled for a worker which was not forked."""
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
    """Open a split, converted into shards first unless it has been.

    Raises:
        ConfigError: the package is not installed, the shards cannot be written, or the environment names
            another rank than the run has.
        SourceError: the source cannot be listed or read.

    """
    need_package("streaming", _MDS, _MDS_NOTE)
    images = _images_class(_MDS)
    nodes, ranks_of_node = _nodes(request)
    samples = list_samples(request.source, _MDS)
    make = ImageMaker(request.recipe, samples.bucket)
    converted = convert_once(samples, Format(_MDS, 1, _SAMPLE_BYTES, _write_mds), request)
    shuffle: dict[str, Any] = {"shuffle": request.training}
    if request.training:
        shuffle |= {"shuffle_algo": "py1e", "shuffle_seed": request.seed}
    else:
        shuffle |= {"num_canonical_nodes": nodes}  # what keeps the order
    batch = request.loader.batch_size
    dataset = images(samples, make, local=str(converted.directory), batch_size=batch, **shuffle)
    options = request.worker_options()
    share = ceil(ceil(len(samples) / nodes) / ranks_of_node)
    return DecodingLoader(
        DataLoader(
            dataset,
            batch_size=batch,
            collate_fn=collate,
            worker_init_fn=leave_sigterm_to_the_run,
            **options,
        ),
        length=ceil(share / batch),
        samples=samples,
        settings={
            **options,
            **shuffle,
            "size_limit": _SHARD_BYTES,
            "repeated_samples": share * request.replicas - len(samples),
            **converted.settings(),
            "documentation": _MDS_DOCUMENTATION,
        },
        pads=nodes == 1 and pads(len(samples), request),  # over several nodes it repeats other samples, too
    )


def _nodes(request: LoaderRequest) -> tuple[int, int]:
    """Nodes and ranks of each, as the package finds them; see that it finds the run's rank."""
    found = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if found != (request.rank, request.replicas):
        raise ConfigError(
            f"loader.kind mds takes its rank from RANK and WORLD_SIZE, which say {found[0]} of {found[1]}, "
            f"and this process is rank {request.rank} of {request.replicas}: start the run with torchrun"
        )
    ranks_of_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(request.replicas // ranks_of_node, 1), ranks_of_node


# ------------------------------------------------------------------------------------------- LitData


def write_chunks(items: Iterable[dict[str, Any]], chunk_bytes: int, directory: Path) -> None:
    """Write items as LitData chunks of about that size into an empty directory."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(directory), chunk_bytes=chunk_bytes)
    # One rank writes all; else it would wait for what the others write.
    writer._distributed_env = type(writer._distributed_env)(1, 0, 1)  # noqa: SLF001  # it has no other way
    for place, item in enumerate(items):
        writer[place] = item
    writer.done()
    writer.merge()


def _write_litdata(samples: Samples, order: Sequence[int], size_bytes: int, directory: Path) -> None:
    chunk_bytes = min(max(size_bytes // _CHUNKS, _CHUNK_BYTES_MIN), _SHARD_BYTES)
    write_chunks(_items(samples, order), chunk_bytes, directory)


def open_litdata(request: LoaderRequest) -> Loader:
    """Open a split, converted into chunks first unless it has been.

    Raises:
        ConfigError: the package is not installed, or the chunks cannot be written.
        SourceError: the source cannot be listed or read.

    """
    need_package("litdata", _LITDATA)
    images = _images_class(_LITDATA)
    samples = list_samples(request.source, _LITDATA)
    make = ImageMaker(request.recipe, samples.bucket)
    converted = convert_once(samples, Format(_LITDATA, 1, _SAMPLE_BYTES, _write_litdata), request)
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
    options = request.worker_options()
    open_split = _shuffled if request.training else _in_order
    batches, length, total = open_split(dataset, request, options)
    return DecodingLoader(
        batches,
        length=length,
        samples=samples,
        settings={
            **options,
            **arguments,
            "dropped_samples": max(len(samples) - total, 0),
            "repeated_samples": max(total - len(samples), 0),
            **converted.settings(),
            "documentation": _LITDATA_DOCUMENTATION,
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
        self._dataset.decoded_epoch, index = place
        sample: DecodedSample = self._dataset[index]
        return sample
