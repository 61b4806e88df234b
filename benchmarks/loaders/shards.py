"""Tar shards in an S3 server: written from an image set, indexed for SUPER, and read by WebDataset."""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.harness.arm import Contender
from benchmarks.harness.processes import BenchmarkError
from benchmarks.loaders.opening import Pair, collate, data_loader
from superdl.experiments.data.whole_directory import written_once
from superdl.experiments.loaders.samples import decode_image
from superdl.experiments.loaders.shard_loaders import shuffled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.harness.image_sets import Loading

# Images of a tar.
PER_SHARD = 100

_FORMAT = "tar-shards"
_BUFFER_BYTES = 2**20


def in_shards(loading: Loading, environment: Mapping[str, str], say: Callable[[str], None]) -> Loading:
    """Return the set as shards in an S3 server, written unless present, and index them again."""
    say(f"writing and indexing shards: {loading.name}")
    directory = loading.format_directory(_FORMAT)
    manifest = {"format": _FORMAT, "per_shard": PER_SHARD}
    written_once(directory, manifest, "tar shards", partial(_write, loading))
    source, key_list = f"s3://{directory.parent.name}/{directory.name}", str(directory.with_suffix(".jsonl"))
    command = [sys.executable, "-P", "-m", "superdl.main", "index", source, "-o", key_list, "--force"]
    # Standard output is for the report.
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=2, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"superdl index cannot read {source}; standard error says why")
    return replace(loading, shards=source, key_list=key_list)


def _write(loading: Loading, target: Path) -> None:
    """Write each image as ``INDEX.jpg`` with its label as ``INDEX.cls``."""
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


def open_webdataset(loading: Loading) -> Contender:
    """Open WebDataset in a DataLoader whose workers divide the shards."""
    import webdataset

    opened = multiprocessing.Value("q")
    # As documented, but boto3 opens s3:// instead of a program per shard.
    webdataset.gopen_schemes["s3"] = partial(_get, opened)
    dataset = webdataset.DataPipeline(
        shuffled([f"{loading.shards}/{name}" for name in _names(loading)], loading.seed),
        partial(_decoded, loading),
        webdataset.filters.batched(loading.batch_size, collation_fn=collate),
    )
    context = "fork" if loading.num_workers else None  # with the opener, and its count
    batches = data_loader(dataset, loading, batch_size=None, multiprocessing_context=context)
    return Contender(batches, gets=lambda: int(opened.value))


def _get(opened: Any, url: str, *_: object, **__: object) -> io.BufferedReader:
    """Open an object as WebDataset requests it: by name, followed by file modes."""
    with opened.get_lock():
        opened.value += 1
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
