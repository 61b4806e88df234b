"""Open the loaders to compare: SUPER, the loaders of specs, and readers of decoded pixels and tar shards."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from benchmarks.harness.arm import Contender
from benchmarks.harness.processes import BenchmarkError
from superdl.experiments.data import Source
from superdl.experiments.data.whole_directory import written_once
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.experiments.loaders.decoding import stack
from superdl.experiments.loaders.samples import decode_image, list_samples
from superdl.experiments.loaders.tar_loader import shuffled
from superdl.experiments.models import declare_operators
from superdl.experiments.spec import LoaderSpec, RecipeSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt
    from torch import Tensor

    from benchmarks.harness.image_sets import Loading
    from superdl.sampler import SuperSampler
    from superdl.super_dataset import SuperDataset

# Pixels of shape (height, width, 3), and the label.
Pair = tuple["npt.NDArray[np.uint8]", int]

_CHUNK_BYTES = 64_000_000
_IMAGES, _LABELS = "images.npy", "labels.npy"


def data_loader(dataset: Any, loading: Loading, kind: Any = DataLoader, **options: Any) -> Any:
    """Return a loader of class ``kind``, with persistent workers if there are any."""
    workers = {"num_workers": loading.num_workers, "persistent_workers": loading.num_workers > 0}
    return kind(dataset, **workers, **options)


# ------------------------------------------------------------------- SUPER, and the loaders of specs


def open_planned(loading: Loading) -> tuple[SuperDataset, SuperSampler]:
    """Return a dataset and a sampler that use the coordinator in ``loading``, or else an embedded one."""
    from superdl.sampler import SuperSampler  # the other contenders' processes need neither
    from superdl.super_dataset import Recipe, SuperDataset

    recipe = Recipe.image(resize=loading.resize, crop=loading.crop)
    source = loading.shards or f"file://{loading.directory}"
    dataset = SuperDataset(source, recipe=recipe, key_list=loading.key_list or None)
    sampler = SuperSampler(
        dataset,
        batch_size=loading.batch_size,
        shuffle=True,
        seed=loading.seed,
        coordinator=loading.coordinator or None,
    )
    return dataset, sampler


def open_super(loading: Loading) -> Contender:
    """Open SUPER with a DataLoader."""
    dataset, sampler = open_planned(loading)
    return Contender(data_loader(dataset, loading, sampler=sampler, batch_size=None), sampler=sampler)


def open_super_loader(loading: Loading) -> Contender:
    """Open SUPER with threads in the main process instead of workers."""
    from superdl.super_dataset import SuperLoader

    dataset, sampler = open_planned(loading)
    return Contender(SuperLoader(dataset, sampler), sampler=sampler)


def open_named(kind: str, loading: Loading) -> Contender:
    """Open a loader of this kind over the image files, converting them first if necessary."""
    return _opened(kind, loading, loading.converted(kind))


def convert_webdataset(loading: Loading, target: Path) -> None:
    """Write the images into an empty directory as tar files for WebDataset."""
    _opened("webdataset", loading, target).close()


def open_boto3(loading: Loading) -> Contender:
    """Open a DataLoader that uses Pillow, and gets each image from the set's bucket with boto3."""
    directory = Path(loading.directory)
    return _opened("torch", loading, Path(), Source(f"s3://{directory.parent.name}/{directory.name}/"))


def _opened(kind: str, loading: Loading, converted: Path, source: Source | None = None) -> Contender:
    request = LoaderRequest(
        source=source or Source(f"file://{loading.directory}"),
        recipe=RecipeSpec(resize=loading.resize, crop=loading.crop),
        loader=LoaderSpec(kind=kind, batch_size=loading.batch_size, num_workers=loading.num_workers),
        training=True,
        seed=loading.seed,
        pin_memory=False,
        converted=converted,
    )
    # Without the figures that a run would record.
    return Contender(open_loader(request), pair=lambda batch: (batch[0], batch[1]))


# ---------------------------------------------------------------------------------- decoded images


class Pairs(Dataset[Pair]):
    """The pixels and label of each file, in key order, as input for conversions to decoded pixels."""

    def __init__(self, loading: Loading) -> None:
        self._samples = list_samples(Source(f"file://{loading.directory}"), "torch")
        self._resize = loading.resize
        self._crop = loading.crop

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Pair:
        content = self._samples.read(index)
        return decode_image(content, resize=self._resize, crop=self._crop), self._samples.labels[index]


def collate(pairs: list[Pair]) -> tuple[Tensor, Tensor]:
    """Stack pairs with a single copy, into shared memory when in a worker."""
    return stack([pixels for pixels, _ in pairs], [label for _, label in pairs])


def write_litdata(loading: Loading, target: Path) -> None:
    """Write the decoded pixels as LitData chunks."""
    declare_operators()
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(target), chunk_bytes=_CHUNK_BYTES)
    # Without this, the writer waits for other ranks. There is no public way to set it.
    writer._distributed_env = type(writer._distributed_env)(1, 0, 1)  # noqa: SLF001
    pairs = Pairs(loading)
    for index in range(len(pairs)):
        pixels, label = pairs[index]
        writer[index] = {"image": pixels.copy(), "label": label}
    writer.done()
    writer.merge()


def open_litdata(loading: Loading) -> Contender:
    """Open LitData so that it reads image by image."""
    declare_operators()
    from litdata import StreamingDataLoader, StreamingDataset

    def pair(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return batch["image"].permute(0, 3, 1, 2), batch["label"].to(torch.int64)

    # Without decoding, batches of chunks cost more.
    directory = str(loading.converted("litdata-raw"))
    dataset = StreamingDataset(directory, shuffle=True, seed=loading.seed, batch_decode=False)
    batches = data_loader(dataset, loading, StreamingDataLoader, batch_size=loading.batch_size)
    return Contender(batches, pair=pair)


def write_array(loading: Loading, target: Path) -> None:
    """Write the images to an array file of shape (images, height, width, 3), and the labels to another."""
    pairs = Pairs(loading)
    shape = (len(pairs), loading.crop, loading.crop, 3)
    images = np.lib.format.open_memmap(target / _IMAGES, mode="w+", dtype=np.uint8, shape=shape)
    labels = np.empty(len(pairs), dtype=np.int64)
    for index in range(len(pairs)):
        images[index], labels[index] = pairs[index]
    images.flush()
    np.save(target / _LABELS, labels)


def open_array(loading: Loading) -> Contender:
    """Open an array in memory. numpy gathers each batch from it by index."""
    # A lower bound: the only cost is copying a batch and, with workers, sending it to the main process.
    batches = _ArrayBatches(loading.converted("ram"))
    order = RandomSampler(batches, generator=torch.Generator().manual_seed(loading.seed))
    indices = BatchSampler(order, loading.batch_size, drop_last=False)
    return Contender(data_loader(batches, loading, sampler=indices, batch_size=None))


class _ArrayBatches(Dataset[tuple["Tensor", "Tensor"]]):
    """A dataset indexed by lists of indices. Forked workers share the images' memory."""

    def __init__(self, directory: Path) -> None:
        self._images = np.load(directory / _IMAGES)
        self._labels = torch.from_numpy(np.load(directory / _LABELS))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        # numpy requests huge pages from the system; torch does not.
        return torch.from_numpy(self._images[indices]).permute(0, 3, 1, 2), self._labels[indices]


# ------------------------------------------------------------------------------------ tar shards in S3

# Images per tar.
PER_SHARD = 100

_FORMAT = "tar-shards"
_BUFFER_BYTES = 2**20


def in_shards(loading: Loading, environment: Mapping[str, str], log: Callable[[str], None]) -> Loading:
    """Write the set as shards in S3 unless they exist, index them, and return their loading parameters."""
    log(f"writing and indexing shards: {loading.name}")
    directory = loading.converted(_FORMAT)
    manifest = {"format": _FORMAT, "per_shard": PER_SHARD}
    written_once(directory, manifest, "tar shards", partial(_write, loading))
    source, key_list = f"s3://{directory.parent.name}/{directory.name}", str(directory.with_suffix(".jsonl"))
    command = [sys.executable, "-P", "-m", "superdl.main", "index", source, "-o", key_list, "--force"]
    # Standard output is for the report.
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=2, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"superdl index cannot read {source}; see standard error for the reason")
    return replace(loading, shards=source, key_list=key_list)


def _write(loading: Loading, target: Path) -> None:
    """Write each image as ``INDEX.jpg`` and its label as ``INDEX.cls``."""
    files = sorted(Path(loading.directory).glob("*/*"))
    classes = {name: label for label, name in enumerate(sorted({file.parent.name for file in files}))}
    for number, name in enumerate(_names(loading)):
        start = number * PER_SHARD
        with tarfile.open(target / name, "w") as tar:
            for index, file in enumerate(files[start : start + PER_SHARD], start):
                label = str(classes[file.parent.name]).encode()
                for extension, content in (("jpg", file.read_bytes()), ("cls", label)):
                    member = tarfile.TarInfo(f"{index:09d}.{extension}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def _names(loading: Loading) -> list[str]:
    return [f"{number:05d}.tar" for number in range(-(-loading.images // PER_SHARD))]


def open_webdataset_of_shards(loading: Loading) -> Contender:
    """Open a WebDataset in a DataLoader whose workers split the shards among themselves."""
    import webdataset

    # As documented, except that boto3 opens s3:// URLs instead of a program per shard.
    webdataset.gopen_schemes["s3"] = _get
    dataset = webdataset.DataPipeline(
        shuffled([f"{loading.shards}/{name}" for name in _names(loading)], loading.seed),
        partial(_decoded, loading),
        webdataset.filters.batched(loading.batch_size, collation_fn=collate),
    )
    context = "fork" if loading.num_workers else None  # workers inherit the opener
    return Contender(data_loader(dataset, loading, batch_size=None, multiprocessing_context=context))


def _get(url: str, *_: object, **__: object) -> io.BufferedReader:
    """Open an object for WebDataset, ignoring the file modes that it passes after the URL."""
    place = urlsplit(url)
    answer = _client(os.getpid()).get_object(Bucket=place.netloc, Key=place.path.lstrip("/"))
    return io.BufferedReader(answer["Body"], _BUFFER_BYTES)


@cache
def _client(_process: int) -> Any:
    # The process id is the key of the cache: forks must not share connections.
    import boto3

    endpoint = os.environ.get("SUPER_S3_ENDPOINT_URL")
    return boto3.session.Session().client("s3", endpoint_url=endpoint or None)


def _decoded(loading: Loading, source: Iterator[Mapping[str, bytes]]) -> Iterator[Pair]:
    for sample in source:
        yield decode_image(sample["jpg"], resize=loading.resize, crop=loading.crop), int(sample["cls"])
