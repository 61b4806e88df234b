"""The savings from a store, and the cost of reading it: ``superdl bench store``."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.arm import ArmSpec, Lap, measure_arm
from benchmarks.harness.image_sets import IMAGE_SETS, Loading, add_data_option, add_option, prepare_images
from benchmarks.harness.processes import Server, loader_services, needed_rclone, run_child, s3_server
from benchmarks.harness.results import BenchmarkReport, Column, Run
from benchmarks.loaders.contenders import CONTENDERS, LITDATA, PILLOW, SUPER_LOADER, convert_once
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

_FOOTPRINT = 1.4  # memory per byte of a record in a cache, with room for requests in flight

_METHOD = (
    (
        "'later' rows are medians of all epochs but the first. Each arm of SUPER has fresh services on all "
        "cores. Unless stated otherwise, the cache holds a quarter of the set. Packs are in the page cache."
    ),
    (
        "CPU is in ms per image: for the reading process alone, and including coordinator, cache and "
        "functions."
    ),
    "s3: GETs are sent by functions to a server on this machine.",
)

_COLUMNS = (
    Column("arm", "arm"),
    Column("epochs", "epochs"),
    Column("images_per_s", "images/s", ",.0f"),
    Column("decodes", "decodes\n/image", ".2f"),
    Column("gets", "GETs\n/image", ".4f"),
    Column("first_batch_ms", "first\nbatch ms", ",.0f"),
    Column("reader_cpu_ms", "reader's\nCPU ms", ".4f"),
    Column("all_cpu_ms", "CPU of\nall, ms", ".4f"),
)

# Its name, and each of its epochs.
_Arm = tuple[str, list[Lap]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_option(parser, "--images", "photos", "image set", choices=IMAGE_SETS)
    add_data_option(parser, photos=2000)
    rows = " ".join(f"{name}: {row.__doc__}" for name, row in ROWS.items())
    add_option(parser, "--only", list(ROWS), rows, choices=ROWS, metavar="ROW")
    add_option(parser, "--batch-size", 128, "images per batch")
    add_option(parser, "--epochs", 3, "epochs of each arm")


def measure(arguments: argparse.Namespace, log: Callable[[str], None]) -> BenchmarkReport:
    """Read the epochs of all arms, calling ``log`` with a line for each."""
    if "s3" in arguments.only:
        needed_rclone()  # fail now, not after minutes of other rows
    images = prepare_images(arguments.images, arguments, log)
    runs = []
    with tempfile.TemporaryDirectory(prefix="superdl-bench-store-", dir=arguments.data) as folder:
        bench = _Bench(images, arguments, Path(folder), log)
        for name in arguments.only:
            for arm, laps in ROWS[name](bench):
                for number, lap in enumerate(laps):
                    epochs = "later" if number else "first"
                    conditions = {"images": images.name, "row": name, "arm": arm, "epochs": epochs}
                    runs.append(Run(conditions, lap.figures()))
    absent = CONTENDERS[LITDATA].missing()
    return BenchmarkReport(
        method=(*_METHOD, *([f"{CONTENDERS[LITDATA].title}: {absent}."] if absent else ())),
        group_by=("images", "row"),
        columns=_COLUMNS,
        runs=runs,
    )


class _Bench:
    """One image set and the arms that read it. Stores are created in ``place``."""

    def __init__(
        self, images: Loading, arguments: argparse.Namespace, place: Path, log: Callable[[str], None]
    ) -> None:
        self._log = log
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
        yield self._arm(f"{PILLOW}, 2 workers", ArmSpec(CONTENDERS[PILLOW].open, workers, self._laps))
        yield self._super("cache holds all", "none", self._all_bytes)
        yield self._super("cache holds a quarter", "none", self._quarter_bytes)
        yield self._super("a quarter, and a store", self._store, self._quarter_bytes)
        yield self._super("the same, started again", self._store, self._quarter_bytes)

    def straight(self) -> Iterator[_Arm]:
        """CPU time for reading packs from the page cache, compared with a loader of converted images."""
        if not Path(self._store).exists():  # an earlier arm may have filled it
            self._super("filling the store", self._store, self._quarter_bytes)
        yield self._super("SuperLoader, packs", self._store, self._quarter_bytes)
        form = CONTENDERS[LITDATA]
        if not form.missing():
            convert_once(LITDATA, self._loading, self._log)
            yield self._arm(form.title, ArmSpec(form.open, self._loading, self._laps))

    def s3(self) -> Iterator[_Arm]:
        """A later job with an empty cache and a store in S3."""
        (self._place / "s3" / "bucket").mkdir(parents=True)
        with s3_server(self._place / "s3") as server:
            for arm in ("S3 store, empty", "a later job"):
                yield self._super(arm, "s3://bucket/store", self._all_bytes, server)

    @property
    def _laps(self) -> list[int]:
        return [1] * self._epochs

    def _super(self, arm: str, store: str, budget_bytes: int, s3: Server | None = None) -> _Arm:
        """Read epochs with SuperLoader and ``budget_bytes`` of cache."""
        with loader_services("--store", store, s3=s3, budget_bytes=budget_bytes) as services:
            loading = replace(self._loading, coordinator=services.coordinator)
            opening = CONTENDERS[SUPER_LOADER].open
            return self._arm(arm, ArmSpec(opening, loading, self._laps, services.pids))

    def _arm(self, arm: str, spec: ArmSpec) -> _Arm:
        self._log(arm)
        return arm, run_child(measure_arm, spec, name=arm)


# By the name that --only accepts.
ROWS: Mapping[str, Callable[[_Bench], Iterator[_Arm]]] = {
    "saved": _Bench.saved,
    "straight": _Bench.straight,
    "s3": _Bench.s3,
}
