"""The coordinator that ``superdl bench coordinator`` measures: all its real parts in a process of their own,
with catalogs that need no source and functions that need no time.

Run as ``python -m benchmarks.coordinator_process SPEC``; it says that it listens, and ends with its standard
input. What is asked of it is :mod:`benchmarks.coordinator_clients`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.errors import BenchmarkError
from benchmarks.synthetic_catalog import synthetic_catalog
from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.cache.read_reports import ReportReader
from superdl.coordinator.cache.sweeping import Sweep, known_ids
from superdl.coordinator.cache.upkeep import Upkeep, agree_on_golden, take_over
from superdl.coordinator.cancelling import cancel_and_wait
from superdl.coordinator.core.settings import CoreSettings
from superdl.coordinator.executors import Scaling
from superdl.coordinator.executors.eligibility import Fitness
from superdl.coordinator.executors.manager import Crew
from superdl.coordinator.executors.preflight import Trials
from superdl.coordinator.server.datasets import DatasetRegistry
from superdl.coordinator.server.engine import Engine
from superdl.coordinator.server.listening import listen
from superdl.coordinator.server.service import CoordinatorService
from superdl.super_wire.request import Outcome, PrefetchResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from superdl.coordinator.catalog import Catalog
    from superdl.super_wire.request import PrefetchRequest

__all__ = ["RECORD_BYTES", "CoordinatorSpec", "coordinator_process"]

RECORD_BYTES = 64 + 224 * 224 * 3
_ROOT = Path(__file__).resolve().parents[1]
_LISTENS = "listens"
_FUNCTIONS = 3000
_INVOCATION_S = 0.02
_SAMPLE_S = 0.002
_BUDGET_BYTES = 2**50
"""More than all catalogs together: nothing is dropped."""
_UPKEEP_S = 1.0
_END_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """Where the coordinator listens, the address of its cache, and how many samples a catalog has.

    It knows the sources ``s3://bench-0/train``, ``s3://bench-1/train`` and so on.
    """

    address: str
    cache: str
    samples: int


@contextlib.contextmanager
def coordinator_process(spec: CoordinatorSpec) -> Iterator[int]:
    """Run it; gives its process id once it listens.

    Raises:
        BenchmarkError: it does not start; it has said why on standard error.

    """
    command = [sys.executable, "-m", "benchmarks.coordinator_process", json.dumps(asdict(spec))]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or process.stdout.readline().strip() != _LISTENS:
            raise BenchmarkError(f"the coordinator ended with exit code {process.wait(_END_TIMEOUT_S)}")
        yield process.pid
    finally:
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class AnswersAlone:
    """An executor without functions: it waits as long as they might take, and says that all is cached.

    Nothing is fetched, decoded or written.
    """

    name = "none"
    remote = False
    region = ""
    golden = "00" * 16
    scaling = Scaling(_FUNCTIONS, burst=_FUNCTIONS, per_s=math.inf, backlog=_FUNCTIONS)

    async def start(self) -> None:
        """Nothing to start."""

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """All of it is cached, after a while."""
        count = len(request.keys)
        duration_s = _INVOCATION_S + count * _SAMPLE_S
        await asyncio.sleep(min(duration_s, timeout_s))
        return PrefetchResult(
            request_id=request.request_id,
            function_version="bench",
            cold_start=False,
            outcomes=(Outcome.CACHED,) * count,
            fetch_us=(10_000,) * count,
            decode_us=(2000,) * count,
            push_us=(100,) * count,
            source_bytes=(110_000,) * count,
            record_bytes=(RECORD_BYTES,) * count,
            messages={},
            duration_us=int(1e6 * duration_s),
        )

    async def close(self) -> None:
        """Nothing to end."""


def _lister(samples: int) -> Callable[..., Catalog]:
    def list_source(source: str, *_: object) -> Catalog:
        return synthetic_catalog(int(source.removeprefix("s3://bench-").removesuffix("/train")), samples)

    return list_source


async def _serve(spec: CoordinatorSpec) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    threading.Thread(
        target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(stop.set)), daemon=True
    ).start()
    async with contextlib.AsyncExitStack() as stack:
        cache = Cache(spec.cache, owner="bench")
        stack.push_async_callback(cache.close)
        info, crew = await take_over(cache), Crew([AnswersAlone])
        await crew.start()
        await crew.agree(partial(agree_on_golden, cache))
        engine = Engine(CoreSettings(budget_bytes=_BUDGET_BYTES), cache, crew.posts)
        stack.push_async_callback(engine.close)
        crew.tell(engine.post)
        datasets = DatasetRegistry(max_age_s=3600.0, lister=_lister(spec.samples))
        stack.push_async_callback(datasets.close)
        reports = ReportReader(cache, engine.post_all)
        fitness = Fitness(crew.posts, [Trials(post, cache.address) for post in crew.posts])
        service = CoordinatorService(engine, datasets, reports, fitness, cache_was_empty=True)
        server, _ = await listen(spec.address, service)
        stack.push_async_callback(server.stop, 0)
        sweep = Sweep(
            cache,
            lambda: known_ids(
                [*datasets.datasets, *engine.datasets],
                wanted=engine.core.wants,
                held=engine.core.held,
                now_s=engine.now_s(),
            ),
        )
        upkeep = Upkeep(
            cache, engine, reports, sweep, info=info, golden=crew.golden, cache_bytes=_BUDGET_BYTES
        )
        loops = [
            asyncio.create_task(_forever(upkeep.once, pause_s=_UPKEEP_S)),
            asyncio.create_task(_forever(reports.read_once, pause_s=0.0)),
        ]
        stack.push_async_callback(cancel_and_wait, *loops)
        sys.stdout.write(_LISTENS + "\n")
        sys.stdout.flush()
        stopped = asyncio.create_task(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopped, engine.failed, *loops]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for ended in filter(asyncio.Future.done, ends):
            ended.result()


async def _forever(step: Callable[[], Awaitable[None]], *, pause_s: float) -> None:
    while True:
        await step()
        await asyncio.sleep(pause_s)


if __name__ == "__main__":
    asyncio.run(_serve(CoordinatorSpec(**json.loads(sys.argv[1]))))
