"""What ``superdl bench members`` measures in a process of its own: epochs over tar shards, of SUPER or of
WebDataset.

WebDataset is written as its documentation says, with an opener for ``s3://`` by boto3 in place of a program
that is run for each shard. Its shuffles are those of :mod:`superdl.experiments.loaders`.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import time
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from torch.utils.data import DataLoader

from benchmarks.arm import take_lap
from benchmarks.image_sets import Loading  # noqa: TC001  # read where a spec is made from JSON
from benchmarks.loading import Contender, Pair, collate, open_planned
from benchmarks.processes import BenchmarkError, Pids
from superdl.experiments.loaders.samples import decode_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from superdl.sampler import SuperSampler

__all__ = ["EPOCHS", "SOURCE", "SUPER", "WEBDATASET", "Epoch", "ReadResult", "ReadSpec", "read"]

SUPER, WEBDATASET = "SUPER", "WebDataset"
EPOCHS = ("first", "second")
SOURCE = "s3://shards/train"

_SHARD_SHUFFLE, _SAMPLE_SHUFFLE = 100, 1000
_BUFFER_BYTES = 2**20
_SETTLED_S, _POLL_S = 30.0, 0.05
_IMPORTS: Mapping[str, Sequence[str]] = {
    SUPER: ("superdl.sampler", "superdl.super_dataset"),
    WEBDATASET: ("webdataset", "boto3"),
}

_Opened = tuple[Contender, "Callable[[], int]"]
"""A loader, and how many GETs it has sent until now."""


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """Which arm reads what, and whose CPU is read beside.

    ``key_list`` is SUPER's, of the samples in WebDataset's ``shards``, which are named by their numbers.
    """

    arm: str
    loading: Loading
    pids: Pids
    key_list: str
    shards: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch took; ``others_cpu_s`` is of coordinator, cache and functions."""

    images: int
    first_s: float
    wall_s: float
    reader_cpu_s: float
    others_cpu_s: float
    store_cpu_s: float
    gets: int

    def figures(self) -> dict[str, float]:
        """As the table has them; CPU is for each image."""
        ms = 1e3 / self.images
        return {
            "images_per_s": self.images / self.wall_s,
            "first_batch_ms": 1e3 * self.first_s,
            "reader_cpu_ms": ms * self.reader_cpu_s,
            "cpu_of_all_ms": ms * (self.reader_cpu_s + self.others_cpu_s),
            "store_cpu_ms": ms * self.store_cpu_s,
            "gets": self.gets,
        }


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The epochs that an arm has read."""

    epochs: list[Epoch]


def read(spec: ReadSpec) -> ReadResult:
    """Read the epochs in this process. What opening takes is part of the first, what imports take is not."""
    for module in _IMPORTS[spec.arm]:
        import_module(module)
    before, gets_before, epochs = spec.pids.cpu_s(), 0, []  # functions begin while a loader is opened
    began_s = time.perf_counter()
    contender, count_gets = (_open_super if spec.arm == SUPER else _open_webdataset)(spec)
    opening_s = time.perf_counter() - began_s
    try:
        for _ in EPOCHS:
            lap = take_lap(contender, spec.pids)
            gets, after = count_gets(), spec.pids.cpu_s()
            took = {name: after[name] - before[name] for name in after}
            store_s = took.pop("store_cpu_s")
            epochs.append(
                Epoch(
                    images=lap.images,
                    first_s=opening_s + lap.first_s,
                    wall_s=opening_s + lap.wall_s,
                    reader_cpu_s=lap.main_cpu_s + lap.workers_cpu_s,
                    others_cpu_s=sum(took.values()),
                    store_cpu_s=store_s,
                    gets=gets - gets_before,
                )
            )
            before, gets_before, opening_s = after, gets, 0.0
    finally:
        contender.close()
    return ReadResult(epochs)


def _open_super(spec: ReadSpec) -> _Opened:
    """SuperLoader over the members that the key list names."""
    from superdl.super_dataset import SuperLoader

    dataset, sampler = open_planned(spec.loading, SOURCE, spec.key_list)
    return Contender(SuperLoader(dataset, sampler), sampler=sampler), partial(_settled_gets, sampler)


def _settled_gets(sampler: SuperSampler) -> int:
    """The GETs of a job once no request is under way: the last answers come later than the last batch.

    Raises:
        BenchmarkError: that takes too long.

    """
    until_s = time.monotonic() + _SETTLED_S
    while (stats := sampler.job_stats()).total_requests_in_flight:
        if time.monotonic() > until_s:
            raise BenchmarkError(f"functions still run {_SETTLED_S:g} s after the last batch")
        time.sleep(_POLL_S)
    return int(stats.source_requests)


def _open_webdataset(spec: ReadSpec) -> _Opened:
    """WebDataset in a DataLoader whose workers share the shards out."""
    import webdataset

    opened = multiprocessing.Value("q")
    webdataset.gopen_schemes["s3"] = partial(_get, opened)
    loading, workers = spec.loading, spec.loading.num_workers
    shards = [f"{SOURCE}/{number:05d}.tar" for number in range(spec.shards)]
    raw = webdataset.WebDataset(
        shards, shardshuffle=_SHARD_SHUFFLE, detshuffle=True, seed=loading.seed, empty_check=False
    )
    dataset = webdataset.DataPipeline(
        raw.compose(webdataset.detshuffle(_SAMPLE_SHUFFLE, seed=loading.seed)),
        partial(_decoded, loading),
        webdataset.filters.batched(loading.batch_size, collation_fn=collate),
    )
    batches: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,  # with the opener, and its count
    )
    return Contender(batches), lambda: int(opened.value)


def _get(opened: Any, url: str, *_: object, **__: object) -> io.BufferedReader:
    """Open an object as WebDataset asks for it: its name, then modes of files."""
    with opened.get_lock():
        opened.value += 1
    place = urlsplit(url)
    answer = _client(os.getpid()).get_object(Bucket=place.netloc, Key=place.path.lstrip("/"))
    return io.BufferedReader(answer["Body"], _BUFFER_BYTES)


@cache
def _client(_process: int) -> Any:
    """This process's client: one that was made before a fork would share its connections."""
    import boto3

    endpoint = os.environ.get("SUPER_S3_ENDPOINT_URL")
    return boto3.session.Session().client("s3", endpoint_url=endpoint or None)


def _decoded(loading: Loading, source: Iterator[Mapping[str, bytes]]) -> Iterator[Pair]:
    for sample in source:
        yield decode_image(sample["jpg"], resize=loading.resize, crop=loading.crop), int(sample["cls"])
