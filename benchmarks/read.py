"""``superdl bench read``: what a trainer's own processes spend per image, with SUPER and with what users
would otherwise pick.

It decides which arms there are and in which order they run, and makes figures of what they measured. An arm
itself is :mod:`benchmarks.arm`'s, the loaders are :mod:`benchmarks.contenders`'s.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks import not_negative, positive
from benchmarks.arm import ArmSpec, Lap, measure_arm
from benchmarks.contenders import (
    BOTO3,
    CONTENDERS,
    PILLOW,
    SOCKET,
    SUPER_LOADER,
    WEBDATASET,
    ContenderSpec,
    convert_once,
    with_versions,
)
from benchmarks.image_sets import IMAGE_SETS, add_data_option, data_directory, described, prepare_images
from benchmarks.processes import BenchmarkError, Pids, run_child
from benchmarks.results import BenchmarkReport, Column, Run, Started, describe_machine, medians
from benchmarks.services import LoaderServices, Server, loader_services, s3_server
from benchmarks.shards import PER_SHARD, in_shards

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.image_sets import Loading

__all__ = ["COLUMNS", "EPOCHS", "FILES", "SHARDS", "Cell", "add_arguments", "measure", "rows_of"]

FILES, SHARDS = "files", "shards"
EPOCHS = {FILES: ("later",), SHARDS: ("first", "second")}
"""Which epochs have a row."""

COLUMNS = (
    Column("num_workers", "work-\ners", "d"),
    Column("loader", "loader"),
    Column("epoch", "epoch"),
    Column("cpu_ms_per_image", "CPU ms\n/image", ".4f"),
    Column("main_cpu_ms_per_image", "of it\nmain", ".4f"),
    Column("workers_cpu_ms_per_image", "of it\nworkers", ".4f"),
    Column("images_per_s", "images\n/s", ",.0f"),
    Column("share_of_webdataset", "of Web-\nDataset", ".2f"),
    Column("times_less_than_pillow", "less than\nPillow", ".1f"),
    Column("times_socket_loop", "times\nsocket", ".2f"),
    Column("first_batch_ms", "first\nbatch ms", ",.0f"),
    Column("cache_cpu_ms_per_image", "beside:\ncache", ".4f"),
    Column("coordinator_cpu_ms_per_image", "coordi-\nnator", ".4f"),
    Column("functions_cpu_ms_per_image", "func-\ntions", ".4f"),
    Column("cpu_of_all_ms_per_image", "CPU\nof all", ".4f"),
    Column("store_cpu_ms_per_image", "\nS3", ".3f"),
    Column("gets_per_image", "GETs\n/image", ".4f"),
)
_NOT_SHOWN = {
    FILES: {"epoch", "share_of_webdataset", "first_batch_ms", "cpu_of_all_ms_per_image", "gets_per_image"},
    SHARDS: {"times_less_than_pillow", "times_socket_loop"},
}

_PARTS = ("main", "workers", "cache", "coordinator", "functions", "store")

_METHOD = (
    "CPU is user and system time of the trainer's main process, all threads, and of its worker processes. "
    "Batches are taken and dropped: nothing is computed, and the trainer touches no pixel. All loaders "
    "deliver the same pixels with the same labels: a checksum of one epoch is compared. Each arm runs in a "
    "process of its own, the arms of a round one after another. Figures are medians over the rounds "
    "(--rounds). Cache, coordinator, functions and S3 server are processes of their own, on other machines "
    "where there are any: their CPU is not in the trainer's."
)

_METHOD_OF = {
    FILES: (
        (
            "Whole epochs are measured (--epochs; one epoch of loaders that decode) from the second one on, "
            "when everything is cached. The first epoch, and with it start-up and imports, is left out for "
            "every loader alike. One set of services serves all. 'less than' is the CPU of that DataLoader, "
            "with the same images, workers and batch size, over this row's; 'times' is this row's over that "
            "of the bare socket loop in the main process."
        ),
        (
            "'raw' loaders read decoded pixels that were converted before; conversion is not measured. 'RAM "
            "array' indexes a tensor of decoded images, batch by batch; with workers, torch copies each "
            "batch into shared memory. 'numpy' indexes an array: numpy asks for huge pages, whose page "
            "faults cost a tenth. The 'bare socket loop' gathers the same values from the same cache into "
            "one buffer and checks nothing. SuperLoader, FFCV and the socket loop have no worker processes."
        ),
    ),
    SHARDS: (
        (
            f"The images lie in tars of {PER_SHARD} in an S3 server of this machine (rclone). The first "
            "epoch begins where the loader is opened, imports left out: WebDataset's workers start in it, "
            "SUPER's functions before. SUPER has fresh services each time, and a cache that holds all. "
            "'CPU of all' leaves out the S3 server alone. The share is of the images/s of the fastest "
            "WebDataset in the same epoch."
        ),
        (
            "WebDataset opens a shard by one GET of boto3, shuffles shards and a buffer of 1,000 samples, "
            "and decodes in its workers. SUPER reads by a key list of `superdl index`, and decodes in "
            "functions, at low priority."
        ),
    ),
}

_TLS = (
    "The cache is reached by TLS over loopback, its certificate verified; the process that speaks TLS for "
    "the cache server is in no column."
)
_UNIX_SOCKET = "The cache is reached by a unix socket."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--from",
        dest="source",
        choices=EPOCHS,
        default=FILES,
        help="files, once everything is cached (default), or tar shards in S3, from the first epoch on",
    )
    parser.add_argument(
        "--images", nargs="+", choices=IMAGE_SETS, default=list(IMAGE_SETS), help="image sets (all)"
    )
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="loaders (all)"
    )
    parser.add_argument("--batch-size", nargs="+", type=positive, default=[256], metavar="N", help="(256)")
    parser.add_argument("--workers", nargs="+", type=not_negative, default=[0, 2], metavar="N", help="(0 2)")
    parser.add_argument("--rounds", type=positive, default=3, help="how often each arm runs (3)")
    parser.add_argument("--epochs", type=positive, default=5, help="of files measured in each arm (5)")
    parser.add_argument("--tls", action="store_true", help="reach the cache by TLS, not by a unix socket")
    add_data_option(parser, photos=1024)


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all arms; ``say`` gets a line for each.

    Raises:
        SuperError: images or services cannot be had, or an arm failed.

    """
    source, from_shards = arguments.source, arguments.source == SHARDS
    names = [name for name in arguments.contenders if CONTENDERS[name].open_shards or not from_shards]
    if not names:
        able = ", ".join(name for name, form in CONTENDERS.items() if form.open_shards)
        raise BenchmarkError(f"none of these contenders reads shards; those that do: {able}")
    started = Started(arguments, with_versions(describe_machine(), [*names, BOTO3] if from_shards else names))
    sets = [prepare_images(name, arguments, say) for name in arguments.images]
    with contextlib.ExitStack() as stack:
        store = Server("", 0)
        if from_shards or any(CONTENDERS[name].served() for name in names):
            store = stack.enter_context(s3_server(data_directory(arguments.data)))
        if from_shards:
            sets = [in_shards(images, store.environment, say) for images in sets]
        cells = list(_cells(sets, names, arguments))
        runs = _runs([cell for cell in cells if not cell.missing], store, arguments, say)
    missing = {cell.form.title: cell.missing for cell in cells if cell.missing}
    absences = [f"{title}: {reason}." for title, reason in missing.items()]
    return started.report(
        image_sets=described(sets),
        method=(_METHOD, *_METHOD_OF[source], _TLS if arguments.tls else _UNIX_SOCKET, *absences),
        group_by=("images", "batch_size"),
        columns=[column for column in COLUMNS if column.name not in _NOT_SHOWN[source]],
        rows=rows_of([replace(cell, epoch=name) for cell in cells for name in EPOCHS[source]], runs),
        rounds=(run.to_mapping() for run in runs),
    )


def _cells(sets: Sequence[Loading], names: Sequence[str], arguments: argparse.Namespace) -> Iterator[Cell]:
    """The contenders last, so that those that are compared run side by side in time."""
    conditions = (sets, arguments.batch_size, arguments.workers, CONTENDERS)
    for images, batch_size, workers, contender in itertools.product(*conditions):
        if contender in names and CONTENDERS[contender].workers_of(workers) == workers:
            yield Cell(replace(images, batch_size=batch_size, num_workers=workers), contender)


def _runs(
    cells: Sequence[Cell], store: Server, arguments: argparse.Namespace, say: Callable[[str], None]
) -> list[Run[Lap]]:
    """Run the arms: over files beside one set of services, over shards SUPER's with fresh ones each time."""
    from_files = arguments.source == FILES
    runs: list[Run[Lap]] = []
    with contextlib.ExitStack() as stack:
        services = LoaderServices("", Pids(store=store.pid), store.environment)
        if from_files:
            for cell in cells:
                convert_once(cell.contender, cell.loading, say)
            services = stack.enter_context(loader_services(store=store, tls=arguments.tls))
        for number, cell in itertools.product(range(1, arguments.rounds + 1), cells):
            say(f"round {number} of {arguments.rounds}: {cell}")
            fresh = not from_files and cell.contender == SUPER_LOADER
            own = (
                loader_services(store=store, tls=arguments.tls) if fresh else contextlib.nullcontext(services)
            )
            with own as beside:
                laps = _laps(cell, beside, arguments.epochs)
            for epoch, lap in zip(EPOCHS[arguments.source], laps, strict=True):
                runs.append(Run(replace(cell, epoch=epoch).conditions(), number, lap))
            _check_same_images(runs)
    return runs


def _laps(cell: Cell, services: LoaderServices, epochs: int) -> Sequence[Lap]:
    """Measure an arm: so many epochs of files in one lap, or the first ones of shards in a lap each.

    Raises:
        BenchmarkError: they are not what the table says of them.

    """
    cold = bool(cell.loading.shards)
    if cold:
        epochs = len(EPOCHS[SHARDS])
    elif cell.form.decodes:
        epochs = 1
    loading = replace(cell.loading, coordinator=services.coordinator)
    spec = ArmSpec(cell.contender, loading, epochs, services.pids)
    laps = run_child(measure_arm, spec, name=cell.contender, environment=services.environment).laps
    expected = epochs // len(laps) * loading.images
    for lap in laps:
        if lap.images != expected:
            raise BenchmarkError(f"{cell}: {lap.images} images came instead of {expected}")
    for lap in laps[cold:]:
        if lap.produced:
            raise BenchmarkError(
                f"{cell}: functions decoded {lap.produced} samples once all was read: not all was cached"
            )
    return laps


def _check_same_images(runs: Sequence[Run[Lap]]) -> None:
    sums: dict[str, dict[int, str]] = {}
    for run in runs:
        of_set = sums.setdefault(run.conditions["images"], {})
        of_set.setdefault(run.result.checksum, run.conditions["contender"])
    for name, found in sums.items():
        if len(found) > 1:
            raise BenchmarkError(
                f"the loaders gave different pixels or labels for {name}: {sorted(found.values())}; if the "
                f"images were made again, delete what was converted from the old ones (--data)"
            )


# -------------------------------------------------------------------------------------------- figures


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table: a loader under one set of conditions, but for the coordinator's address."""

    loading: Loading
    contender: str
    epoch: str = EPOCHS[FILES][0]

    def __str__(self) -> str:
        loading = self.loading
        return f"{loading.name}, batch {loading.batch_size}, {loading.num_workers} workers, {self.form.title}"

    @property
    def form(self) -> ContenderSpec:
        """The loader."""
        return CONTENDERS[self.contender]

    @property
    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        return self.form.missing()

    def conditions(self) -> dict[str, Any]:
        """The row's first columns."""
        return {
            "images": self.loading.name,
            "batch_size": self.loading.batch_size,
            "num_workers": self.loading.num_workers,
            "contender": self.contender,
            "loader": self.form.title,
            "epoch": self.epoch,
        }


def rows_of(cells: Sequence[Cell], runs: Sequence[Run[Lap]]) -> Iterator[dict[str, Any]]:
    """A row for each cell: medians over its runs, and ratios to other rows; ``None`` where there is none."""
    rows: dict[Cell, dict[str, Any]] = {}
    for cell in cells:
        measured = [_figures(run.result) for run in runs if run.conditions == cell.conditions()]
        rows[cell] = medians(measured or [dict.fromkeys(column.name for column in COLUMNS)])
    for cell, figures in rows.items():
        row = {**figures, **cell.conditions(), "note": cell.missing, **_ratios(cell, rows)}
        if row["note"]:
            row["loader"] += ": " + row["note"].partition(":")[0]
        yield row


def _figures(lap: Lap) -> dict[str, float | None]:
    ms = 1e3 / lap.images
    return {
        "cpu_ms_per_image": ms * lap.trainer_cpu_s,
        **{f"{part}_cpu_ms_per_image": ms * getattr(lap, f"{part}_cpu_s") for part in _PARTS},
        "cpu_of_all_ms_per_image": ms * lap.cpu_of_all_s,
        "images_per_s": lap.images / lap.wall_s,
        "first_batch_ms": 1e3 * lap.first_s,
        "gets_per_image": lap.source_requests / lap.images,
    }


def _ratios(cell: Cell, rows: dict[Cell, dict[str, Any]]) -> dict[str, float | None]:
    def cpu_of(contender: str, num_workers: int) -> float | None:
        loading = replace(cell.loading, num_workers=num_workers)
        figures = rows.get(replace(cell, loading=loading, contender=contender), {})
        return figures.get("cpu_ms_per_image")

    figures = rows[cell]
    own = figures["cpu_ms_per_image"]
    beside = [
        its["images_per_s"]
        for other, its in rows.items()
        if replace(other, loading=replace(other.loading, num_workers=cell.loading.num_workers))
        == replace(cell, contender=WEBDATASET)
    ]
    return {
        "share_of_webdataset": _over(figures["images_per_s"], max(filter(None, beside), default=None)),
        "times_less_than_pillow": _over(cpu_of(PILLOW, cell.loading.num_workers), own),
        "times_socket_loop": _over(own, cpu_of(SOCKET, 0)),
    }


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
