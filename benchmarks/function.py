"""The function's cost per image, compared with a bare loop: ``superdl bench function``."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.image_sets import IMAGE_SETS, add_data_option, add_option, described, prepare_images
from benchmarks.harness.processes import (
    BenchmarkError,
    cache_server,
    held_to,
    run_child,
    s3_server,
    usable_cores,
)
from benchmarks.harness.results import BenchmarkReport, Column, Run, by_conditions, medians
from superdl.coordinator.catalog import list_source
from superdl.lambda_prefetch.handler import handler
from superdl.lambda_prefetch.transforms import Program
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Limits, PrefetchRequest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.harness.image_sets import Loading

BARE, S3 = "bare loop", "S3"

_TIME_LEFT_MS = 600_000
_QUIET = {"SUPER_LOG_LEVEL": "ERROR", "POWERTOOLS_METRICS_DISABLED": "true"}

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
        "Each arm is a fresh process that is pinned to this number of cores. The S3 server (rclone) and the "
        "cache use the other cores if there are any. The first pass over the images is not counted. Figures "
        "are medians."
    ),
    (
        f"{BARE}: decodes and resizes bytes in memory, with one thread per core. {S3}: whole calls of the "
        "handler for all images of the set. The first 'share of bare' is based on images/s, the second on "
        "images per CPU second. 'fetch' and 'push' are the CPU of those threads, and 'decode' is the rest."
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_option(parser, "--images", ["photos", "digits"], "image sets", choices=IMAGE_SETS)
    add_option(parser, "--cores", [1, 2], "cores for the function")
    add_option(parser, "--rounds", 3, "number of counted rounds")
    add_option(parser, "--passes", 2, "passes over the images in each arm")
    add_data_option(parser, photos=256)


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all arms. ``say`` receives a line for each."""
    most = max(arguments.cores)
    usable = usable_cores(most, f"this benchmark pins a process to the {most} cores of --cores")
    sets = [prepare_images(name, arguments, say) for name in arguments.images]
    runs: list[Run[FunctionFigures]] = []
    for images, count in itertools.product(sets, arguments.cores):
        with contextlib.ExitStack() as stack:
            with held_to(usable[count:] or usable):  # processes started here inherit these cores
                cache = stack.enter_context(cache_server())
                store = stack.enter_context(s3_server(Path(images.directory).parent))
            for number, way in itertools.product(range(1, arguments.rounds + 1), (BARE, S3)):
                say(f"round {number} of {arguments.rounds}: {images.name}, {count} cores, {way}")
                arm = FunctionArm(way, images, cache.address, usable[:count], arguments.passes)
                conditions = {"images": images.name, "cores": count, "way": way}
                runs.append(Run(conditions, number, run_arm(arm, store.environment)))
    return BenchmarkReport(
        settings={"image_sets": described(sets)},
        method=_METHOD,
        group_by=("images", "cores"),
        columns=_COLUMNS,
        rows=rows_of(runs),
        rounds=(run.to_mapping() for run in runs),
    )


def rows_of(runs: Sequence[Run[FunctionFigures]]) -> Iterator[dict[str, Any]]:
    """Yield medians over each arm's rounds, with shares of the bare loop on the same number of cores."""
    groups = [
        (conditions, medians([_figures(result) for result in results]))
        for conditions, results in by_conditions(runs)
    ]
    loops = {(group["images"], group["cores"]): figures for group, figures in groups if group["way"] == BARE}
    for conditions, figures in groups:
        loop = loops[conditions["images"], conditions["cores"]]
        shares = {
            "share_of_bare": figures["images_per_s"] / loop["images_per_s"],
            "cpu_share_of_bare": loop["cpu_ms_per_image"] / figures["cpu_ms_per_image"],
        }
        if conditions["way"] == BARE:
            shares = dict.fromkeys(shares)
        yield {**conditions, **figures, **shares}


def _figures(result: FunctionFigures) -> dict[str, float | None]:
    ms = 1e3 / result.images
    return {
        "images_per_s": result.images / result.wall_s,
        "busy": result.cpu_s / result.wall_s,
        "cpu_ms_per_image": ms * result.cpu_s,
        "fetch_cpu_ms_per_image": ms * result.fetch_cpu_s,
        "decode_cpu_ms_per_image": ms * (result.cpu_s - result.fetch_cpu_s - result.push_cpu_s),
        "push_cpu_ms_per_image": ms * result.push_cpu_s,
    }


# --------------------------------------------------------------------------------------------- arms


@dataclass(frozen=True, slots=True)
class FunctionArm:
    """One arm. The bucket has the name of the images' directory."""

    way: str
    images: Loading
    cache: str
    cores: Sequence[int]
    passes: int


@dataclass(frozen=True, slots=True)
class FunctionFigures:
    """Measurements over all counted passes. CPU seconds are those of the arm's process."""

    images: int
    wall_s: float
    cpu_s: float
    fetch_cpu_s: float
    push_cpu_s: float


def run_arm(arm: FunctionArm, environment: Mapping[str, str]) -> FunctionFigures:
    """Measure an arm in a fresh process."""
    settings = {"SUPER_DECODERS": str(len(arm.cores)), **_QUIET}
    return run_child(_measured, arm, name=arm.way, environment={**environment, **settings})


class _Context:
    """Stand-in for the context that an executor passes to the handler."""

    function_name = "bench"
    aws_request_id = "bench"

    def get_remaining_time_in_millis(self) -> int:
        return _TIME_LEFT_MS


def _clocked_threads() -> dict[str, float]:
    """Return the CPU seconds of threads that end from now on, by the first part of their name."""
    # The function's threads do not report their CPU themselves.
    seconds: dict[str, float] = defaultdict(float)
    run = threading.Thread.run

    def timed(thread: threading.Thread) -> None:
        try:
            run(thread)
        finally:
            seconds["-".join(thread.name.split("-")[:2])] += time.thread_time()

    setattr(threading.Thread, "run", timed)  # noqa: B010  # mypy allows no assignment to a method
    return seconds


def _measured(arm: FunctionArm) -> FunctionFigures:
    os.sched_setaffinity(0, arm.cores)
    seconds = _clocked_threads()
    one_pass = _bare(arm) if arm.way == BARE else _calls(arm)
    # A warm-up, which is not counted.
    one_pass()
    seconds.clear()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(arm.passes):
        one_pass()
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return FunctionFigures(
        images=arm.passes * arm.images.images,
        wall_s=wall_s,
        cpu_s=cpu_s,
        fetch_cpu_s=seconds["super-fetch"],
        push_cpu_s=seconds["super-push"],
    )


def _recipe(arm: FunctionArm) -> Recipe:
    return Recipe.image(resize=arm.images.resize, crop=arm.images.crop)


def _bare(arm: FunctionArm) -> Callable[[], None]:
    contents = [file.read_bytes() for file in Path(arm.images.directory).glob("*/*")]
    limit_pixels = Limits().image_pixels
    program = Program(_recipe(arm), bucket="", epoch=0, limit_pixels=limit_pixels, step_modules=frozenset())
    count = len(arm.cores)

    def share(number: int) -> None:
        for content in contents[number::count]:
            program.make(content, "")

    def one_pass() -> None:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(share, range(count)))

    return one_pass


def _calls(arm: FunctionArm) -> Callable[[], None]:
    """Return a function that calls the handler once for all images, in listing order."""
    recipe = _recipe(arm)
    catalog = list_source(f"s3://{Path(arm.images.directory).name}")
    request = PrefetchRequest(
        request_id="bench",
        bucket=catalog.bucket,
        recipe=recipe.json,
        epoch=0,
        cache=arm.cache,
        expires_in_s=_TIME_LEFT_MS / 1000,
        ids=catalog.sample_ids(recipe.digest),
        **catalog.part_columns(np.arange(len(catalog))),
    )
    event: dict[str, Any] = json.loads(request.to_json())

    def one_pass() -> None:
        result = handler(event, _Context())
        if set(result["outcomes"]) != {"cached"}:
            raise BenchmarkError(f"not all samples were cached: {list(result['messages'].values())[:3]}")

    return one_pass
