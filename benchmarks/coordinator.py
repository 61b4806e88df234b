"""``superdl bench coordinator``: what the coordinator itself costs, with one job and with a thousand.

It decides what is asked of a coordinator and makes figures of it. The coordinator is
:mod:`benchmarks.coordinator_process`'s, the jobs are :mod:`benchmarks.coordinator_clients`'s.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.cache_server import cache_server
from benchmarks.coordinator_clients import PAGE_BATCHES, Clients
from benchmarks.coordinator_process import CoordinatorSpec, coordinator_process
from benchmarks.cpu_clock import process_cpu_s
from benchmarks.options import positive
from benchmarks.report import BenchmarkReport, Column, describe_machine
from benchmarks.synthetic_catalog import IMAGENET_SAMPLES
from super_wire.recipe import Recipe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["add_arguments", "measure"]

PRODUCED = "first epoch"
CACHED = "cached"
RANDOM = "random recipe"

_METHOD = (
    (
        "One coordinator process: its real service, core, catalogs, report reader and upkeep, on a unix "
        "socket, with a real cache server for reports and lock. Its CPU is user and system time of all its "
        "threads, from the first page of a measurement until the last read report was taken in. Jobs are "
        f"asked for by another process: pages of {PAGE_BATCHES} batches with ids, labels and keys, as the "
        "sampler asks, and one read report for each batch, as readers leave them."
    ),
    (
        "No function runs: the executor says of every request at once that all of it is cached, and nothing "
        "is fetched, decoded, stored or read. What functions and their invocation cost is not in these "
        "figures, and the cache's budget is never short."
    ),
    (
        f"'{PRODUCED}': one job, and every sample is asked of functions. '{CACHED}': a dataset that has been "
        f"produced, every job with a seed of its own. '{RANDOM}': every sample id is derived anew for each "
        "page, and what no job has asked for before is asked of functions. 'batches/s of a core' is batches "
        "over the coordinator's CPU seconds, 'batches/s' over the wall clock, in which asking and answering "
        "share this machine. Of several rounds, the one with the least CPU counts: others used the machine."
    ),
    (
        "'KB/job' is the growth of the coordinator's resident memory from before the jobs were opened to the "
        "end of the measurement, 'MB' the resident memory then; 'open ms' the median time of OpenJob on a "
        "listed dataset, as the client sees it."
    ),
)

_COLUMNS = (
    Column("way", "way"),
    Column("jobs", "jobs", ",d"),
    Column("batches", "batches", ",d"),
    Column("batches_per_cpu_s", "batches/s\nof a core", ",.0f"),
    Column("cpu_ms_per_batch", "CPU ms\n/batch", ".3f"),
    Column("times_ten_jobs", "times\n10 jobs", ".2f"),
    Column("batches_per_s", "batches\n/s", ",.0f"),
    Column("cache_cpu_ms_per_batch", "beside:\ncache", ".3f"),
    Column("produced_per_batch", "samples\nproduced", ".0f"),
    Column("open_ms", "open\nms", ".1f"),
    Column("kb_per_job", "KB\n/job", ",.0f"),
    Column("rss_mb", "MB", ",.0f"),
)

_TEN = 10
_KB, _MB = 1e3, 1e6
_FEWEST_FOR_MEMORY = 100
_QUICK = {"samples": 20_000, "jobs": [1, 4], "rounds": 1, "batches": 128, "catalogs": 2, "memory_jobs": 8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--jobs", nargs="+", type=positive, default=[1, 10, 100, 1000], metavar="N", help="(1 10 100 1000)"
    )
    parser.add_argument("--samples", type=positive, default=IMAGENET_SAMPLES, help="of a catalog (1280000)")
    parser.add_argument("--batch-size", type=positive, default=256, help="(256)")
    parser.add_argument(
        "--batches", type=positive, default=6400, help="at least so many in each measurement (6400)"
    )
    parser.add_argument("--rounds", type=positive, default=2, help="rounds; the best counts (2)")
    parser.add_argument("--catalogs", type=positive, default=10, help="in the measurement of memory (10)")
    parser.add_argument("--memory-jobs", type=positive, default=1000, help="likewise (1000)")
    parser.add_argument("--quick", action="store_true", help="very small, to see that it works")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all measurements; ``say`` is told what happens.

    Raises:
        SuperError: a process cannot be started, or the coordinator answered otherwise than expected.

    """
    began_s, started_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    environment = describe_machine()
    if arguments.quick:
        vars(arguments).update(_QUICK)
    runs = list(_one_catalog(arguments, say))
    runs += _many_catalogs(arguments, say)
    return BenchmarkReport(
        benchmark="coordinator",
        started_at=started_at,
        wall_s=time.perf_counter() - began_s,
        settings={
            name: getattr(arguments, name)
            for name in ("samples", "batch_size", "batches", "jobs", "rounds", "catalogs", "memory_jobs")
        },
        method=_METHOD,
        group_by=("catalogs",),
        columns=_COLUMNS,
        rows=tuple(_rows(runs)),
        rounds=tuple(asdict(run) for run in runs),
        environment=environment,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """One measurement."""

    catalogs: int
    round: int
    way: str
    jobs: int
    batches: int
    wall_s: float
    cpu_s: float
    cache_cpu_s: float
    produced: int
    invocations: int
    open_ms: float
    open_max_ms: float
    rss_before: int
    rss: int


class _Coordinator:
    """A coordinator under measurement, its clients, and the process ids of what is measured."""

    def __init__(self, clients: Clients, pid: int, cache_pid: int, batch_size: int, *, catalogs: int) -> None:
        self.clients = clients
        self._pid = pid
        self._cache_pid = cache_pid
        self._batch_size = batch_size
        self._catalogs = catalogs
        self._opened = 0

    def run(
        self, way: str, datasets: Sequence[bytes], *, jobs: int, pages: int, number: int, epoch: int = 0
    ) -> _Run:
        """Open so many jobs over all datasets, let each ask for a page, then measure ``pages`` of each."""
        rss_before = self._rss()
        opened = []
        for place in range(jobs):
            self._opened += 1
            dataset = datasets[place % len(datasets)]
            name = f"{way.replace(' ', '-')}-{self._opened}"
            opened.append(
                self.clients.open(dataset, name, batch_size=self._batch_size, seed=self._opened, epoch=epoch)
            )
        if way != PRODUCED:
            self.clients.go_on(opened, 1)
        batches, start = sum(job.batches for job in opened), self._clocks()
        self.clients.go_on(opened, pages)
        wall_s, cpu_s, cache_cpu_s = (end - begin for end, begin in zip(self._clocks(), start, strict=True))
        produced, invocations = self.clients.produced(opened)
        rss = self._rss()
        self.clients.close_jobs(opened)
        return _Run(
            catalogs=self._catalogs,
            round=number,
            way=way,
            jobs=jobs,
            batches=sum(job.batches for job in opened) - batches,
            wall_s=wall_s,
            cpu_s=cpu_s,
            cache_cpu_s=cache_cpu_s,
            produced=produced,
            invocations=invocations,
            open_ms=1e3 * median(job.open_s for job in opened),
            open_max_ms=1e3 * max(job.open_s for job in opened),
            rss_before=rss_before,
            rss=rss,
        )

    def _clocks(self) -> tuple[float, float, float]:
        return time.perf_counter(), process_cpu_s(self._pid), process_cpu_s(self._cache_pid)

    def _rss(self) -> int:
        return int(psutil.Process(self._pid).memory_info().rss)


def _one_catalog(arguments: argparse.Namespace, say: Callable[[str], None]) -> Iterator[_Run]:
    epoch_pages = -(-arguments.samples // (arguments.batch_size * PAGE_BATCHES))
    with _Running(arguments, catalogs=1) as coordinator:
        source, clients = "s3://bench-0/train", coordinator.clients
        say("listing and a first epoch")
        cached = clients.register(source, Recipe.image(resize=256, crop=224))
        yield coordinator.run(PRODUCED, [cached], jobs=1, pages=epoch_pages, number=0)
        random = clients.register(source, Recipe([{"op": "random_resized_crop", "size": 224}]))
        epoch = 0
        for number in range(arguments.rounds):
            for way, dataset in ((CACHED, cached), (RANDOM, random)):
                for jobs in arguments.jobs:
                    say(f"round {number + 1} of {arguments.rounds}: {way}, {jobs} jobs")
                    epoch += 1
                    pages = max(1, arguments.batches // (jobs * PAGE_BATCHES))
                    yield coordinator.run(way, [dataset], jobs=jobs, pages=pages, number=number, epoch=epoch)


def _many_catalogs(arguments: argparse.Namespace, say: Callable[[str], None]) -> Iterator[_Run]:
    with _Running(arguments, catalogs=arguments.catalogs) as coordinator:
        datasets = []
        for number in range(arguments.catalogs):
            say(f"listing catalog {number + 1} of {arguments.catalogs}")
            source, recipe = f"s3://bench-{number}/train", Recipe.image(resize=256, crop=224)
            datasets.append(coordinator.clients.register(source, recipe))
        say(f"{arguments.memory_jobs} jobs on {arguments.catalogs} catalogs")
        yield coordinator.run("many catalogs", datasets, jobs=arguments.memory_jobs, pages=1, number=0)


class _Running:
    """Starts a cache, a coordinator and its clients, and ends them."""

    def __init__(self, arguments: argparse.Namespace, *, catalogs: int) -> None:
        self._arguments = arguments
        self._catalogs = catalogs
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Coordinator:
        with contextlib.ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="super-b-")))
            cache_path, cache_pid = stack.enter_context(cache_server(directory))
            address = f"unix:{directory}/c.sock"
            spec = CoordinatorSpec(address, f"unix://{cache_path}", self._arguments.samples)
            pid = stack.enter_context(coordinator_process(spec))
            clients = stack.enter_context(Clients(address, cache_path))
            self._stack = stack.pop_all()
        return _Coordinator(clients, pid, cache_pid, self._arguments.batch_size, catalogs=self._catalogs)

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _rows(runs: Sequence[_Run]) -> Iterator[dict[str, Any]]:
    best: dict[tuple[int, str, int], _Run] = {}
    for run in runs:
        key = (run.catalogs, run.way, run.jobs)
        if key not in best or run.cpu_s / run.batches < best[key].cpu_s / best[key].batches:
            best[key] = run
    for (catalogs, way, jobs), run in best.items():
        ten = best.get((catalogs, way, _TEN))
        cpu_ms = 1e3 * run.cpu_s / run.batches
        yield {
            "catalogs": catalogs,
            "way": way,
            "jobs": jobs,
            "batches": run.batches,
            "batches_per_cpu_s": run.batches / run.cpu_s,
            "cpu_ms_per_batch": cpu_ms,
            "times_ten_jobs": cpu_ms / (1e3 * ten.cpu_s / ten.batches) if ten else None,
            "batches_per_s": run.batches / run.wall_s,
            "cache_cpu_ms_per_batch": 1e3 * run.cache_cpu_s / run.batches,
            "produced_per_batch": run.produced / run.batches,
            "open_ms": run.open_ms,
            "open_max_ms": run.open_max_ms,
            "kb_per_job": (run.rss - run.rss_before) / jobs / _KB if jobs >= _FEWEST_FOR_MEMORY else None,
            "rss_mb": run.rss / _MB,
        }
