"""What ``superdl bench store`` measures in processes of their own: epochs of a loader, or of a bare loop over
a store's packs, and a script from its command to its first batch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import xxhash

from benchmarks.arm import Spent, take_lap
from benchmarks.contenders import CONTENDERS
from benchmarks.image_sets import Loading  # noqa: TC001  # read where a spec is made from JSON
from benchmarks.loading import Contender
from benchmarks.processes import Pids, said_by
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.store import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["BareLoop", "EpochFigures", "ReadResult", "ReadSpec", "drop_pages", "read", "start"]

_PAGE = 4096

_SCRIPT = """
import sys, time
from superdl import Recipe, SuperDataset, SuperLoader, SuperSampler

place, (resize, crop, batch_size) = sys.argv[1], map(int, sys.argv[2:])
dataset = SuperDataset(place, Recipe.image(resize=resize, crop=crop))
sampler = SuperSampler(dataset, batch_size=batch_size)
began_s = time.monotonic()
batches = iter(SuperLoader(dataset, sampler))
images = len(next(batches)[1])
first_s = time.monotonic()
images += sum(len(labels) for _, labels in batches)
print(first_s, first_s - began_s, sampler.job_stats().samples_produced / images)
"""


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """One epoch; what does not apply is ``None``. Disk, GETs and CPU are for each image."""

    images_per_s: float | None = None
    decodes: float | None = None
    gets: float | None = None
    disk_kb: float | None = None
    first_batch_ms: float | None = None
    beyond_torch_ms: float | None = None
    cpu_ms: float | None = None
    cpu_of_all_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The epochs that an arm has read."""

    epochs: list[EpochFigures]


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """Which loader reads what, for how many epochs, and whose CPU is read beside.

    Without a contender a :class:`BareLoop` reads ``store``. ``cold``: no memory holds that store's packs when
    an epoch begins.
    """

    contender: str
    loading: Loading
    epochs: int
    pids: Pids = field(default_factory=Pids)
    store: str = ""
    cold: bool = False
    one_slot: bool = False
    direct_threads: int = 0


def read(spec: ReadSpec) -> ReadResult:
    """Read epochs in this process."""
    name = spec.contender
    spent = Spent(spec.pids)
    contender = CONTENDERS[name].open(spec.loading) if name else Contender(BareLoop(spec))
    figures, gets = [], 0
    try:
        for _ in range(spec.epochs):
            if spec.cold:
                drop_pages(spec.store)
            disk_bytes = _disk_bytes() if spec.cold else 0
            lap = take_lap(contender, spent)
            images, gets = lap.images, gets + lap.store_requests
            figures.append(
                EpochFigures(
                    images_per_s=images / lap.wall_s,
                    decodes=lap.produced / images if spec.pids.coordinator else None,
                    gets=lap.store_requests / images if gets else None,
                    disk_kb=(_disk_bytes() - disk_bytes) / 1e3 / images if spec.cold else None,
                    first_batch_ms=1e3 * lap.first_s if spec.contender else None,
                    cpu_ms=1e3 * lap.trainer_cpu_s / images,
                    cpu_of_all_ms=1e3 * lap.cpu_of_all_s / images,
                )
            )
    finally:
        contender.close()
    return ReadResult(figures)


def _disk_bytes() -> int:
    """What this process has had read from disks."""
    return int(psutil.Process().io_counters().read_bytes)


def drop_pages(store: str) -> None:
    """Let the kernel forget what it holds of a store's packs."""
    for pack in Path(store, "packs").iterdir():
        with pack.open("rb") as file:
            os.fsync(file)  # what the disk does not have yet cannot be forgotten
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class BareLoop:
    """Reads all records of ``spec.store``, in random batches: one ``preadv`` and one hash each, and no more.

    Within a batch they are read as they lie, each into a slot of one block; with ``one_slot`` all into the
    first. Where they are ``cold``, the disk fetches the next batch while the loop reads one. With
    ``direct_threads`` so many threads read around the page cache in place of that.

    An iteration gives the sum of the hashes of each batch, and its places: pack, beginning, length.
    """

    def __init__(self, spec: ReadSpec) -> None:
        self._spec = spec
        self._epoch = 0
        self._places: list[tuple[int, int, int]] = []
        self._stack = contextlib.ExitStack()
        self.close = self._stack.close
        store = DirectoryStore.open(spec.store, create=False, read_only=True)
        for name, size in store.packs().items():
            entries = store.read_index(name, size).entries
            flags = os.O_RDONLY | (os.O_DIRECT if spec.direct_threads else 0)
            pack = os.open(Path(store.address, "packs", name), flags)
            self._stack.callback(os.close, pack)
            spans = zip(entries["offset"].tolist(), entries["bytes"].tolist(), strict=True)
            self._places += [(pack, *span) for span in spans]
        self._room = (-(-max(length for _, _, length in self._places) // _PAGE) + 1) * _PAGE
        self._block = memoryview(mmap.mmap(-1, self._room * spec.loading.batch_size))  # whole pages
        self._header = bytearray(HEADER_BYTES)

    def __iter__(self) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
        """Begin the next epoch."""
        order = np.random.default_rng(self._epoch).permutation(len(self._places)).tolist()
        self._epoch += 1
        cuts = range(0, len(order), size := self._spec.loading.batch_size)
        batches = [sorted(self._places[at] for at in order[cut : cut + size]) for cut in cuts]
        if self._spec.direct_threads:
            with ThreadPoolExecutor(self._spec.direct_threads) as pool:
                for batch in batches:
                    yield sum(pool.map(self._read_directly, range(size), batch)), batch
            return
        for batch, following in zip(batches, [*batches[1:], []], strict=True):
            for pack, offset, length in following if self._spec.cold else ():
                os.posix_fadvise(pack, offset, length, os.POSIX_FADV_WILLNEED)
            yield self._read(batch), batch

    def _read(self, batch: list[tuple[int, int, int]]) -> int:
        header, block, begin, hashes = self._header, self._block, 0, 0
        step = 0 if self._spec.one_slot else self._room
        for pack, offset, length in batch:
            payload = block[begin : begin + length - HEADER_BYTES]
            os.preadv(pack, (header, payload), offset)
            hashes += xxhash.xxh3_64_intdigest(payload)
            begin += step
        return hashes

    def _read_directly(self, slot: int, place: tuple[int, int, int]) -> int:
        """Read whole pages, into whole pages."""
        pack, offset, length = place
        before = offset % _PAGE
        end = before + length
        pages = self._block[slot * self._room :][: -(-end // _PAGE) * _PAGE]
        os.preadv(pack, (pages,), offset - before)
        return xxhash.xxh3_64_intdigest(pages[before + HEADER_BYTES : end])


def start(loading: Loading, environment: Mapping[str, str]) -> EpochFigures:
    """Start a script that reads an epoch with the embedded default; before it, one that only imports torch.

    Raises:
        BenchmarkError: it failed; the message has what it said.

    """
    torch_s, *_ = _told_by("import time, torch; print(time.monotonic())", (), {})
    words = (loading.directory, loading.resize, loading.crop, loading.batch_size)
    took_s, first_s, decodes = _told_by(_SCRIPT, words, environment)
    return EpochFigures(
        decodes=decodes, first_batch_ms=1e3 * first_s, beyond_torch_ms=1e3 * (took_s - torch_s)
    )


def _told_by(code: str, words: tuple[object, ...], environment: Mapping[str, str]) -> list[float]:
    """The numbers of a script's last line; the first, a time of the system's clock, since its command."""
    began_s = time.monotonic()
    command = ("-P", "-c", code, *map(str, words))
    said = said_by(command, {"SUPER_COORDINATOR": "", **environment}, name="a script")
    first_s, *others = map(float, said.splitlines()[-1].split())
    return [first_s - began_s, *others]
