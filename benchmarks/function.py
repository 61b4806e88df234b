"""``superdl bench function``: what the function costs per image, beside a bare loop that decodes the same.

It decides which arms there are, on which cores, and makes figures of what they measured. Arms are
:mod:`benchmarks.function_arm`'s.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import positive
from benchmarks.function_arm import BARE, FILES, S3, FunctionArmResult, FunctionArmSpec, run_arm
from benchmarks.image_sets import IMAGE_SETS, add_data_option, described, prepare_images
from benchmarks.processes import held_to, usable_cores
from benchmarks.results import BenchmarkReport, Column, Run, Started, by_conditions, medians
from benchmarks.services import cache_server, s3_server

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.image_sets import Loading

__all__ = ["add_arguments", "measure", "rows_of"]

_WAYS = (BARE, FILES, S3)

_COLUMNS = (
    Column("way", "way"),
    Column("images_per_s", "\nimages/s", ",.0f"),
    Column("share_of_bare", "share\nof bare", ".2f"),
    Column("busy", "cores\nbusy", ".2f"),
    Column("cpu_share_of_bare", "share\nof bare", ".2f"),
    Column("cpu_ms_per_image", "CPU ms\n/image", ".3f"),
    Column("fetch_cpu_ms_per_image", "of it\nfetch", ".3f"),
    Column("decode_cpu_ms_per_image", "of it\ndecode", ".3f"),
    Column("push_cpu_ms_per_image", "of it\npush", ".3f"),
)

_METHOD = (
    (
        "Each arm is a fresh process that is held to so many cores, one after another; S3 server (rclone) "
        "and cache (Valkey) are held to the other cores where there are any. The first pass over the images "
        "is not counted. Figures are medians over the rounds."
    ),
    (
        f"{BARE}: decode and resize of bytes that are in memory, a thread for each core, nothing kept. The "
        "others are whole calls of the handler for all images of the set, with as many decoders: from files, "
        f"and from {S3}. 'share of bare' is of the bare loop's images/s, then of its images per CPU second; "
        "where 'cores busy' is below the number of cores, the function waited for the servers. Fetch and "
        "push are the CPU of those threads, decode is the rest."
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--images", nargs="+", choices=IMAGE_SETS, default=["photos", "digits"], help="image sets (all)"
    )
    parser.add_argument("--cores", nargs="+", type=positive, default=[1, 2], metavar="N", help="(1 2)")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds that count (3)")
    parser.add_argument("--passes", type=positive, default=2, help="passes over the images in each arm (2)")
    add_data_option(parser, photos=256)


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all arms; ``say`` gets a line for each.

    Raises:
        SuperError: images or servers cannot be had, or an arm failed.

    """
    started = Started(arguments)
    most = max(arguments.cores)
    usable = usable_cores(most, f"--cores asks for {most}, to which this benchmark holds a process")
    sets = [prepare_images(name, arguments, say) for name in arguments.images]
    runs: list[Run[FunctionArmResult]] = []
    for images in sets:
        for count in arguments.cores:
            runs += _measure_cores(images, usable, count, arguments.rounds, arguments.passes, say)
    return started.report(
        image_sets=described(sets),
        method=_METHOD,
        group_by=("images", "cores"),
        columns=_COLUMNS,
        rows=rows_of(runs),
        rounds=(run.to_mapping() for run in runs),
    )


def _measure_cores(
    images: Loading, usable: Sequence[int], count: int, rounds: int, passes: int, say: Callable[[str], None]
) -> Iterator[Run[FunctionArmResult]]:
    mine, others = tuple(usable[:count]), tuple(usable[count:])
    with contextlib.ExitStack() as stack:
        with held_to(others or mine):  # what is started here stays there
            cache = stack.enter_context(cache_server())
            store = stack.enter_context(s3_server(Path(images.directory).parent))
        for number in range(1, rounds + 1):
            for way in _WAYS:
                say(f"round {number} of {rounds}: {images.name}, {count} cores, {way}")
                spec = FunctionArmSpec(way, images, cache.address, mine, passes)
                conditions = {"images": images.name, "cores": count, "way": way}
                yield Run(conditions, number, run_arm(spec, store.environment))


def rows_of(runs: Sequence[Run[FunctionArmResult]]) -> Iterator[dict[str, Any]]:
    """Medians over the rounds of each way, with shares of the bare loop on as many cores."""
    groups = [
        (conditions, medians([_figures(result) for result in results]))
        for conditions, results in by_conditions(runs)
    ]
    loops = {(some["images"], some["cores"]): figures for some, figures in groups if some["way"] == BARE}
    for conditions, figures in groups:
        loop = loops[conditions["images"], conditions["cores"]]
        shares = {
            "share_of_bare": figures["images_per_s"] / loop["images_per_s"],
            "cpu_share_of_bare": loop["cpu_ms_per_image"] / figures["cpu_ms_per_image"],
        }
        if conditions["way"] == BARE:
            shares = dict.fromkeys(shares)
        yield {**conditions, **figures, **shares}


def _figures(result: FunctionArmResult) -> dict[str, float | None]:
    ms = 1e3 / result.images
    return {
        "images_per_s": result.images / result.wall_s,
        "busy": result.cpu_s / result.wall_s,
        "cpu_ms_per_image": ms * result.cpu_s,
        "fetch_cpu_ms_per_image": ms * result.fetch_cpu_s,
        "decode_cpu_ms_per_image": ms * (result.cpu_s - result.fetch_cpu_s - result.push_cpu_s),
        "push_cpu_ms_per_image": ms * result.push_cpu_s,
    }
