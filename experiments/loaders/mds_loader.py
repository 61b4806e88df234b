"""MosaicML Streaming: MDS shards that hold the files unchanged, read from local disk.

As its documentation writes it: a dataset of one's own whose ``__getitem__`` decodes, told the batch size so
that it deals out whole batches, and an ordinary DataLoader. It finds the rank by itself, in ``RANK``,
``WORLD_SIZE`` and ``LOCAL_WORLD_SIZE``, and makes ranks equal by repeating samples.
"""

from __future__ import annotations

import functools
import os
import time
from math import ceil
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from superdl.experiments.loaders.conversion import Format, convert_once
from superdl.experiments.loaders.decoding import DecodingLoader, collate, decoded
from superdl.experiments.loaders.packages import need_package
from superdl.experiments.loaders.pixels import ImageMaker
from superdl.experiments.loaders.samples import list_samples
from superdl.experiments.loaders.torch_loader import pads
from superdl.experiments.loaders.workers import leave_sigterm_to_the_run
from superdl.experiments.torchvision_operators import declare_operators
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from superdl.experiments.loaders.decoding import DecodedSample
    from superdl.experiments.loaders.interface import Loader, LoaderRequest
    from superdl.experiments.loaders.samples import Samples

__all__ = ["MDS", "open_mds"]

_KIND = "mds"
_DOCUMENTATION = "https://docs.mosaicml.com/projects/streaming/en/stable/"
_NOTE = "it holds numpy below 2.2, so best in an environment of its own"
_SHARD_BYTES = 2**26  # the package's default
_SAMPLE_BYTES = 32


def _write(samples: Samples, order: Sequence[int], _size_bytes: int, directory: Path) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int", "index": "int"}
    with MDSWriter(out=str(directory), columns=columns, size_limit=_SHARD_BYTES) as sink:
        for index in order:
            sink.write({"image": samples.read(index), "label": samples.labels[index], "index": index})


MDS = Format(_KIND, version=1, overhead_bytes=_SAMPLE_BYTES, write=_write)


def open_mds(request: LoaderRequest) -> Loader:
    """Open a split, converted into shards first unless it has been.

    Raises:
        ConfigError: the package is not installed, the shards cannot be written, or the environment names
            another rank than the run has.
        SourceError: the source cannot be listed or read.

    """
    need_package("streaming", _KIND, _NOTE)
    images = _images_class()
    nodes, ranks_of_node = _nodes(request)
    samples = list_samples(request.source, _KIND)
    make = ImageMaker(request.recipe, samples.bucket)
    converted = convert_once(samples, MDS, request)
    shuffle: dict[str, Any] = {"shuffle": request.training}
    if request.training:
        shuffle |= {"shuffle_algo": "py1e", "shuffle_seed": request.seed}
    else:
        shuffle |= {"num_canonical_nodes": nodes}  # what keeps the order
    batch = request.loader.batch_size
    dataset = images(samples, make, local=str(converted.directory), batch_size=batch, **shuffle)
    options: dict[str, Any] = {
        "num_workers": request.loader.num_workers,
        "persistent_workers": request.loader.num_workers > 0,
        "pin_memory": request.pin_memory,
    }
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
        classes=samples.classes,
        sample_count=len(samples),
        fingerprint=samples.fingerprint,
        settings={
            **options,
            **shuffle,
            "size_limit": _SHARD_BYTES,
            "repeated_samples": share * request.replicas - len(samples),
            **converted.settings(),
            "documentation": _DOCUMENTATION,
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


@functools.cache
def _images_class() -> Any:
    """The dataset's class, made once the package is there to derive it from."""
    declare_operators()
    from streaming import StreamingDataset

    class Images(StreamingDataset):  # type: ignore[misc]  # untyped
        """Decodes; each iteration in a process is the next epoch."""

        def __init__(self, samples: Samples, make: ImageMaker, **options: Any) -> None:
            super().__init__(**options)
            self._samples = samples
            self._make = make
            self._epoch = -1

        def __iter__(self) -> Iterator[DecodedSample]:
            self._epoch += 1
            return iter(super().__iter__())

        def __getitem__(self, place: int) -> DecodedSample:
            start_s = time.perf_counter()
            item = super().__getitem__(place)
            fetch_s = time.perf_counter() - start_s
            key = self._samples.keys[item["index"]]
            return decoded(item["image"], int(item["label"]), key, self._epoch, self._make, fetch_s)

        def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
            return _restored, (self.__dict__,)

    return Images


def _restored(state: dict[str, Any]) -> Any:
    """A dataset that was pickled for a worker which was not forked."""
    dataset = object.__new__(_images_class())
    dataset.__dict__.update(state)
    return dataset
