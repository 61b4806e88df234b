"""WebDataset, MosaicML Streaming (MDS) and LitData over shards of a source's unchanged training files.

Each follows its documentation: workers decode the samples in each epoch.
"""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader

from superdl.experiments.data.whole_directory import written_once
from superdl.experiments.loaders.decoding import Decode, DecodingLoader
from superdl.experiments.loaders.samples import list_samples
from superdl.experiments.models import declare_operators
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from superdl.experiments.loaders.samples import LoaderRequest

_SHUFFLE_SEED = 0  # of the order of samples in shards, independent of a run's own shuffle
_VERSION = 2  # raised whenever samples are written differently
_TARS = 48  # at least, since many numbers of workers divide it
_TAR_SAMPLES = 10_000  # at most: about a gigabyte of photos
_SHARD_BYTES = 2**26  # of the others: the default of both packages
_SHARD_SHUFFLE, _SAMPLE_SHUFFLE = 100, 1000
_BATCH_DECODE = 1  # LitData's "auto" for rows that are images


def _shards(
    request: LoaderRequest, package: str, write: Callable[[Iterable[dict[str, Any]], int, Path], None]
) -> tuple[Decode, Path]:
    """Return how to decode the samples, and the directory of their shards, which are written once.

    ``write`` gets the raw samples in random order, their number, and an empty directory.

    Raises:
        ConfigError: the package is missing, or the directory cannot be written.
        SourceError: a file cannot be read, or the existing shards are damaged.
    """
    kind = request.loader.kind
    if find_spec(package) is None:
        raise ConfigError(
            f"loader.kind {kind} needs the package {package}, which is not installed: "
            f"pip install 'superdl[{kind}]' in an environment of its own, or set another loader.kind"
        )
    samples = list_samples(request.source, kind)
    manifest = {
        "format": kind,
        "version": _VERSION,
        "samples": len(samples),
        "fingerprint": samples.fingerprint.hex(),
    }
    # Samples with another size, time or ETag go to another directory.
    digest = hashlib.blake2b(json.dumps(manifest).encode(), digest_size=8).hexdigest()
    directory = request.converted.expanduser().absolute() / f"{kind}-{digest}"

    def fill(staging: Path) -> None:
        request.print_line(f"writing {len(samples):,} images once for loader.kind {kind} into {directory}")
        # All these packages recommend shuffled shards, since they then read sequentially.
        order = np.random.default_rng(_SHUFFLE_SEED).permutation(len(samples)).tolist()
        raw = ({"index": index, "image": samples.read(index)} for index in order)
        write(raw, len(samples), staging)

    written_once(directory, manifest, f"the shards for loader.kind {kind}", fill)
    return Decode(samples, request.recipe), directory


# ------------------------------------------------------------------------------------------ WebDataset


def open_webdataset(request: LoaderRequest) -> DecodingLoader:
    """Open the tars in shuffled order, split across the workers, with a shuffle buffer."""
    decode, directory = _shards(request, "webdataset", _write_tars)
    import webdataset

    batch, options = request.loader.batch_size, request.worker_options()
    tars = sorted(str(path) for path in directory.glob("*.tar"))
    workers = max(request.loader.num_workers, 1)
    sizes = [end - start for start, end in _bounds(len(decode.samples), len(tars))]
    batched = webdataset.filters.batched(batch, collation_fn=decode)
    dataset: Any = webdataset.DataPipeline(shuffled(tars, request.seed), batched)
    return DecodingLoader(
        DataLoader(dataset, batch_size=None, **options),
        length=sum(ceil(sum(sizes[worker::workers]) / batch) for worker in range(workers)),
        decode=decode,
        settings={
            **options,
            "shards": len(tars),
            "shardshuffle": _SHARD_SHUFFLE,
            "shuffle_buffer": _SAMPLE_SHUFFLE,
            "detshuffle": True,
            "workersplitter": "split_by_worker",
        },
    )


def _write_tars(raw: Iterable[dict[str, Any]], count: int, directory: Path) -> None:
    """Write tars with counts as equal as possible."""
    import webdataset

    samples, tars = iter(raw), min(max(_TARS, ceil(count / _TAR_SAMPLES)), count)
    for number, (start, end) in enumerate(_bounds(count, tars)):
        with webdataset.TarWriter(str(directory / f"{number:06d}.tar"), mtime=0.0) as sink:
            for sample in islice(samples, end - start):
                name, index = f"{sample['index']:09d}", str(sample["index"]).encode()
                sink.write({"__key__": name, "image": sample["image"], "index": index})


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


# ------------------------------------------------------------------------------------- MDS and LitData


def _write_mds(raw: Iterable[dict[str, Any]], _count: int, directory: Path) -> None:
    declare_operators()  # it imports torchvision, which may lack its own
    from streaming import MDSWriter

    columns = {"image": "bytes", "index": "int"}
    with MDSWriter(out=str(directory), columns=columns, size_limit=_SHARD_BYTES) as sink:
        for sample in raw:
            sink.write(sample)


def open_mds(request: LoaderRequest) -> DecodingLoader:
    """Open MDS shards, whose dataset also needs the batch size."""
    decode, directory = _shards(request, "streaming", _write_mds)
    declare_operators()
    from streaming import StreamingDataset

    batch, options = request.loader.batch_size, request.worker_options()
    arguments: dict[str, Any] = {"shuffle": True, "shuffle_algo": "py1e", "shuffle_seed": request.seed}
    dataset = StreamingDataset(local=str(directory), batch_size=batch, **arguments)
    return DecodingLoader(
        DataLoader(dataset, batch_size=batch, collate_fn=decode, **options),
        length=ceil(len(decode.samples) / batch),
        decode=decode,
        settings={**options, **arguments, "size_limit": _SHARD_BYTES},
    )


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


def _write_litdata(raw: Iterable[dict[str, Any]], _count: int, directory: Path) -> None:
    write_chunks(raw, _SHARD_BYTES, directory)


def open_litdata(request: LoaderRequest) -> DecodingLoader:
    """Open LitData chunks."""
    decode, directory = _shards(request, "litdata", _write_litdata)
    declare_operators()
    from litdata import StreamingDataLoader, StreamingDataset

    batch, options = request.loader.batch_size, request.worker_options()
    arguments = {"shuffle": True, "seed": request.seed, "drop_last": False, "batch_decode": _BATCH_DECODE}
    dataset = StreamingDataset(str(directory), **arguments)
    batches = StreamingDataLoader(dataset, batch_size=batch, drop_last=False, collate_fn=decode, **options)
    len(batches)  # makes the shuffler
    _, intervals = dataset.shuffler.get_chunks_and_intervals_per_workers(
        dataset.distributed_env, max(request.loader.num_workers, 1), batch, 1
    )
    counts = [sum(end - start for _, start, end, _ in worker_intervals) for worker_intervals in intervals]
    return DecodingLoader(
        batches,
        length=sum(ceil(count / batch) for count in counts),
        decode=decode,
        settings={**options, **arguments, "chunk_bytes": _SHARD_BYTES},
    )
