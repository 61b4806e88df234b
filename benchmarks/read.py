"""``superdl bench read``: what a trainer's own processes spend per image, with SUPER and with what users
would otherwise pick.

It decides which arms there are and in which order they run. An arm itself is :mod:`benchmarks.arm`'s, the
loaders are :mod:`benchmarks.contenders`'s, what becomes of the measurements :mod:`benchmarks.read_figures`'s.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from benchmarks.arm import ArmResult, ArmSpec, run_arm
from benchmarks.contenders import CONTENDERS
from benchmarks.conversion import convert_once
from benchmarks.errors import BenchmarkError
from benchmarks.image_sets import IMAGE_SETS, ImageSet, data_directory, prepare_images
from benchmarks.loading import Loading
from benchmarks.object_store import ObjectStore, object_store
from benchmarks.options import not_negative, positive
from benchmarks.read_figures import COLUMNS, Cell, Run, rows_of
from benchmarks.report import BenchmarkReport, describe_machine
from benchmarks.services import Services
from benchmarks.tls_services import tls_services
from benchmarks.versions import with_versions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["add_arguments", "measure"]

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
        "cost a tenth. '1 copy' indexes into shared memory at once. The 'bare socket loop' "
        "gathers the same values from the same cache into one buffer and checks nothing. SuperLoader, FFCV "
        "and the socket loop have no worker processes."
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
    parser.add_argument("--photos", type=positive, default=1024, help="images of the set photos (1024)")
    parser.add_argument("--tls", action="store_true", help="reach the cache by TLS, not by a unix socket")
    parser.add_argument(
        "--data", metavar="DIR", help="where image sets are kept (below the temporary directory)"
    )


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all arms; ``say`` is told what happens.

    Raises:
        SuperError: images or services cannot be had, or an arm failed.

    """
    began_s, started_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    environment = with_versions(describe_machine(), arguments.contenders)
    say("preparing images")
    directory = data_directory(arguments.data)
    sets = [prepare_images(name, directory, arguments.photos) for name in arguments.images]
    cells = list(_cells(sets, arguments.batch_size, arguments.workers, arguments.contenders))
    present = [cell for cell in cells if not cell.missing]
    _convert(present, say)
    runs: list[Run] = []
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(tls_services() if arguments.tls else Services.start("read"))
        wants_store = any(cell.kind.needs_store for cell in present)
        store = stack.enter_context(object_store(directory)) if wants_store else None
        for number, cell in itertools.product(range(1, arguments.rounds + 1), present):
            say(f"round {number} of {arguments.rounds}: {cell}")
            epochs = 1 if cell.kind.decodes else arguments.epochs
            result = run_arm(_spec(cell, epochs, services, store), services.environment)
            _check(cell, result, epochs)
            runs.append(Run(number, cell, result))
            _check_same_images(runs)
    return BenchmarkReport(
        benchmark="read",
        started_at=started_at,
        wall_s=time.perf_counter() - began_s,
        settings={
            "image_sets": {one.name: {"about": one.about, "images": one.images} for one in sets},
            "contenders": arguments.contenders,
            "batch_sizes": arguments.batch_size,
            "num_workers": arguments.workers,
            "rounds": arguments.rounds,
            "epochs": arguments.epochs,
            "tls": arguments.tls,
        },
        method=(*_METHOD, _TLS if arguments.tls else _UNIX_SOCKET, *_absences(cells)),
        group_by=("images", "batch_size"),
        columns=COLUMNS,
        rows=tuple(rows_of(cells, runs)),
        rounds=tuple(run.to_mapping() for run in runs),
        environment=environment,
    )


def _cells(
    sets: Sequence[ImageSet],
    batch_sizes: Sequence[int],
    num_workers: Sequence[int],
    contenders: Sequence[str],
) -> Iterator[Cell]:
    """The contenders last, so that those that are compared run side by side in time."""
    for images, batch_size, workers, contender in itertools.product(
        sets, batch_sizes, num_workers, CONTENDERS
    ):
        if contender in contenders and CONTENDERS[contender].workers.allow(workers):
            yield Cell(images, batch_size, workers, contender)


def _spec(cell: Cell, epochs: int, services: Services, store: ObjectStore | None) -> ArmSpec:
    loading = _loading(cell, services.coordinator, "" if store is None else store.url)
    pids = (services.cache_pid, services.coordinator_pid, 0 if store is None else store.pid)
    return ArmSpec(cell.contender, loading, epochs, *pids)


def _loading(cell: Cell, coordinator: str = "", store: str = "") -> Loading:
    return Loading(
        directory=cell.images.directory,
        converted=cell.images.converted,
        resize=cell.images.resize,
        crop=cell.images.crop,
        batch_size=cell.batch_size,
        num_workers=cell.num_workers,
        coordinator=coordinator,
        store=store,
    )


def _convert(cells: Sequence[Cell], say: Callable[[str], None]) -> None:
    for cell in cells:
        convert_once(cell.contender, _loading(cell), say)


def _check(cell: Cell, result: ArmResult, epochs: int) -> None:
    """A figure that is not of what it says is worse than none."""
    if result.images != epochs * cell.images.images:
        raise BenchmarkError(
            f"{cell}: {result.images} images came instead of {epochs} times {cell.images.images}"
        )
    if result.produced:
        raise BenchmarkError(
            f"{cell}: functions decoded {result.produced} samples in the measured epochs: not all was cached"
        )


def _check_same_images(runs: Sequence[Run]) -> None:
    sums: dict[str, dict[int, str]] = {}
    for run in runs:
        sums.setdefault(run.cell.images.name, {}).setdefault(run.result.checksum, run.cell.contender)
    for name, found in sums.items():
        if len(found) > 1:
            raise BenchmarkError(
                f"the loaders gave different pixels or labels for {name}: {sorted(found.values())}; if the "
                f"images were made anew, delete what was converted from the old ones (--data)"
            )


def _absences(cells: Sequence[Cell]) -> list[str]:
    """A line for each loader that could not run."""
    missing = {cell.kind.title: cell.missing for cell in cells if cell.missing}
    return [f"{title}: {reason}." for title, reason in missing.items()]
