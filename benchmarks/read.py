"""The trainer's CPU time per image, with SUPER and with other loaders: ``superdl bench read``."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.arm import ArmSpec, run_checked
from benchmarks.harness.image_sets import (
    IMAGE_SETS,
    Loading,
    add_data_option,
    add_option,
    prepare_images,
    whole,
)
from benchmarks.harness.processes import (
    BenchmarkError,
    LoaderServices,
    Pids,
    Server,
    loader_services,
    s3_server,
)
from benchmarks.harness.results import BenchmarkReport, Column, Run, check_same_images
from benchmarks.loaders.contenders import CONTENDERS, SUPER_LOADER, convert_once
from benchmarks.loaders.opening import PER_SHARD, in_shards

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

# A contender, and the images to load.
_Arm = tuple[str, Loading]

FILES, SHARDS = "files", "shards"
# The epochs that have a row.
EPOCHS = {FILES: ("later",), SHARDS: ("first", "second")}

COLUMNS = (
    Column("loader", "loader"),
    Column("epoch", "epoch"),
    Column("num_workers", "work-\ners", "d"),
    Column("reader_cpu_ms", "CPU ms\n/image", ".4f"),
    Column("main_cpu_ms", "of it\nmain", ".4f"),
    Column("workers_cpu_ms", "of it\nworkers", ".4f"),
    Column("images_per_s", "images\n/s", ",.0f"),
    Column("first_batch_ms", "first\nbatch ms", ",.0f"),
    Column("cache_cpu_ms", "beside:\ncache", ".4f"),
    Column("coordinator_cpu_ms", "coordi-\nnator", ".4f"),
    Column("functions_cpu_ms", "func-\ntions", ".4f"),
    Column("all_cpu_ms", "CPU\nof all", ".4f"),
    Column("s3_cpu_ms", "\nS3", ".3f"),
    Column("gets", "GETs\n/image", ".4f"),
)

_METHOD = (
    "CPU is the time used by the trainer's main process and its workers. Batches are read and dropped. All "
    "loaders deliver the same pixels with the same labels, which is checked by a checksum of one epoch. "
    "Each arm runs in its own process, and the arms of a round run one after another. Figures are medians "
    "over the rounds. 'CPU of all' excludes the S3 server. GETs are counted in the functions."
)
_METHOD_OF = {
    FILES: (
        "Whole epochs are measured from the second one on, when everything is cached. 'raw' loaders read "
        "decoded pixels that were converted in advance. 'RAM array' indexes an array of decoded images."
    ),
    SHARDS: (
        f"The images are in tars of {PER_SHARD} on an S3 server on this machine (rclone). The first "
        "epoch starts when the loader is opened. SUPER has fresh services each time. WebDataset opens each "
        "shard with one boto3 GET. SUPER uses a key list from `superdl index`."
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
    add_option(parser, "--batch-size", 256, "images per batch")
    add_option(parser, "--workers", [0, 2], "workers of each DataLoader", type=partial(whole, least=0))
    add_option(parser, "--rounds", 3, "number of runs of each arm")
    add_option(parser, "--epochs", 5, "epochs of files measured in each arm")
    add_data_option(parser, photos=1024)


def measure(arguments: argparse.Namespace, log: Callable[[str], None]) -> BenchmarkReport:
    """Run all arms, calling ``log`` with a line for each."""
    from_shards = arguments.source == SHARDS
    forms = {
        name: form
        for name, form in CONTENDERS.items()
        if name in arguments.contenders and (form.open_shards or not from_shards)
    }
    if not forms:
        readers = ", ".join(name for name, form in CONTENDERS.items() if form.open_shards)
        raise BenchmarkError(f"none of these contenders can read shards; choose from {readers}")
    absences = [f"{form.title}: {form.missing()}." for form in forms.values() if form.missing()]
    installed = [name for name, form in forms.items() if not form.missing()]
    sets = [prepare_images(name, arguments, log) for name in arguments.images]
    with contextlib.ExitStack() as stack:
        s3 = Server("", 0)
        if from_shards or any(forms[name].needs_s3 for name in installed):
            s3 = stack.enter_context(s3_server(Path(arguments.data)))
        if from_shards:
            sets = [in_shards(images, s3.environment, log) for images in sets]
        runs = _runs(list(_arms(sets, installed, arguments)), s3, arguments, log)
    return BenchmarkReport(
        method=(_METHOD, _METHOD_OF[arguments.source], *absences),
        group_by=("images",),
        columns=COLUMNS,
        runs=runs,
    )


def _arms(sets: Sequence[Loading], names: Sequence[str], arguments: argparse.Namespace) -> Iterator[_Arm]:
    """Yield the arms, with contenders varying fastest."""
    # Arms to compare run close together.
    for images, workers, contender in itertools.product(sets, arguments.workers, names):
        if CONTENDERS[contender].workers_of(workers) == workers:
            yield contender, replace(images, batch_size=arguments.batch_size, num_workers=workers)


def _runs(
    arms: Sequence[_Arm], s3: Server, arguments: argparse.Namespace, log: Callable[[str], None]
) -> list[Run]:
    from_files = arguments.source == FILES
    runs: list[Run] = []
    with contextlib.ExitStack() as stack:
        services = LoaderServices("", Pids(s3=s3.pid), s3.environment)
        if from_files:
            for contender, loading in arms:
                convert_once(contender, loading, log)
            services = stack.enter_context(loader_services(s3=s3))
        for number, (contender, loading) in itertools.product(range(1, arguments.rounds + 1), arms):
            name = f"{loading.name}, {loading.num_workers} workers, {contender}"
            log(f"round {number} of {arguments.rounds}: {name}")
            fresh = not from_files and contender == SUPER_LOADER
            # The first epoch of shards counts, so SUPER's cache must be empty.
            context = loader_services(s3=s3) if fresh else contextlib.nullcontext(services)
            with context as arm_services:
                spec = _spec(contender, loading, arm_services, arguments.epochs)
                laps = run_checked(spec, name, arm_services.environment)
            epochs = EPOCHS[arguments.source]
            for epoch, lap in zip(epochs, laps[-len(epochs) :], strict=True):
                conditions = {
                    "images": loading.name,
                    "num_workers": loading.num_workers,
                    "loader": CONTENDERS[contender].title,
                    "epoch": epoch,
                }
                runs.append(Run(conditions, lap.figures()))
            check_same_images(runs)
    return runs


def _spec(contender: str, loading: Loading, services: LoaderServices, epochs: int) -> ArmSpec:
    """Return an arm's spec: ``epochs`` warm epochs of files, or the first two epochs of shards."""
    form, from_shards = CONTENDERS[contender], bool(loading.shards)
    return ArmSpec(
        open=form.open_shards if form.open_shards and from_shards else form.open,
        loading=replace(loading, coordinator=services.coordinator),
        laps=(1, 1 if from_shards or form.decodes else epochs),
        pids=services.pids,
        imports=form.imports if from_shards else (),
        from_cold=from_shards,
    )
