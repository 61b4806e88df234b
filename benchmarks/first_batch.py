"""``superdl bench first-batch``: how long a training script waits for its first batch.

It decides which loaders are opened, in which state of the cache and of the services, opens each in a process
of its own, and makes figures of the times.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from importlib import import_module
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import not_negative, positive
from benchmarks.contenders import CONTENDERS, PILLOW, SUPER, SUPER_LOADER
from benchmarks.image_sets import Loading, add_image_options, described, prepare_images
from benchmarks.processes import BenchmarkError, run_child
from benchmarks.results import BenchmarkReport, Column, Run, Started, by_conditions
from benchmarks.services import loader_services

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.loading import Contender

__all__ = [
    "COLD",
    "FILES",
    "NOTHING",
    "WARM",
    "ProbeResult",
    "ProbeSpec",
    "add_arguments",
    "measure",
    "probe",
    "rows_of",
]

FILES = "files"
NOTHING = "nothing runs"
COLD = "cold"
WARM = "warm"

_MODULES = ("grpc", "grpc_health.v1.health_pb2_grpc", "superdl.sampler", "superdl.super_dataset")
"""What SUPER imports on the way to its first batch."""

_WARMING_SIDE = 32  # pixels of the images that are asked for first, so that functions are warm

_METHOD = (
    (
        "Time from iter(loader) to the first batch, in a process of its own whose modules are imported; "
        "'opening' is the time before it that making dataset, sampler and loader takes. 'next epoch' is the "
        "same from the second iter(loader) on, when everything is cached and persistent workers run."
    ),
    (
        f"'{NOTHING}': opening starts the embedded coordinator, cache and functions. '{COLD}': they run, "
        "functions have decoded (the same files for another recipe), nothing of this recipe is cached. "
        f"'{WARM}': another process has read the epoch before, everything is cached. "
        f"'{FILES}': Pillow reads files that are in the page cache. Figures are of all rounds (--rounds), "
        "each cold one with fresh services."
    ),
)

_COLUMNS = (
    Column("loader", "loader"),
    Column("num_workers", "work-\ners", "d"),
    Column("state", "state"),
    Column("first_batch_ms", "first\nbatch ms", ",.0f"),
    Column("first_batch_ms_min", "\nleast", ",.0f"),
    Column("first_batch_ms_max", "\nmost", ",.0f"),
    Column("open_ms", "opening\nms", ",.0f"),
    Column("next_epoch_ms", "next\nepoch ms", ",.0f"),
    Column("count", "times\ntaken", "d"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_image_options(parser, photos=512)
    parser.add_argument("--batch-size", type=positive, default=128, help="(128)")
    parser.add_argument("--workers", nargs="+", type=not_negative, default=[0, 2], metavar="N", help="(0 2)")
    parser.add_argument("--rounds", type=positive, default=5, help="how often each time is taken (5)")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Open the loaders; ``say`` gets a line for each.

    Raises:
        SuperError: images or services cannot be had, or a loader failed.

    """
    started = Started(arguments)
    images = prepare_images(arguments.images, arguments, say)
    runs: list[Run[ProbeResult]] = []
    for number in range(1, arguments.rounds + 1):
        for spec in _specs(images, arguments):
            say(f"round {number} of {arguments.rounds}: {spec.contender}, {spec.loading.num_workers} workers")
            for state, result in _in_all_states(spec):
                _check(spec, state, result, images)
                conditions = {"contender": spec.contender, "num_workers": spec.loading.num_workers}
                runs.append(Run({**conditions, "state": state}, number, result))
    group = {"images": images.name, "batch_size": arguments.batch_size}
    return started.report(
        image_sets=described([images]),
        method=_METHOD,
        group_by=tuple(group),
        columns=_COLUMNS,
        rows=({**group, **row} for row in rows_of(runs)),
        rounds=(run.to_mapping() for run in runs),
    )


def _specs(images: Loading, arguments: argparse.Namespace) -> Iterator[ProbeSpec]:
    for contender in (PILLOW, SUPER, SUPER_LOADER):
        for workers in arguments.workers:
            if CONTENDERS[contender].workers_of(workers) == workers:
                loading = replace(images, batch_size=arguments.batch_size, num_workers=workers)
                yield ProbeSpec(contender, loading)


def _in_all_states(spec: ProbeSpec) -> Iterator[tuple[str, ProbeResult]]:
    def probed(loading: Loading) -> ProbeResult:
        return run_child(probe, replace(spec, loading=loading), name=spec.contender)

    if spec.contender == PILLOW:
        yield FILES, probed(spec.loading)
        return
    yield NOTHING, probed(spec.loading)
    with loader_services() as services:
        running = replace(spec.loading, coordinator=services.coordinator)
        probed(replace(running, resize=_WARMING_SIDE, crop=_WARMING_SIDE))
        yield COLD, probed(running)
        yield WARM, probed(running)


def _check(spec: ProbeSpec, state: str, result: ProbeResult, images: Loading) -> None:
    """A figure that is not of what it says is worse than none."""
    if result.images != images.images:
        raise BenchmarkError(f"{spec.contender}: {result.images} images came instead of {images.images}")
    if (result.produced > 0) != (state in (NOTHING, COLD)):
        raise BenchmarkError(f"{spec.contender}, {state}: functions decoded {result.produced} samples")


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """Which loader is opened, and on what."""

    contender: str
    loading: Loading


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Seconds to make the loader, from ``iter(loader)`` to the first batch, and the same in the next epoch.

    ``produced`` counts the samples that functions decoded in the first epoch.
    """

    open_s: float
    first_batch_s: float
    next_epoch_s: float
    images: int
    produced: int


def probe(spec: ProbeSpec) -> ProbeResult:
    """Open the loader in this process and take the times; modules are imported before the clock starts."""
    for module in _MODULES:
        import_module(module)
    began_s = time.perf_counter()
    contender = CONTENDERS[spec.contender].open(spec.loading)
    opened_s = time.perf_counter()
    try:
        first_batch_s, images = _epoch(contender)
        produced = contender.produced()
        next_epoch_s, _ = _epoch(contender)
    finally:
        contender.close()
    return ProbeResult(opened_s - began_s, first_batch_s, next_epoch_s, images, produced)


def _epoch(contender: Contender) -> tuple[float, int]:
    """Seconds from ``iter`` to the first batch, and how many images the epoch had."""
    began_s = time.perf_counter()
    batches = iter(contender)
    _, labels = next(batches)
    first_batch_s = time.perf_counter() - began_s
    return first_batch_s, len(labels) + sum(len(more) for _, more in batches)


def rows_of(runs: Sequence[Run[ProbeResult]]) -> Iterator[dict[str, Any]]:
    """A row for each loader in each state: medians, and the spread of the first batch."""
    for conditions, results in by_conditions(runs):
        yield {
            **conditions,
            "loader": CONTENDERS[conditions["contender"]].title,
            "count": len(results),
            "first_batch_ms": 1e3 * median(one.first_batch_s for one in results),
            "first_batch_ms_min": 1e3 * min(one.first_batch_s for one in results),
            "first_batch_ms_max": 1e3 * max(one.first_batch_s for one in results),
            "open_ms": 1e3 * median(one.open_s for one in results),
            "next_epoch_ms": 1e3 * median(one.next_epoch_s for one in results),
        }
