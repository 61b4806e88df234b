"""``superdl bench read``: what a trainer's own processes spend per image, with SUPER and with what users
would otherwise pick.

It decides which arms there are and in which order they run, and makes figures of what they measured. An arm
itself is :mod:`benchmarks.arm`'s, the loaders are :mod:`benchmarks.contenders`'s.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import not_negative, positive
from benchmarks.arm import ArmSpec, Lap, measure_arm
from benchmarks.contenders import (
    BOTO3,
    CONTENDERS,
    PILLOW,
    RAM,
    SOCKET,
    ContenderSpec,
    convert_once,
    with_versions,
)
from benchmarks.image_sets import IMAGE_SETS, add_data_option, data_directory, described, prepare_images
from benchmarks.processes import BenchmarkError, run_child
from benchmarks.results import BenchmarkReport, Column, Run, Started, describe_machine
from benchmarks.services import cache_server, coordinator_services, s3_server, tls_cache

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.image_sets import Loading

__all__ = ["COLUMNS", "Cell", "add_arguments", "measure", "rows_of"]

COLUMNS = (
    Column("num_workers", "work-\ners", "d"),
    Column("loader", "loader"),
    Column("cpu_ms_per_image", "CPU ms\n/image", ".4f"),
    Column("main_cpu_ms_per_image", "of it\nmain", ".4f"),
    Column("workers_cpu_ms_per_image", "of it\nworkers", ".4f"),
    Column("images_per_s", "images\n/s", ",.0f"),
    Column("times_less_than_pillow", "less than\nPillow", ".1f"),
    Column("times_less_than_boto3", "\nboto3", ".1f"),
    Column("times_ram_array", "times\nRAM", ".2f"),
    Column("times_socket_loop", "times\nsocket", ".2f"),
    Column("cache_cpu_ms_per_image", "beside:\ncache", ".4f"),
    Column("coordinator_cpu_ms_per_image", "coordi-\nnator", ".4f"),
    Column("functions_cpu_ms_per_image", "func-\ntions", ".4f"),
    Column("store_cpu_ms_per_image", "\nS3", ".3f"),
)

_PARTS = ("main", "workers", "cache", "coordinator", "functions", "store")


_METHOD = (
    (
        "CPU is user and system time of the trainer's main process, all threads, and of its worker "
        "processes, over whole epochs (--epochs; one epoch of loaders that decode) from the second one on, "
        "when everything is cached. The first epoch, and with it start-up and imports, is left out for every "
        "loader alike. Batches are taken and dropped: nothing is computed, and the trainer touches no pixel."
    ),
    (
        "Each arm runs in a process of its own, the arms of a round one after another, with one set of "
        "services for all. Figures are medians over the rounds (--rounds)."
    ),
    (
        "'less than' is the CPU of that DataLoader, with the same images, workers and batch size, over this "
        "row's; 'times' is this row's over that of the RAM array with the same workers, and over that of the "
        "bare socket loop in the main process. Cache, coordinator, functions and S3 server are processes of "
        "their own, on other machines where there are any: their CPU is not in the trainer's."
    ),
    (
        "'raw' loaders read decoded pixels that were converted before; conversion is not measured. All "
        "loaders deliver the same pixels with the same labels: a checksum of the first epoch is compared. "
        "'RAM array' indexes a tensor of decoded images, batch by batch; with workers, torch copies each "
        "batch into shared memory. 'numpy' indexes an array: numpy asks for huge pages, whose page faults "
        "cost a tenth. The 'bare socket loop' gathers the same values from the same cache into one buffer "
        "and checks nothing. SuperLoader, FFCV and the socket loop have no worker processes."
    ),
)

_TLS = (
    "The cache is reached by TLS over loopback, its certificate verified; the process that speaks TLS for "
    "the cache server is in no column."
)
_UNIX_SOCKET = "The cache is reached by a unix socket."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--images", nargs="+", choices=IMAGE_SETS, default=list(IMAGE_SETS), help="image sets (all)"
    )
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="loaders (all)"
    )
    parser.add_argument("--batch-size", nargs="+", type=positive, default=[256], metavar="N", help="(256)")
    parser.add_argument("--workers", nargs="+", type=not_negative, default=[0, 2], metavar="N", help="(0 2)")
    parser.add_argument("--rounds", type=positive, default=3, help="how often each arm runs (3)")
    parser.add_argument("--epochs", type=positive, default=5, help="epochs measured in each arm (5)")
    parser.add_argument("--tls", action="store_true", help="reach the cache by TLS, not by a unix socket")
    add_data_option(parser, photos=1024)


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all arms; ``say`` gets a line for each.

    Raises:
        SuperError: images or services cannot be had, or an arm failed.

    """
    started = Started(arguments, with_versions(describe_machine(), arguments.contenders))
    sets = [prepare_images(name, arguments, say) for name in arguments.images]
    cells = list(_cells(sets, arguments))
    present = [cell for cell in cells if not cell.missing]
    for cell in present:
        convert_once(cell.contender, cell.loading, say)
    runs: list[Run[Lap]] = []
    with contextlib.ExitStack() as stack:
        cache = stack.enter_context(tls_cache() if arguments.tls else cache_server())
        services = stack.enter_context(coordinator_services(cache))
        environment, pids = dict(services.environment), services.pids
        if any(cell.form.needs_store for cell in present):
            store = stack.enter_context(s3_server(data_directory(arguments.data)))
            environment, pids = {**environment, **store.environment}, replace(pids, store=store.pid)
        for number, cell in itertools.product(range(1, arguments.rounds + 1), present):
            say(f"round {number} of {arguments.rounds}: {cell}")
            epochs = 1 if cell.form.decodes else arguments.epochs
            loading = replace(cell.loading, coordinator=services.coordinator)
            spec = ArmSpec(cell.contender, loading, epochs, pids)
            result = run_child(measure_arm, spec, name=cell.contender, environment=environment)
            _check(cell, result, epochs)
            runs.append(Run(cell.conditions(), number, result))
            _check_same_images(runs)
    missing = {cell.form.title: cell.missing for cell in cells if cell.missing}
    absences = [f"{title}: {reason}." for title, reason in missing.items()]
    return started.report(
        image_sets=described(sets),
        method=(*_METHOD, _TLS if arguments.tls else _UNIX_SOCKET, *absences),
        group_by=("images", "batch_size"),
        columns=COLUMNS,
        rows=rows_of(cells, runs),
        rounds=(run.to_mapping() for run in runs),
    )


def _cells(sets: Sequence[Loading], arguments: argparse.Namespace) -> Iterator[Cell]:
    """The contenders last, so that those that are compared run side by side in time."""
    conditions = (sets, arguments.batch_size, arguments.workers, CONTENDERS)
    for images, batch_size, workers, contender in itertools.product(*conditions):
        if contender in arguments.contenders and CONTENDERS[contender].workers_of(workers) == workers:
            yield Cell(replace(images, batch_size=batch_size, num_workers=workers), contender)


def _check(cell: Cell, result: Lap, epochs: int) -> None:
    """A figure that is not of what it says is worse than none."""
    if result.images != epochs * cell.loading.images:
        raise BenchmarkError(
            f"{cell}: {result.images} images came instead of {epochs} times {cell.loading.images}"
        )
    if result.produced:
        raise BenchmarkError(
            f"{cell}: functions decoded {result.produced} samples in the measured epochs: not all was cached"
        )


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
        }


def rows_of(cells: Sequence[Cell], runs: Sequence[Run[Lap]]) -> Iterator[dict[str, Any]]:
    """A row for each cell: medians over its runs, and ratios to other rows; ``None`` where there is none."""
    medians = {
        cell: _figures([run.result for run in runs if run.conditions == cell.conditions()]) for cell in cells
    }
    for cell, figures in medians.items():
        row = {**cell.conditions(), "note": cell.missing, **figures, **_ratios(cell, medians)}
        if row["note"]:
            row["loader"] += ": " + row["note"].partition(":")[0]
        yield row


def _figures(results: Sequence[Lap]) -> dict[str, float | None]:
    if not results:
        names = ["cpu_ms_per_image", "cpu_ms_per_image_min", "cpu_ms_per_image_max", "images_per_s"]
        return dict.fromkeys([*names, *(f"{part}_cpu_ms_per_image" for part in _PARTS)])
    trainer = [1e3 * (one.main_cpu_s + one.workers_cpu_s) / one.images for one in results]
    return {
        "cpu_ms_per_image": median(trainer),
        "cpu_ms_per_image_min": min(trainer),
        "cpu_ms_per_image_max": max(trainer),
        "images_per_s": median(one.images / one.wall_s for one in results),
        **{
            f"{part}_cpu_ms_per_image": median(
                1e3 * getattr(one, f"{part}_cpu_s") / one.images for one in results
            )
            for part in _PARTS
        },
    }


def _ratios(cell: Cell, medians: dict[Cell, dict[str, float | None]]) -> dict[str, float | None]:
    def cpu_of(contender: str, num_workers: int) -> float | None:
        other = Cell(replace(cell.loading, num_workers=num_workers), contender)
        return medians.get(other, {}).get("cpu_ms_per_image")

    own, workers = medians[cell]["cpu_ms_per_image"], cell.loading.num_workers
    return {
        "times_less_than_pillow": _over(cpu_of(PILLOW, workers), own),
        "times_less_than_boto3": _over(cpu_of(BOTO3, workers), own),
        "times_ram_array": _over(own, cpu_of(RAM, workers)),
        "times_socket_loop": _over(own, cpu_of(SOCKET, 0)),
    }


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
