"""The cost of the function per image, compared with a bare loop: ``superdl bench function``."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.image_sets import IMAGE_SETS, add_data_option, add_option, prepare_images
from benchmarks.harness.processes import (
    BenchmarkError,
    cache_server,
    held_to,
    run_child,
    s3_server,
    usable_cores,
)
from benchmarks.harness.results import BenchmarkReport, Column, Run
from superdl.coordinator.catalog import list_source
from superdl.lambda_prefetch.handler import handler
from superdl.lambda_prefetch.image_steps import Program
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Limits, PrefetchRequest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from benchmarks.harness.image_sets import Loading

BARE, S3 = "bare loop", "S3"

_TIME_LEFT_MS = 600_000
_SETTINGS = {"SUPER_DECODERS": "1", "SUPER_LOG_LEVEL": "ERROR", "POWERTOOLS_METRICS_DISABLED": "true"}

_COLUMNS = (
    Column("way", "way"),
    Column("images_per_s", "\nimages/s", ",.0f"),
    Column("cpu_ms", "CPU ms\n/image", ".3f"),
)

_METHOD = (
    (
        "Each arm is a fresh process that is pinned to one core. The S3 server (rclone) and the cache use "
        "the other cores if there are any. The first pass over the images is not counted. Figures are "
        "medians."
    ),
    (
        f"{BARE}: decodes and resizes bytes in memory. {S3}: whole calls of the handler for all images of "
        "the set."
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_option(parser, "--images", ["photos", "digits"], "image sets", choices=IMAGE_SETS)
    add_option(parser, "--rounds", 3, "number of counted rounds")
    add_option(parser, "--passes", 2, "passes over the images in each arm")
    add_data_option(parser, photos=256)


def measure(arguments: argparse.Namespace, log: Callable[[str], None]) -> BenchmarkReport:
    """Run all arms, calling ``log`` with a line for each."""
    core, *others = usable_cores(1, "this benchmark pins a process to a core")
    sets = [prepare_images(name, arguments, log) for name in arguments.images]
    runs = []
    for images in sets:
        with contextlib.ExitStack() as stack:
            with held_to(others or [core]):  # processes started here inherit these cores
                cache = stack.enter_context(cache_server())
                s3 = stack.enter_context(s3_server(Path(images.directory).parent))
            for number, way in itertools.product(range(1, arguments.rounds + 1), (BARE, S3)):
                log(f"round {number} of {arguments.rounds}: {images.name}, {way}")
                arm = FunctionArm(way, images, cache.address, core, arguments.passes)
                figures = run_child(measured, arm, name=way, environment={**s3.environment, **_SETTINGS})
                runs.append(Run({"images": images.name, "way": way}, figures))
    return BenchmarkReport(
        method=_METHOD,
        group_by=("images",),
        columns=_COLUMNS,
        runs=runs,
    )


@dataclass(frozen=True, slots=True)
class FunctionArm:
    """One arm. The bucket is named after the images' directory."""

    way: str
    images: Loading
    cache: str
    core: int
    passes: int


class _Context:
    """A stand-in for the context that an executor passes to the handler."""

    function_name = "bench"
    aws_request_id = "bench"

    def get_remaining_time_in_millis(self) -> int:
        return _TIME_LEFT_MS


def measured(arm: FunctionArm) -> dict[str, float]:
    """Measure the arm in this process, which must be fresh."""
    os.sched_setaffinity(0, {arm.core})
    one_pass = _bare(arm) if arm.way == BARE else _calls(arm)
    # A warm-up, which is not counted.
    one_pass()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(arm.passes):
        one_pass()
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    images = arm.passes * arm.images.images
    return {"images_per_s": images / wall_s, "cpu_ms": 1e3 * cpu_s / images}


def _recipe(arm: FunctionArm) -> Recipe:
    return Recipe.image(resize=arm.images.resize, crop=arm.images.crop)


def _bare(arm: FunctionArm) -> Callable[[], None]:
    contents = [file.read_bytes() for file in Path(arm.images.directory).glob("*/*")]
    limit_pixels = Limits().image_pixels
    program = Program(_recipe(arm), bucket="", epoch=0, limit_pixels=limit_pixels, step_modules=frozenset())

    def one_pass() -> None:
        for content in contents:
            program.make(content, "")

    return one_pass


def _calls(arm: FunctionArm) -> Callable[[], None]:
    """Return a function that calls the handler once with all images, in listing order."""
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
