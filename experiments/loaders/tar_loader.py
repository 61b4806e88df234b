"""WebDataset, set up as in its documentation, for tars of a source's unmodified training files."""

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
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from superdl.experiments.loaders.samples import LoaderRequest, Samples

_PACKING_SEED = 0  # independent of the seed of a run
_VERSION = 2  # incremented whenever tars are written differently
_MIN_TARS = 48  # divisible by many worker counts
_MAX_TAR_SAMPLES = 10_000  # about a gigabyte of photos
_SHARD_SHUFFLE, _SAMPLE_SHUFFLE = 100, 1000


def open_webdataset(request: LoaderRequest) -> DecodingLoader:
    """Open a split's tars with WebDataset: shuffled, split across workers, and with a shuffle buffer.

    The tars are written once, to a subdirectory of ``request.converted``.

    Raises:
        ConfigError: webdataset is not installed, or the tars cannot be written.
        SourceError: a file cannot be read, or the existing tars are damaged.
    """
    if find_spec("webdataset") is None:
        raise ConfigError(
            "loader.kind webdataset needs the package webdataset, which is not installed. Run pip install "
            "'superdl[webdataset]', or set another loader.kind."
        )
    import webdataset

    samples = list_samples(request.source, request.loader.kind)
    directory = _write_once(request, samples)
    decode = Decode(samples, request.recipe)
    batch, options = request.loader.batch_size, request.worker_options()
    tars = sorted(str(path) for path in directory.glob("*.tar"))
    workers = max(request.loader.num_workers, 1)
    sizes = [end - start for start, end in _bounds(len(samples), len(tars))]
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


def _write_once(request: LoaderRequest, samples: Samples) -> Path:
    manifest = {
        "format": "webdataset",
        "version": _VERSION,
        "samples": len(samples),
        "fingerprint": samples.fingerprint.hex(),
    }
    # If a file's size, time or ETag changes, so does the directory.
    digest = hashlib.blake2b(json.dumps(manifest).encode(), digest_size=8).hexdigest()
    directory = request.converted.expanduser().absolute() / f"webdataset-{digest}"

    def write_tars(staging: Path) -> None:
        import webdataset

        count = len(samples)
        request.print_line(f"writing {count:,} images once for loader.kind webdataset into {directory}")
        # WebDataset reads tars sequentially and recommends packing them in random order.
        order = iter(np.random.default_rng(_PACKING_SEED).permutation(count).tolist())
        tars = min(max(_MIN_TARS, ceil(count / _MAX_TAR_SAMPLES)), count)
        for number, (start, end) in enumerate(_bounds(count, tars)):
            with webdataset.TarWriter(str(staging / f"{number:06d}.tar"), mtime=0.0) as sink:
                for index in islice(order, end - start):
                    content = {"image": samples.read(index), "index": str(index).encode()}
                    sink.write({"__key__": f"{index:09d}", **content})

    written_once(directory, manifest, "the shards for loader.kind webdataset", write_tars)
    return directory


def _bounds(samples: int, shards: int) -> list[tuple[int, int]]:
    return [(samples * shard // shards, samples * (shard + 1) // shards) for shard in range(shards)]


def shuffled(tars: Sequence[str], seed: int) -> Any:
    """Return a pipeline that reads shuffled tars, split across workers, through a shuffle buffer."""
    import webdataset

    # The other shuffles are seeded by the clock, or repeat one order in every epoch.
    read = webdataset.WebDataset(
        tars, shardshuffle=_SHARD_SHUFFLE, detshuffle=True, seed=seed, empty_check=False
    )
    return read.compose(webdataset.detshuffle(_SAMPLE_SHUFFLE, seed=seed))
