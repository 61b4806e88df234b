"""WebDataset: tar shards of unchanged files, read in sequence, shuffled in a buffer.

It follows the documentation: shards in random order, split over workers, a buffer of samples to shuffle,
decoding and batches in the workers. Its shuffles are the deterministic ones (``detshuffle``): the others are
seeded by the clock or repeat one order in every epoch.
"""

from __future__ import annotations

import time
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from superdl.experiments.loaders.conversion import convert_once, need_package
from superdl.experiments.loaders.samples import ImageMaker, list_samples
from superdl.experiments.loaders.torch_loader import DecodingLoader
from superdl.experiments.loaders.workers import collate, data_loader, decoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from superdl.experiments.loaders.interface import Loader, LoaderRequest
    from superdl.experiments.loaders.samples import Samples
    from superdl.experiments.loaders.workers import DecodedSample

__all__ = ["open_webdataset", "shuffled"]

_KIND = "webdataset"
_SHARDS = 48  # divisible by many numbers of workers
_SHARD_BYTES = 2**29  # at most; shards in the documentation have some hundred megabytes
_SHARD_SHUFFLE = 100
_SAMPLE_SHUFFLE = 1000

_SHUFFLED: Mapping[str, object] = {
    "shardshuffle": _SHARD_SHUFFLE,
    "shuffle_buffer": _SAMPLE_SHUFFLE,
    "detshuffle": True,
    "workersplitter": "split_by_worker",
}
_IN_ORDER: Mapping[str, object] = {"shardshuffle": False, "split": "batches by worker"}

_Raw = dict[str, Any]


def shard_count(samples: int, size_bytes: int) -> int:
    """Return the number of shards: a multiple of 48, but at most one per sample."""
    return min(_SHARDS * max(ceil(size_bytes / (_SHARDS * _SHARD_BYTES)), 1), samples)


def _write(samples: Samples, order: Sequence[int], size_bytes: int, directory: Path) -> None:
    """Write shards with counts as equal as possible."""
    import webdataset

    shards = shard_count(len(samples), size_bytes)
    for shard, (start, end) in enumerate(_bounds(len(samples), shards)):
        with webdataset.TarWriter(str(directory / f"{shard:06d}.tar"), mtime=0.0) as sink:
            for index in order[start:end]:
                sink.write(
                    {"__key__": f"{index:09d}", "img": samples.read(index), "cls": samples.labels[index]}
                )


def _bounds(samples: int, shards: int) -> list[tuple[int, int]]:
    """Return the start and end of each shard in the order."""
    return [(samples * shard // shards, samples * (shard + 1) // shards) for shard in range(shards)]


def open_webdataset(request: LoaderRequest) -> Loader:
    """Open a split, converted into shards first if necessary.

    Raises:
        ConfigError: the package is not installed, or the shards cannot be written.
        SourceError: the source cannot be listed or read.
    """
    need_package("webdataset", _KIND)
    import webdataset

    samples = list_samples(request.source, _KIND)
    make = ImageMaker(request.recipe, samples)
    converted = convert_once(samples, _KIND, _write, request)
    shards = sorted(str(path) for path in converted.directory.glob("*.tar"))
    batch = request.loader.batch_size
    if request.training:
        workers = max(request.loader.num_workers, 1)
        sizes = [end - start for start, end in _bounds(len(samples), len(shards))]
        length = sum(ceil(sum(sizes[worker::workers]) / batch) for worker in range(workers))
        stages = [shuffled(shards, request.seed)]
    else:  # each worker reads all and decodes its own batches, which keeps the order
        length = ceil(len(samples) / batch)
        read = webdataset.WebDataset(shards, shardshuffle=False, workersplitter=None, empty_check=False)
        stages = [read, partial(_batches_of_worker, batch)]
    batched = webdataset.filters.batched(batch, collation_fn=collate)
    dataset = webdataset.DataPipeline(*stages, _Decode(samples, make), batched)
    return DecodingLoader(
        data_loader(dataset, request, batch_size=None),
        length=length,
        samples=samples,
        settings={
            **request.worker_options(),
            "shards": len(shards),
            **(_SHUFFLED if request.training else _IN_ORDER),
            "conversion_s": round(converted.seconds, 3),
        },
    )


def shuffled(shards: Sequence[str], seed: int) -> Any:
    """Read training samples: shuffled shards, split over workers, a shuffle buffer."""
    import webdataset

    read = webdataset.WebDataset(
        shards, shardshuffle=_SHARD_SHUFFLE, detshuffle=True, seed=seed, empty_check=False
    )
    return read.compose(webdataset.detshuffle(_SAMPLE_SHUFFLE, seed=seed))


def _batches_of_worker(batch_size: int, source: Iterator[_Raw]) -> Iterator[_Raw]:
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return (sample for index, sample in enumerate(source) if index // batch_size % workers == worker)


class _Decode:
    """The decoding stage; each run is the next epoch. Fetching happens in earlier stages."""

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
