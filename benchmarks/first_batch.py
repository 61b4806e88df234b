"""``superdl bench first-batch``: how long a training script waits for its first batch.

It decides which loaders are opened, in which state of the cache and of the services, and makes figures of the
times. Taking them is :mod:`benchmarks.first_batch_probe`'s.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import CONTENDERS, PILLOW, SUPER, SUPER_LOADER
from benchmarks.errors import BenchmarkError
from benchmarks.first_batch_probe import ProbeResult, ProbeSpec, run_probe
from benchmarks.image_sets import IMAGE_SETS, ImageSet, data_directory, prepare_images
from benchmarks.loading import Loading
from benchmarks.options import not_negative, positive
from benchmarks.report import BenchmarkReport, Column, describe_machine
from benchmarks.services import Services

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["COLD", "FILES", "NOTHING", "WARM", "Taken", "add_arguments", "measure", "rows_of"]

FILES = "files"
NOTHING = "nothing runs"
COLD = "cold"
WARM = "warm"

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
    parser.add_argument("--images", choices=IMAGE_SETS, default="photos", help="image set (photos)")
    parser.add_argument("--photos", type=positive, default=512, help="images of the set photos (512)")
    parser.add_argument("--batch-size", type=positive, default=128, help="(128)")
    parser.add_argument("--workers", nargs="+", type=not_negative, default=[0, 2], metavar="N", help="(0 2)")
    parser.add_argument("--rounds", type=positive, default=5, help="how often each time is taken (5)")
    parser.add_argument(
        "--data", metavar="DIR", help="where image sets are kept (below the temporary directory)"
    )


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Open the loaders; ``say`` is told what happens.

    Raises:
        SuperError: images or services cannot be had, or a loader failed.

    """
    began_s, started_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    environment = describe_machine()
    say("preparing images")
    images = prepare_images(arguments.images, data_directory(arguments.data), arguments.photos)
    taken: list[Taken] = []
    for number in range(1, arguments.rounds + 1):
        for spec in _specs(images, arguments):
            say(f"round {number} of {arguments.rounds}: {spec.contender}, {spec.loading.num_workers} workers")
            for state, result in _in_all_states(spec):
                _check(spec, state, result, images)
                taken.append(Taken(number, spec.contender, spec.loading.num_workers, state, result))
    group = {"images": images.name, "batch_size": arguments.batch_size}
    return BenchmarkReport(
        benchmark="first-batch",
        started_at=started_at,
        wall_s=time.perf_counter() - began_s,
        settings={
            "image_sets": {images.name: {"about": images.about, "images": images.images}},
            **{name: getattr(arguments, name) for name in ("batch_size", "workers", "rounds")},
        },
        method=_METHOD,
        group_by=tuple(group),
        columns=_COLUMNS,
        rows=tuple({**group, **row} for row in rows_of(taken)),
        rounds=tuple(asdict(one) for one in taken),
        environment=environment,
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """One probe, done."""

    round: int
    contender: str
    num_workers: int
    state: str
    result: ProbeResult


def rows_of(taken: Sequence[Taken]) -> Iterator[dict[str, Any]]:
    """A row for each loader in each state: medians, and the spread of the first batch."""
    for contender, num_workers, state in dict.fromkeys(
        (one.contender, one.num_workers, one.state) for one in taken
    ):
        some = [
            one.result
            for one in taken
            if (one.contender, one.num_workers, one.state) == (contender, num_workers, state)
        ]
        yield {
            "contender": contender,
            "loader": CONTENDERS[contender].title,
            "num_workers": num_workers,
            "state": state,
            "count": len(some),
            "first_batch_ms": 1e3 * median(one.first_batch_s for one in some),
            "first_batch_ms_min": 1e3 * min(one.first_batch_s for one in some),
            "first_batch_ms_max": 1e3 * max(one.first_batch_s for one in some),
            "open_ms": 1e3 * median(one.open_s for one in some),
            "next_epoch_ms": 1e3 * median(one.next_epoch_s for one in some),
        }


def _specs(images: ImageSet, arguments: argparse.Namespace) -> Iterator[ProbeSpec]:
    for contender in (PILLOW, SUPER, SUPER_LOADER):
        kind = CONTENDERS[contender]
        for workers in arguments.workers:
            if kind.workers.allow(workers):
                yield ProbeSpec(
                    contender,
                    Loading(
                        directory=images.directory,
                        converted=images.converted,
                        resize=images.resize,
                        crop=images.crop,
                        batch_size=arguments.batch_size,
                        num_workers=workers,
                    ),
                )


def _in_all_states(spec: ProbeSpec) -> Iterator[tuple[str, ProbeResult]]:
    if spec.contender == PILLOW:
        yield FILES, run_probe(spec)
        return
    yield NOTHING, run_probe(spec)
    with Services.start("first-batch") as services:
        running = replace(spec, loading=replace(spec.loading, coordinator=services.coordinator))
        other = replace(running.loading, resize=_WARMING_SIDE, crop=_WARMING_SIDE)
        run_probe(replace(running, loading=other))
        yield COLD, run_probe(running)
        yield WARM, run_probe(running)


def _check(spec: ProbeSpec, state: str, result: ProbeResult, images: ImageSet) -> None:
    """A figure that is not of what it says is worse than none."""
    if result.images != images.images:
        raise BenchmarkError(f"{spec.contender}: {result.images} images came instead of {images.images}")
    if (result.produced > 0) != (state in (NOTHING, COLD)):
        raise BenchmarkError(f"{spec.contender}, {state}: functions decoded {result.produced} samples")
