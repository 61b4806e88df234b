"""The function, measured: ways of producing samples on some cores.

An arm runs in a process of its own. The bare loop decodes bytes that it has in memory; the other ways are the
function's handler, whole, as an executor calls it. The first pass over the images warms up and is not
counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.image_sets import Loading  # noqa: TC001  # read where a spec is made from JSON
from benchmarks.processes import BenchmarkError, run_child
from superdl.lambda_prefetch.handler import handler
from superdl.lambda_prefetch.transforms import Program
from superdl.super_wire.ids import sample_ids, split_ids
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Limits, PrefetchRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "BARE",
    "FILES",
    "S3",
    "FunctionArmResult",
    "FunctionArmSpec",
    "measure_function",
    "run_arm",
]

BARE = "bare loop"
FILES = "files"
S3 = "S3"

_TIME_LEFT_MS = 600_000
_QUIET = {"SUPER_LOG_LEVEL": "ERROR", "POWERTOOLS_METRICS_DISABLED": "true"}


@dataclass(frozen=True, slots=True)
class FunctionArmSpec:
    """One arm; the name of the images' directory is the bucket's."""

    way: str
    images: Loading
    cache: str
    cores: tuple[int, ...]
    passes: int


@dataclass(frozen=True, slots=True)
class FunctionArmResult:
    """What was measured over all passes that count; CPU seconds are of this process."""

    images: int
    wall_s: float
    cpu_s: float
    fetch_cpu_s: float
    push_cpu_s: float


def run_arm(spec: FunctionArmSpec, environment: Mapping[str, str]) -> FunctionArmResult:
    """Measure an arm in a fresh process.

    Raises:
        BenchmarkError: it failed; the message has what it said.

    """
    settings = {"SUPER_DECODERS": str(len(spec.cores)), **_QUIET}
    return run_child(measure_function, spec, name=spec.way, environment={**environment, **settings})


class _Context:
    """What an executor hands to the handler."""

    function_name = "bench"
    aws_request_id = "bench"

    def get_remaining_time_in_millis(self) -> int:
        return _TIME_LEFT_MS


class _ThreadClocks:
    """Adds up the CPU of threads that end, by the first part of their name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        run = threading.Thread.run

        def timed(thread: threading.Thread) -> None:
            try:
                run(thread)
            finally:
                kind = "-".join(thread.name.split("-")[:2])
                self.seconds[kind] += time.thread_time()

        # The function's threads tell nothing of their CPU themselves.
        setattr(threading.Thread, "run", timed)  # noqa: B010  # mypy allows no assignment to a method


def measure_function(spec: FunctionArmSpec) -> FunctionArmResult:
    """Measure the arm in this process, which is fresh."""
    os.sched_setaffinity(0, spec.cores)
    clocks = _ThreadClocks()
    files = sorted(Path(spec.images.directory).glob("*/*"))
    one_pass = _bare(spec, files) if spec.way == BARE else _invocations(spec, files)
    one_pass()
    clocks.seconds.clear()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(spec.passes):
        one_pass()
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return FunctionArmResult(
        images=spec.passes * len(files),
        wall_s=wall_s,
        cpu_s=cpu_s,
        fetch_cpu_s=clocks.seconds["super-fetch"],
        push_cpu_s=clocks.seconds["super-push"],
    )


def _recipe(spec: FunctionArmSpec) -> Recipe:
    return Recipe.image(resize=spec.images.resize, crop=spec.images.crop)


def _bare(spec: FunctionArmSpec, files: list[Path]) -> Callable[[], None]:
    """Decode and resize, with a thread for each core, and drop what comes of it."""
    contents = [file.read_bytes() for file in files]
    limit_pixels = Limits().image_pixels
    program = Program(_recipe(spec), bucket="", epoch=0, limit_pixels=limit_pixels, step_modules=frozenset())
    count = len(spec.cores)

    def share(number: int) -> None:
        for content in contents[number::count]:
            program.make(content, "")

    def one_pass() -> None:
        if count == 1:
            share(0)
        else:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(share, range(count)))

    return one_pass


def _invocations(spec: FunctionArmSpec, files: list[Path]) -> Callable[[], None]:
    """One call of the handler for all images."""
    event = _event(spec, files)

    def one_pass() -> None:
        result = handler({**event, "expires_at": time.time() + _TIME_LEFT_MS / 1000}, _Context())
        if set(result["outcomes"]) != {"cached"}:
            raise BenchmarkError(f"not all was cached: {list(result['messages'].values())[:3]}")

    return one_pass


def _event(spec: FunctionArmSpec, files: list[Path]) -> dict[str, Any]:
    directory, recipe = Path(spec.images.directory), _recipe(spec)
    keys = [file.relative_to(directory).as_posix() for file in files]
    if spec.way == FILES:
        bucket = f"file://{directory}"
        versions = [f"{status.st_size}-{status.st_mtime_ns}" for status in (file.stat() for file in files)]
    else:
        bucket = f"s3://{directory.name}"
        # What rclone's ETags are.
        versions = [hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() for file in files]
    ids = sample_ids(
        bucket, (key.encode() for key in keys), (version.encode() for version in versions), recipe.digest
    )
    request = PrefetchRequest(
        request_id="bench",
        bucket=bucket,
        recipe=recipe.json,
        epoch=0,
        cache=spec.cache,
        expires_at=0.0,
        keys=tuple(keys),
        versions=tuple(versions),
        ids=tuple(one.hex() for one in split_ids(ids)),
    )
    event: dict[str, Any] = json.loads(request.to_json())
    return event
