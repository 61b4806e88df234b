"""``superdl bench function``: what the function costs per image, beside a bare loop that decodes the same.

It decides which arms there are, on which cores, and makes figures and dollars of what they measured. Arms and
cold start are :mod:`benchmarks.function_arm`'s.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import positive
from benchmarks.function_arm import (
    BARE,
    FILES,
    S3,
    FunctionArmResult,
    FunctionArmSpec,
    cold_start_s,
    run_arm,
    s3_event,
)
from benchmarks.image_sets import IMAGE_SETS, add_data_option, described, prepare_images
from benchmarks.processes import held_to, usable_cores
from benchmarks.results import BenchmarkReport, Column, Run, Started, by_conditions
from benchmarks.services import cache_server, s3_server
from superdl.coordinator.executors.price_table import load_prices
from superdl.lambda_prefetch.settings import LAMBDA_MB_PER_CORE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.image_sets import Loading

__all__ = ["add_arguments", "measure"]

_WAYS = (BARE, FILES, S3)
_SAMPLES_PER_REQUEST = 64  # of the dollars: few, so that invocations are not undercounted

_COLUMNS = (
    Column("way", "way"),
    Column("images_per_s", "\nimages/s", ",.0f"),
    Column("share_of_bare", "share\nof bare", ".2f"),
    Column("busy", "cores\nbusy", ".2f"),
    Column("images_per_cpu_s", "images\n/CPU s", ",.0f"),
    Column("cpu_share_of_bare", "share\nof bare", ".2f"),
    Column("cpu_ms_per_image", "CPU ms\n/image", ".3f"),
    Column("fetch_cpu_ms_per_image", "of it\nfetch", ".3f"),
    Column("decode_cpu_ms_per_image", "of it\ndecode", ".3f"),
    Column("push_cpu_ms_per_image", "of it\npush", ".3f"),
    Column("usd_per_million", "$ per\nmillion", ".3f"),
    Column("usd_compute_per_million", "of it\ncompute", ".3f"),
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
    say("starting cold")
    cold = _cold_starts(sets[0])
    return started.report(
        image_sets=described(sets),
        samples_per_request=_SAMPLES_PER_REQUEST,
        lambda_mb_per_core=LAMBDA_MB_PER_CORE,
        cold_start_s=cold,
        method=(*_METHOD, _dollars_line(), _cold_line(cold)),
        group_by=("images", "cores"),
        columns=_COLUMNS,
        rows=_rows(runs),
        rounds=(run.to_mapping() for run in runs),
    )


def _measure_cores(
    images: Loading, usable: Sequence[int], count: int, rounds: int, passes: int, say: Callable[[str], None]
) -> Iterator[Run[FunctionArmResult]]:
    mine, others = tuple(usable[:count]), tuple(usable[count:])
    with _servers(images, others or mine) as (cache, environment):
        for number in range(1, rounds + 1):
            for way in _WAYS:
                say(f"round {number} of {rounds}: {images.name}, {count} cores, {way}")
                spec = FunctionArmSpec(way, images, cache, mine, passes)
                conditions = {"images": images.name, "cores": count, "way": way}
                yield Run(conditions, number, run_arm(spec, environment))


@contextlib.contextmanager
def _servers(images: Loading, cores: Sequence[int]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The cache's address, and what a function needs in its environment; servers are held to ``cores``."""
    with contextlib.ExitStack() as stack:
        with held_to(cores):  # what is started here stays there
            cache = stack.enter_context(cache_server())
            store = stack.enter_context(s3_server(Path(images.directory).parent))
        yield cache.address, store.environment


def _cold_starts(images: Loading) -> dict[str, float]:
    with _servers(images, usable_cores(1, "this benchmark holds processes to cores")) as (cache, environment):
        event = s3_event(images, cache, count=1)
        return {
            "answer a warm event": cold_start_s(None, environment),
            "produce one object of S3": cold_start_s(event, environment),
        }


def _rows(runs: Sequence[Run[FunctionArmResult]]) -> Iterator[dict[str, Any]]:
    groups = by_conditions(runs)
    bare = {(one["images"], one["cores"]): results for one, results in groups if one["way"] == BARE}
    for one, results in groups:
        yield {**one, **_figures(results, bare[one["images"], one["cores"]], one["cores"], one["way"])}


def _figures(
    results: Sequence[FunctionArmResult], bare: Sequence[FunctionArmResult], cores: int, way: str
) -> dict[str, Any]:
    def per_s(ones: Sequence[FunctionArmResult]) -> float:
        return median(one.images / one.wall_s for one in ones)

    def per_cpu_s(ones: Sequence[FunctionArmResult]) -> float:
        return median(one.images / one.cpu_s for one in ones)

    decode = [one.cpu_s - one.fetch_cpu_s - one.push_cpu_s for one in results]
    function = way != BARE
    compute_usd = _compute_usd(cores / per_s(results))
    return {
        "images_per_s": per_s(results),
        "share_of_bare": per_s(results) / per_s(bare) if function else None,
        "busy": median(one.cpu_s / one.wall_s for one in results),
        "images_per_cpu_s": per_cpu_s(results),
        "cpu_share_of_bare": per_cpu_s(results) / per_cpu_s(bare) if function else None,
        "cpu_ms_per_image": 1e3 / per_cpu_s(results),
        "fetch_cpu_ms_per_image": median(1e3 * one.fetch_cpu_s / one.images for one in results),
        "decode_cpu_ms_per_image": median(
            1e3 * cpu_s / one.images for cpu_s, one in zip(decode, results, strict=True)
        ),
        "push_cpu_ms_per_image": median(1e3 * one.push_cpu_s / one.images for one in results),
        "usd_per_million": compute_usd + _requests_usd(s3=way == S3) if function else None,
        "usd_compute_per_million": compute_usd if function else None,
    }


def _compute_usd(core_s_per_image: float) -> float:
    """Dollars for a million images at Lambda's price of memory, of which a core comes with 1,769 MB."""
    return 1e6 * core_s_per_image * LAMBDA_MB_PER_CORE / 1024 * load_prices().of("lambda").gb_s


def _requests_usd(*, s3: bool) -> float:
    """Dollars for a million images: invocations, and a GET for each."""
    prices = load_prices().of("lambda")
    return 1e6 * (prices.invocation / _SAMPLES_PER_REQUEST + (prices.source_request if s3 else 0.0))


def _dollars_line() -> str:
    table = load_prices()
    return (
        f"Dollars are for a million images on AWS Lambda ({table.region}, {table.date}, arm64), "
        f"if its cores are as fast as these: {LAMBDA_MB_PER_CORE:,} MB for each core for as long as the "
        f"function took, an invocation for {_SAMPLES_PER_REQUEST} samples, and a GET for each from S3."
    )


def _cold_line(cold: dict[str, float]) -> str:
    parts = ", ".join(f"{seconds:.2f} s to {what}" for what, seconds in cold.items())
    return f"A fresh process takes {parts}, at best, Python's own start and end included."
