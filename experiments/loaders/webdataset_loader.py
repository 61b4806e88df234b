"""WebDataset: tar shards that hold the files unchanged, read in sequence and shuffled in a buffer.

As its documentation writes it: shards in random order, split over ranks and workers, a buffer of samples to
shuffle, decoding and batches in the workers. Its shuffles are the deterministic ones (``detshuffle``), since
the others are seeded by the clock or repeat one order in every epoch.
"""

from __future__ import annotations

import time
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, get_worker_info

from superdl.experiments.loaders.conversion import Format, convert_once, need_package
from superdl.experiments.loaders.decoding import DecodingLoader
from superdl.experiments.loaders.samples import ImageMaker, list_samples
from superdl.experiments.loaders.torch_loader import pads
from superdl.experiments.loaders.workers import collate, decoded, leave_sigterm_to_the_run
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from superdl.experiments.loaders.interface import Loader, LoaderRequest
    from superdl.experiments.loaders.samples import Samples
    from superdl.experiments.loaders.workers import DecodedSample

__all__ = ["WEBDATASET", "open_webdataset"]

_KIND = "webdataset"
_DOCUMENTATION = "https://webdataset.github.io/webdataset/"
_SHARDS = 48  # ranks and workers share them out: a number that many numbers divide
_SHARD_BYTES = 2**29  # at most; the documentation's shards have some hundred megabytes
_SHARD_SHUFFLE = 100
_SAMPLE_SHUFFLE = 1000
_TAR_BYTES = 2048  # two members, each with a header and a rest of a block

_SHUFFLED: Mapping[str, object] = {
    "shardshuffle": _SHARD_SHUFFLE,
    "shuffle_buffer": _SAMPLE_SHUFFLE,
    "detshuffle": True,
    "nodesplitter": "split_by_node",
    "workersplitter": "split_by_worker",
}
_IN_ORDER: Mapping[str, object] = {"shardshuffle": False, "split": "samples by rank, batches by worker"}

_Raw = dict[str, Any]


def shard_count(samples: int, size_bytes: int) -> int:
    """How many shards so many samples are written into: a multiple of 48, unless there are fewer samples."""
    return min(_SHARDS * max(ceil(size_bytes / (_SHARDS * _SHARD_BYTES)), 1), samples)


def _write(samples: Samples, order: Sequence[int], size_bytes: int, directory: Path) -> None:
    """Write shards of equal counts, as equal as can be."""
    import webdataset

    shards = shard_count(len(samples), size_bytes)
    for shard, (start, end) in enumerate(_bounds(len(samples), shards)):
        with webdataset.TarWriter(str(directory / f"{shard:06d}.tar"), mtime=0.0) as sink:
            for index in order[start:end]:
                sink.write(
                    {"__key__": f"{index:09d}", "img": samples.read(index), "cls": samples.labels[index]}
                )


def _bounds(samples: int, shards: int) -> list[tuple[int, int]]:
    """Where each shard begins and ends in the order."""
    return [(samples * shard // shards, samples * (shard + 1) // shards) for shard in range(shards)]


WEBDATASET = Format(_KIND, version=1, overhead_bytes=_TAR_BYTES, write=_write)


def open_webdataset(request: LoaderRequest) -> Loader:
    """Open a split, converted into shards first unless it has been.

    Raises:
        ConfigError: the package is not installed, the shards cannot be written, or are fewer than the workers
            of all ranks.
        SourceError: the source cannot be listed or read.

    """
    need_package("webdataset", _KIND)
    import webdataset

    samples = list_samples(request.source, _KIND)
    make = ImageMaker(request.recipe, samples.bucket)
    converted = convert_once(samples, WEBDATASET, request)
    shards = sorted(str(path) for path in converted.directory.glob("*.tar"))
    arrange = _shuffled if request.training else _in_order
    stages, length, share = arrange(shards, request, len(samples))
    options = request.worker_options()
    batched = webdataset.filters.batched(request.loader.batch_size, collation_fn=collate)
    dataset = webdataset.DataPipeline(*stages, _Decode(samples, make), batched)
    return DecodingLoader(
        DataLoader(dataset, batch_size=None, worker_init_fn=leave_sigterm_to_the_run, **options),
        length=length,
        samples=samples,
        settings={
            **options,
            "shards": len(shards),
            **(_SHUFFLED if request.training else _IN_ORDER),
            "repeated_samples": share * request.replicas - len(samples),
            **converted.settings(),
            "documentation": _DOCUMENTATION,
        },
        pads=not request.training and pads(len(samples), request),
    )


def _shuffled(shards: list[str], request: LoaderRequest, samples: int) -> tuple[list[Any], int, int]:
    """Training: stages, batches and samples of a rank. Ranks and workers have shards of their own, and those
    that have less read on from the start.
    """
    import webdataset

    workers = max(request.loader.num_workers, 1)
    sizes = [end - start for start, end in _bounds(samples, len(shards))]
    counts = [
        [sum(sizes[rank :: request.replicas][worker::workers]) for worker in range(workers)]
        for rank in range(request.replicas)
    ]
    longest = [max(column) for column in zip(*counts, strict=True)]
    if request.replicas > 1 and any(
        own == 0 < most for row in counts for own, most in zip(row, longest, strict=True)
    ):
        raise ConfigError(
            f"loader.kind webdataset has {len(shards)} shards for {request.replicas} ranks of {workers} "
            "workers, and each needs one: lower loader.num_workers"
        )
    read = (
        webdataset.WebDataset(
            shards,
            shardshuffle=_SHARD_SHUFFLE,
            detshuffle=True,
            seed=request.seed,
            nodesplitter=_OfRank(request.rank, request.replicas),
            empty_check=False,
        )
        .compose(webdataset.detshuffle(_SAMPLE_SHUFFLE, seed=request.seed))
        .repeat()
    )
    batch = request.loader.batch_size
    return [read, _OfLength(longest)], sum(ceil(count / batch) for count in longest), sum(longest)


def _in_order(shards: list[str], request: LoaderRequest, samples: int) -> tuple[list[Any], int, int]:
    """Validation: the same. Each worker reads all and decodes its own batches, so that order is kept."""
    import webdataset

    read = webdataset.WebDataset(
        shards, shardshuffle=False, nodesplitter=None, workersplitter=None, empty_check=False
    )
    batch = request.loader.batch_size
    share = ceil(samples / request.replicas)
    return [read, _RankThenWorker(request.rank, request.replicas, batch)], ceil(share / batch), share


class _OfRank:
    """What `webdataset.split_by_node` does, by the rank in the loader's request."""

    def __init__(self, rank: int, replicas: int) -> None:
        self._rank = rank
        self._replicas = replicas

    def __call__(self, source: Iterator[_Raw]) -> Iterator[_Raw]:
        return islice(source, self._rank, None, self._replicas)


class _OfLength:
    """The first samples of a source that begins again when it ends, as many as this worker's epoch has."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def __call__(self, source: Iterator[_Raw]) -> Iterator[_Raw]:
        return islice(source, self._lengths[_worker()[0]])


class _RankThenWorker:
    """Every so-manyth sample for a rank, the first again where the ranks would differ; of these, batches."""

    def __init__(self, rank: int, replicas: int, batch_size: int) -> None:
        self._rank = rank
        self._replicas = replicas
        self._batch_size = batch_size

    def __call__(self, source: Iterator[_Raw]) -> Iterator[_Raw]:
        worker, workers = _worker()
        for place, sample in enumerate(self._of_rank(source)):
            if place // self._batch_size % workers == worker:
                yield sample

    def _of_rank(self, source: Iterator[_Raw]) -> Iterator[_Raw]:
        first: list[_Raw] = []
        count = 0
        for sample in source:
            if len(first) < self._replicas:
                first.append(sample)
            if count % self._replicas == self._rank:
                yield sample
            count += 1
        padding = (first[place % len(first)] for place in range(-count % self._replicas))
        for place, sample in enumerate(padding, start=count):
            if place % self._replicas == self._rank:
                yield sample


def _worker() -> tuple[int, int]:
    """This worker's number, and how many there are."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class _Decode:
    """The stage that decodes; each run of it is the next epoch. Fetching is the stages before it."""

    def __init__(self, samples: Samples, make: ImageMaker) -> None:
        self._samples = samples
        self._make = make
        self._epoch = -1

    def __call__(self, source: Iterator[_Raw]) -> Iterator[DecodedSample]:
        self._epoch += 1
        while True:
            start_s = time.perf_counter()
            raw = next(source, None)
            if raw is None:
                return
            fetch_s = time.perf_counter() - start_s
            key = self._samples.keys[int(raw["__key__"])]
            yield decoded(raw["img"], int(raw["cls"]), key, self._epoch, self._make, fetch_s)
