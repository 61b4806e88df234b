"""WebDataset, MosaicML Streaming (MDS) and LitData over shards of a source's unchanged files.

Each follows its documentation: workers decode the samples in each epoch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from importlib.util import find_spec
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, Dataset, get_worker_info

from superdl.experiments.data.whole_directory import check_room, written_once
from superdl.experiments.loaders.decoding import DecodingLoader, EpochSampler, collate, decoded
from superdl.experiments.loaders.samples import ImageMaker, list_samples
from superdl.experiments.models import declare_operators
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from superdl.experiments.loaders.decoding import DecodedSample
    from superdl.experiments.loaders.samples import LoaderRequest, Samples

    # Writes samples, by their indices in order, into an empty directory; the integer is their bytes.
    Write = Callable[[Samples, Sequence[int], int, Path], None]

_SHUFFLE_SEED = 0  # of the order of samples in shards, independent of a run's own shuffle
_VERSION = 1  # raised whenever a loader's samples are written differently
_SHARDS = 48  # for sets too small for full shards; divisible by many numbers of workers
_TAR_BYTES = 2**29  # of a tar, at most; tars in the documentation have some hundred megabytes
_SHARD_BYTES = 2**26  # of the others, at most: the default of both packages
_CHUNK_BYTES_MIN = 2**20
_SHARD_SHUFFLE, _SAMPLE_SHUFFLE = 100, 1000
_BATCH_DECODE = 1  # LitData's "auto" for rows that are images
_MEGABYTE = 1e6


class Converted(NamedTuple):
    """A split's samples, how to decode them, and the directory of their shards, made in ``seconds``."""

    samples: Samples
    make: ImageMaker
    directory: Path
    seconds: float

    def loader(self, batches: Any, length: int, settings: Mapping[str, object]) -> DecodingLoader:
        """Return the loader that yields ``batches``."""
        # Users of these loaders pay for the conversion, so it is reported.
        settings = {**settings, "conversion_s": round(self.seconds, 3)}
        return DecodingLoader(batches, length=length, samples=self.samples, settings=settings)


def _convert(request: LoaderRequest, package: str, write: Write, note: str = "") -> Converted:
    kind = request.loader.kind
    if find_spec(package) is None:
        raise ConfigError(
            f"loader.kind {kind} needs the package {package}, which is not installed: "
            f"pip install 'superdl[{kind}]'{note}, or set another loader.kind"
        )
    samples = list_samples(request.source, kind)
    make = ImageMaker(request.recipe, samples)
    return Converted(samples, make, *convert_once(samples, kind, write, request))


def convert_once(samples: Samples, kind: str, write: Write, request: LoaderRequest) -> tuple[Path, float]:
    """Return the directory of images in the format of loader ``kind``, and the seconds to write it.

    The images are written only if necessary.

    Raises:
        ConfigError: the directory cannot be written, or there is no room for it.
        SourceError: a file cannot be read, or the existing conversion is damaged.
    """
    manifest = {
        "format": kind,
        "version": _VERSION,
        "order": "shuffled" if request.training else "keys",
        "samples": len(samples),
        "fingerprint": samples.fingerprint.hex(),
    }
    # Samples with another size, time or ETag go to another directory.
    digest = hashlib.blake2b(json.dumps(manifest).encode(), digest_size=8).hexdigest()
    directory = request.converted.expanduser().absolute() / f"{kind}-{digest}"
    what = f"the conversion for loader.kind {kind}"

    def fill(staging: Path) -> None:
        size_bytes = samples.size_bytes()
        check_room(directory, size_bytes, what)
        request.print_line(
            f"writing {len(samples):,} images ({size_bytes / _MEGABYTE:,.0f} MB) once for loader.kind "
            f"{kind} into {directory}"
        )
        order = np.arange(len(samples))
        # All these packages recommend it, since they then read sequentially. Validation
        # keeps key order.
        if request.training:
            order = np.random.default_rng(_SHUFFLE_SEED).permutation(order)
        start_s = time.perf_counter()
        (staging / "images").mkdir()
        write(samples, order.tolist(), size_bytes, staging / "images")
        cost = {"seconds": time.perf_counter() - start_s}
        (staging / "conversion.json").write_text(json.dumps(cost) + "\n", encoding="utf-8")

    written_once(directory, manifest, what, fill)
    cost = json.loads((directory / "conversion.json").read_text(encoding="utf-8"))
    return directory / "images", cost["seconds"]


# ------------------------------------------------------------------------------------------ WebDataset


def open_webdataset(request: LoaderRequest) -> DecodingLoader:
    """Open a split of tars. For training, shuffle them over workers, and use a shuffle buffer."""
    converted = _convert(request, "webdataset", _write_tars)
    import webdataset

    batch, options, count = request.loader.batch_size, request.worker_options(), len(converted.samples)
    tars = sorted(str(path) for path in converted.directory.glob("*.tar"))
    if request.training:
        workers = max(request.loader.num_workers, 1)
        sizes = [end - start for start, end in _bounds(count, len(tars))]
        length = sum(ceil(sum(sizes[worker::workers]) / batch) for worker in range(workers))
        stages = [shuffled(tars, request.seed)]
        settings: dict[str, object] = {
            "shardshuffle": _SHARD_SHUFFLE,
            "shuffle_buffer": _SAMPLE_SHUFFLE,
            "detshuffle": True,
            "workersplitter": "split_by_worker",
        }
    else:  # each worker reads all and decodes its own batches, which keeps the order
        length = ceil(count / batch)
        read = webdataset.WebDataset(tars, shardshuffle=False, workersplitter=None, empty_check=False)
        stages = [read, functools.partial(_batches_of_worker, batch)]
        settings = {"shardshuffle": False, "split": "batches by worker"}
    batched = webdataset.filters.batched(batch, collation_fn=collate)
    dataset: Any = webdataset.DataPipeline(*stages, _Decode(converted), batched)
    batches = DataLoader(dataset, batch_size=None, **options)
    return converted.loader(batches, length, {**options, "shards": len(tars), **settings})


def _write_tars(samples: Samples, order: Sequence[int], size_bytes: int, directory: Path) -> None:
    """Write a multiple of 48 tars, or one per sample if fewer, with counts as equal as possible."""
    import webdataset

    shards = min(_SHARDS * max(ceil(size_bytes / (_SHARDS * _TAR_BYTES)), 1), len(samples))
    for shard, (start, end) in enumerate(_bounds(len(samples), shards)):
        with webdataset.TarWriter(str(directory / f"{shard:06d}.tar"), mtime=0.0) as sink:
            for index in order[start:end]:
                sample = {"__key__": f"{index:09d}", "img": samples.read(index), "cls": samples.labels[index]}
                sink.write(sample)


def _bounds(samples: int, shards: int) -> list[tuple[int, int]]:
    return [(samples * shard // shards, samples * (shard + 1) // shards) for shard in range(shards)]


def shuffled(tars: Sequence[str], seed: int) -> Any:
    """Read training samples from shuffled tars, split over workers, through a shuffle buffer."""
    import webdataset

    # The other shuffles are seeded by the clock, or repeat one order in every epoch.
    read = webdataset.WebDataset(
        tars, shardshuffle=_SHARD_SHUFFLE, detshuffle=True, seed=seed, empty_check=False
    )
    return read.compose(webdataset.detshuffle(_SAMPLE_SHUFFLE, seed=seed))


def _batches_of_worker(batch_size: int, source: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return (sample for index, sample in enumerate(source) if index // batch_size % workers == worker)


class _Decode:
    """The decoding stage. Each run is the next epoch."""

    def __init__(self, converted: Converted) -> None:
        self._keys, self._make = converted.samples.keys, converted.make
        self._epoch = -1

    def __call__(self, source: Iterator[dict[str, Any]]) -> Iterator[DecodedSample]:
        self._epoch += 1
        while True:
            # Earlier stages fetch when asked for the next sample.
            start_s = time.perf_counter()
            raw = next(source, None)
            if raw is None:
                return
            fetch_s = time.perf_counter() - start_s
            key = self._keys[int(raw["__key__"])]
            yield decoded(raw["img"], int(raw["cls"]), key, self._epoch, self._make, fetch_s)


# ------------------------------------------------------------------------------------- MDS and LitData


def _items(samples: Samples, order: Sequence[int]) -> Iterator[dict[str, Any]]:
    for index in order:
        yield {"image": samples.read(index), "label": samples.labels[index], "index": index}


@functools.cache
def _images_class(kind: str) -> Any:
    """Return the dataset class, which is made on demand because its base class needs the package."""
    declare_operators()
    base: Any
    if kind == "mds":
        from streaming import StreamingDataset as MdsDataset

        base = MdsDataset
    else:
        from litdata import StreamingDataset as LitDataset

        base = LitDataset

    class Images(base):  # type: ignore[misc]  # untyped
        """Decode samples. Each iteration in a process is the next epoch."""

        def __init__(self, converted: Converted, **options: Any) -> None:
            super().__init__(**options)
            self.sample_keys, self._make = converted.samples.keys, converted.make
            self.decoded_epoch = -1

        def __iter__(self) -> Any:
            self.decoded_epoch += 1
            return super().__iter__()

        def __getitem__(self, place: Any) -> DecodedSample:
            start_s = time.perf_counter()
            item = super().__getitem__(place)
            fetch_s = time.perf_counter() - start_s
            key = self.sample_keys[item["index"]]
            return decoded(item["image"], int(item["label"]), key, self.decoded_epoch, self._make, fetch_s)

        def __reduce__(self) -> tuple[Any, tuple[str, dict[str, Any]]]:
            # Pickle cannot look up a class made in a function by its name.
            return _restored, (kind, self.__dict__)

    return Images


def _restored(kind: str, state: dict[str, Any]) -> Any:
    """Restore a pickled dataset in a worker that was not forked."""
    dataset = object.__new__(_images_class(kind))
    dataset.__dict__.update(state)
    return dataset


def write_shards(items: Iterable[dict[str, Any]], columns: Mapping[str, str], directory: Path) -> None:
    """Write items with these columns as MDS shards into an empty directory."""
    declare_operators()  # it imports torchvision, which may lack its own
    from streaming import MDSWriter

    with MDSWriter(out=str(directory), columns=dict(columns), size_limit=_SHARD_BYTES) as sink:
        for item in items:
            sink.write(item)


def _write_mds(samples: Samples, order: Sequence[int], _size_bytes: int, directory: Path) -> None:
    write_shards(_items(samples, order), {"image": "bytes", "label": "int", "index": "int"}, directory)


def open_mds(request: LoaderRequest) -> DecodingLoader:
    """Open a split of MDS shards, whose dataset also needs the batch size."""
    note = " (it needs numpy below 2.2, so a separate environment is best)"
    converted = _convert(request, "streaming", _write_mds, note)
    batch, options = request.loader.batch_size, request.worker_options()
    arguments: dict[str, Any] = {"shuffle": request.training, "batch_size": batch}
    if request.training:
        arguments |= {"shuffle_algo": "py1e", "shuffle_seed": request.seed}
    else:
        arguments |= {"num_canonical_nodes": 1}  # keeps the order
    dataset = _images_class("mds")(converted, local=str(converted.directory), **arguments)
    batches = DataLoader(dataset, batch_size=batch, collate_fn=collate, **options)
    settings = {**options, **arguments, "size_limit": _SHARD_BYTES}
    return converted.loader(batches, ceil(len(converted.samples) / batch), settings)


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
    chunk_bytes = min(max(size_bytes // _SHARDS, _CHUNK_BYTES_MIN), _SHARD_BYTES)
    write_chunks(_items(samples, order), chunk_bytes, directory)


def open_litdata(request: LoaderRequest) -> DecodingLoader:
    """Open a split of LitData chunks."""
    converted = _convert(request, "litdata", _write_litdata)
    images = _images_class("litdata")
    from litdata import StreamingDataLoader

    batch, options = request.loader.batch_size, request.worker_options()
    arguments = {"shuffle": request.training, "seed": request.seed, "drop_last": False}
    arguments |= {"batch_decode": _BATCH_DECODE}
    dataset = images(converted, input_dir=str(converted.directory), **arguments)
    batches: Any
    if request.training:
        batches = StreamingDataLoader(
            dataset, batch_size=batch, drop_last=False, collate_fn=collate, **options
        )
        len(batches)  # makes the shuffler
        _, intervals = dataset.shuffler.get_chunks_and_intervals_per_workers(
            dataset.distributed_env, max(request.loader.num_workers, 1), batch, 1
        )
        counts = [sum(end - start for _, start, end, _ in worker_intervals) for worker_intervals in intervals]
        length = sum(ceil(count / batch) for count in counts)
    else:
        # Validation requests samples by index, which keeps their order.
        places = _ByIndex(dataset)
        sampler = EpochSampler(places, request)
        batches = DataLoader(places, batch_size=batch, sampler=sampler, collate_fn=collate, **options)
        length = len(batches)
    return converted.loader(batches, length, {**options, **arguments})


class _ByIndex(Dataset[Any]):
    """A map-style view of a dataset that also supports streaming."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset.sample_keys)

    def __getitem__(self, place: tuple[int, int]) -> DecodedSample:
        self._dataset.decoded_epoch, index = place
        sample: DecodedSample = self._dataset[index]
        return sample
