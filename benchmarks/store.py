"""``superdl bench store``: what a store saves, beside a cache alone and a bare loop over its packs.

Each arm is a process of its own with services of its own, and reads some epochs by ``SuperLoader``. The
bare loop reads the records that the store has by then: one ``preadv`` and one hash each, in a random order.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import xxhash

from benchmarks import positive
from benchmarks.contenders import CONTENDERS, PILLOW, SUPER_LOADER
from benchmarks.image_sets import ImageSet, add_image_options, prepare_images
from benchmarks.loading import Loading  # noqa: TC001  # read where a spec is made from JSON
from benchmarks.processes import run_child
from benchmarks.results import BenchmarkReport, Column, Started
from benchmarks.services import cache_server, running
from superdl.sampler.embedded.host import pool_workers
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.store import DirectoryStore

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

__all__ = ["EpochFigures", "ReadSpec", "add_arguments", "bare", "measure", "read"]

_ALL, _QUARTER, _STORED, _AGAIN, _BARE = (
    "cache holds all",
    "cache holds a quarter",
    "a quarter, and a store",
    "the same, started again",
    "bare preadv and hash",
)
_FOOTPRINT = 1.4  # what a record takes in a cache beyond its own length, with room for requests in flight

_METHOD = (
    (
        "Epochs are counted from 1; each arm has fresh services on all cores. 'decodes' counts samples that "
        "functions decoded in the epoch, for each image. 'started again' has new services, an empty cache "
        "and the store of the arm before."
    ),
    (
        "CPU is user and system time in ms for each image: of the process that reads, and of that, "
        "coordinator, cache and functions together. Packs lie in the page cache. The bare loop reads the "
        "same records into one buffer and hashes each."
    ),
)

_COLUMNS = (
    Column("arm", "arm"),
    Column("epoch", "epoch", "d"),
    Column("images_per_s", "images/s", ",.0f"),
    Column("decodes_per_image", "decodes\n/image", ".2f"),
    Column("first_batch_ms", "first\nbatch ms", ",.0f"),
    Column("cpu_ms", "reader's\nCPU ms", ".4f"),
    Column("cpu_of_all_ms", "CPU of\nall, ms", ".4f"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_image_options(parser, photos=2000)
    parser.add_argument("--batch-size", type=positive, default=128, help="(128)")
    parser.add_argument("--epochs", type=positive, default=3, help="of each arm (3)")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Read the epochs of all arms; ``say`` gets a line for each.

    Raises:
        SuperError: images or services cannot be had, or a loader failed.

    """
    started = Started(arguments)
    images = prepare_images(arguments.images, arguments, say)
    rows = []
    with tempfile.TemporaryDirectory(prefix="superdl-bench-store-") as place:
        for arm, figures in _arms(images, arguments, Path(place), say):
            rows += [{"images": images.name, "arm": arm, **asdict(one)} for one in figures]
    return started.report(
        image_sets=images.described(),
        method=_METHOD,
        group_by=("images",),
        columns=_COLUMNS,
        rows=rows,
    )


def _arms(
    images: ImageSet, arguments: argparse.Namespace, place: Path, say: Callable[[str], None]
) -> Iterator[tuple[str, list[EpochFigures]]]:
    loading = images.loading(batch_size=arguments.batch_size, num_workers=0)
    record_bytes = HEADER_BYTES + 3 * loading.crop**2
    all_bytes = max(64 * 2**20, int(_FOOTPRINT * record_bytes * images.images))
    store = place / "store"
    spec = ReadSpec(SUPER_LOADER, loading, arguments.epochs, images.images)
    say(f"{PILLOW}, 2 workers")
    pillow = replace(spec, contender=PILLOW, loading=replace(loading, num_workers=2))
    yield f"{PILLOW}, 2 workers", run_child(read, pillow, name=PILLOW).epochs
    for arm, budget_bytes, kept in (
        (_ALL, all_bytes, None),
        (_QUARTER, record_bytes * images.images // 4, None),
        (_STORED, record_bytes * images.images // 4, store),
        (_AGAIN, record_bytes * images.images // 4, store),
    ):
        say(arm)
        with _services(budget_bytes, kept) as (coordinator, pids):
            mine = replace(spec, loading=replace(loading, coordinator=coordinator), pids=pids)
            yield arm, run_child(read, mine, name=arm).epochs
    say(_BARE)
    yield _BARE, run_child(bare, BareSpec(str(store), arguments.epochs), name=_BARE).epochs


@contextlib.contextmanager
def _services(budget_bytes: int, store: Path | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A cache, a coordinator and functions; the coordinator's address, and their process ids."""
    with tempfile.TemporaryDirectory(prefix="superdl-s-") as place, cache_server(Path(place)) as cache:
        path = f"{place}/coordinator.sock"
        command = [sys.executable, "-P", "-m", "superdl.coordinator", "--listen", f"unix:{path}"]
        command += ["--cache", cache.address, "--cache-bytes", str(budget_bytes)]
        # The pool is as the embedded default has it.
        command += ["--workers", str(pool_workers()), "--worker-nice", "10"]
        command += ["--store", "none" if store is None else str(store)]
        with running(command, path) as pid:
            yield f"unix:{path}", (pid, cache.pid)


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """Which loader reads what, for how many epochs of so many images; ``pids`` are its services'."""

    contender: str
    loading: Loading
    epochs: int
    images: int
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BareSpec:
    """The store whose records the bare loop reads, so often."""

    store: str
    epochs: int


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """One epoch; what does not apply is ``None``."""

    epoch: int
    images_per_s: float
    cpu_ms: float
    cpu_of_all_ms: float
    decodes_per_image: float | None = None
    first_batch_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The epochs that an arm has read."""

    epochs: list[EpochFigures]


def read(spec: ReadSpec) -> ReadResult:
    """Read epochs in this process."""
    contender = CONTENDERS[spec.contender].open(spec.loading)
    figures, decoded = [], 0
    try:
        for epoch in range(spec.epochs):
            mine_s, others_s, began_s = _own_cpu_s(), _cpu_s(spec.pids), time.perf_counter()
            batches = iter(contender)
            images = len(next(batches)[1])
            first_s = time.perf_counter() - began_s
            images += sum(len(labels) for _, labels in batches)
            took_s = time.perf_counter() - began_s
            mine_s, others_s = _own_cpu_s() - mine_s, _cpu_s(spec.pids) - others_s
            before, decoded = decoded, contender.produced()
            figures.append(
                EpochFigures(
                    epoch + 1,
                    images_per_s=images / took_s,
                    cpu_ms=1000 * mine_s / images,
                    cpu_of_all_ms=1000 * (mine_s + others_s) / images,
                    decodes_per_image=(decoded - before) / images if spec.pids else None,
                    first_batch_ms=1000 * first_s,
                )
            )
    finally:
        contender.close()
    return ReadResult(figures)


def bare(spec: BareSpec) -> ReadResult:
    """Read all records of a store in this process, in a random order: one ``preadv`` and one hash each."""
    store = DirectoryStore.open(spec.store, create=False, read_only=True)
    places: list[tuple[int, int, int]] = []
    with contextlib.ExitStack() as stack:
        for name, size in store.packs().items():
            pack = store.open_pack(name)
            stack.callback(os.close, pack)
            entries = store.read_index(name, size).entries
            places += [(pack, *one) for one in zip(entries["offset"].tolist(), entries["bytes"].tolist())]  # noqa: B905
        header = bytearray(HEADER_BYTES)
        payload = memoryview(bytearray(max(length for _, _, length in places)))
        figures = []
        for epoch in range(spec.epochs):
            order = np.random.default_rng(epoch).permutation(len(places)).tolist()
            cpu_s, began_s = _own_cpu_s(), time.perf_counter()
            for pack, offset, length in map(places.__getitem__, order):
                own = payload[: length - HEADER_BYTES]
                os.preadv(pack, (header, own), offset)
                xxhash.xxh3_64_intdigest(own)
            took_s, cpu_s = time.perf_counter() - began_s, _own_cpu_s() - cpu_s
            cpu_ms = 1000 * cpu_s / len(places)
            figures.append(EpochFigures(epoch + 1, len(places) / took_s, cpu_ms, cpu_ms))
    return ReadResult(figures)


def _own_cpu_s() -> float:
    """CPU of this process, by a clock without ticks, and of living processes that it has started."""
    return time.process_time() + _cpu_s(tuple(child.pid for child in psutil.Process().children()))


def _cpu_s(pids: tuple[int, ...]) -> float:
    """CPU of processes and of all below them."""
    total = 0.0
    for pid in pids:
        for process in (one := psutil.Process(pid), *one.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times: Any = process.cpu_times()
                total += times.user + times.system
    return total
