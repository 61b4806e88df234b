"""``superdl bench coordinator``: what the coordinator itself costs, with one job and with a thousand.

It decides what is asked of a coordinator and makes figures of it. The coordinator is
:mod:`benchmarks.coordinator_process`'s, the jobs are :mod:`benchmarks.coordinator_clients`'s.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks import positive
from benchmarks.coordinator_clients import PAGE_BATCHES, Clients
from benchmarks.coordinator_process import IMAGENET_SAMPLES, CoordinatorSpec, coordinator_process
from benchmarks.processes import process_cpu_s
from benchmarks.results import BenchmarkReport, Column, Run, Started, by_conditions
from benchmarks.services import cache_server, private_directory
from superdl.super_wire.recipe import Recipe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["add_arguments", "measure"]

FIRST = "first epoch"
CACHED = "cached"
FLAT_OUT = "cached, flat out"
RANDOM = "random recipe"
MANY = "many catalogs"

_METHOD = (
    (
        "One coordinator process: its real service, core, catalogs, report reader and upkeep, on a unix "
        "socket, with a real cache server for reports and lock. Its CPU is user and system time of all its "
        "threads while jobs go on, until the last read report was taken in. The jobs are played by another "
        f"process: pages of {PAGE_BATCHES} batches with ids, labels and keys, asked for as the sampler asks, "
        "and one read report for each batch, as readers leave them."
    ),
    (
        "No function runs: an executor with 3,000 places waits 20 ms and 2 ms for each sample and says that "
        "all is cached; nothing is fetched, decoded, stored or read. What functions and their invocation "
        "cost is not in these figures, and the cache's budget is never short."
    ),
    (
        f"'{FIRST}': no sample has been produced. '{CACHED}': all have. '{RANDOM}': an epoch's samples have "
        "ids of their own, and are asked of functions. Each job has a seed of its own and reads up to 100 "
        f"batches a second, all together up to 1,500 (--rate); '{FLAT_OUT}' as fast as it goes, where asking "
        "and answering share this machine."
    ),
    (
        "'batches/s of a core' is batches over the coordinator's CPU seconds. Of several rounds the one with "
        "the least CPU counts, since others use the machine. 'KB/job' is the growth of the coordinator's "
        "resident memory from before the jobs were opened to the end of the measurement, 'MB' the resident "
        "memory then; 'open ms' the median time of OpenJob on a listed dataset, as the client sees it."
    ),
)

_COLUMNS = (
    Column("jobs", "jobs", ",d"),
    Column("batches", "batches", ",d"),
    Column("batches_per_cpu_s", "batches/s\nof a core", ",.0f"),
    Column("cpu_ms_per_batch", "CPU ms\n/batch", ".3f"),
    Column("batches_per_s", "batches\n/s", ",.0f"),
    Column("cache_cpu_ms_per_batch", "beside:\ncache", ".3f"),
    Column("produced_per_batch", "samples\nproduced", ".0f"),
    Column("requests_per_batch", "re-\nquests", ".1f"),
    Column("open_ms", "open\nms", ".1f"),
    Column("kb_per_job", "KB\n/job", ",.0f"),
    Column("rss_mb", "MB", ",.0f"),
)

_WARM_UP_BATCHES = 4
_FILL_BATCH = 4096
_FILL_RATE = 30.0
_FILL_EPOCHS = 2  # the second brings what was read past before it was produced
_KB, _MB = 1e3, 1e6
_FEWEST_FOR_MEMORY = 100
_RATE_OF_A_JOB = 100.0
_QUICK = {
    "samples": 60_000,
    "jobs": [1, 10],
    "rounds": 1,
    "seconds": 1,
    "catalogs": 2,
    "memory_jobs": 8,
    "rate": 300,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--jobs", nargs="+", type=positive, default=[1, 10, 100, 1000], metavar="N", help="(1 10 100 1000)"
    )
    parser.add_argument("--samples", type=positive, default=IMAGENET_SAMPLES, help="of a catalog (1280000)")
    parser.add_argument("--batch-size", type=positive, default=256, help="(256)")
    parser.add_argument(
        "--rate", type=positive, default=1500, help="batches a second that all jobs together read (1500)"
    )
    parser.add_argument("--seconds", type=positive, default=8, help="of each measurement, about (8)")
    parser.add_argument("--rounds", type=positive, default=2, help="rounds; the best counts (2)")
    parser.add_argument("--catalogs", type=positive, default=10, help="in the measurement of memory (10)")
    parser.add_argument("--memory-jobs", type=positive, default=1000, help="likewise (1000)")
    parser.add_argument("--quick", action="store_true", help="very small, to see that it works")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all measurements; ``say`` gets a line for each.

    Raises:
        SuperError: a process cannot be started, or the coordinator answered otherwise than expected.

    """
    started = Started(arguments)
    if arguments.quick:
        vars(arguments).update(_QUICK)
    runs = list(_one_catalog(arguments, say))
    runs += _many_catalogs(arguments, say)
    return started.report(
        method=_METHOD,
        group_by=("catalogs", "way"),
        columns=_COLUMNS,
        rows=_rows(runs),
        rounds=(run.to_mapping() for run in runs),
    )


@dataclass(frozen=True, slots=True)
class _Figures:
    """One measurement."""

    batches: int
    wall_s: float
    cpu_s: float
    cache_cpu_s: float
    produced: int
    invocations: int
    open_ms: float
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

    def run(self, way: str, datasets: Sequence[bytes], cell: _Cell) -> Run[_Figures]:
        """Open so many jobs over all datasets, have each ask for its first page, then measure."""
        rss_before = self._rss()
        opened = []
        for place in range(cell.jobs):
            self._opened += 1
            dataset, name = datasets[place % len(datasets)], f"job-{self._opened}"
            opened.append(
                self.clients.open(
                    dataset, name, batch_size=self._batch_size, seed=self._opened, epoch=cell.epoch
                )
            )
        self.clients.start(opened)
        self.clients.go_on(opened, cell.jobs * _WARM_UP_BATCHES, cell.rate)
        start, before = self._clocks(), self.clients.produced(opened)
        self.clients.go_on(opened, cell.batches, cell.rate)
        wall_s, cpu_s, cache_cpu_s = (end - begin for end, begin in zip(self._clocks(), start, strict=True))
        produced, invocations = map(operator.sub, self.clients.produced(opened), before)
        rss = self._rss()
        self.clients.close_jobs(opened)
        figures = _Figures(
            batches=cell.batches,
            wall_s=wall_s,
            cpu_s=cpu_s,
            cache_cpu_s=cache_cpu_s,
            produced=produced,
            invocations=invocations,
            open_ms=1e3 * median(job.open_s for job in opened),
            rss_before=rss_before,
            rss=rss,
        )
        return Run({"catalogs": self._catalogs, "way": way, "jobs": cell.jobs}, cell.round, figures)

    def fill(self, dataset: bytes, samples: int) -> None:
        """Have a whole epoch produced, unmeasured, no faster than functions keep up."""
        job = self.clients.open(dataset, "fill", batch_size=_FILL_BATCH, seed=0, epoch=0)
        self.clients.start([job])
        for _ in range(_FILL_EPOCHS):
            self.clients.go_on([job], -(-samples // _FILL_BATCH), _FILL_RATE)
        self.clients.close_jobs([job])

    def _clocks(self) -> tuple[float, float, float]:
        return time.perf_counter(), process_cpu_s(self._pid), process_cpu_s(self._cache_pid)

    def _rss(self) -> int:
        return int(psutil.Process(self._pid).memory_info().rss)


def _one_catalog(arguments: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Run[_Figures]]:
    with _running(arguments, catalogs=1) as coordinator:
        source, clients = "s3://bench-0/train", coordinator.clients
        say("listing, and a first epoch")
        first = clients.register(source, Recipe.image(resize=160, crop=160))
        cached = clients.register(source, Recipe.image(resize=256, crop=224))
        random = clients.register(source, Recipe([{"op": "random_resized_crop", "size": 224}]))
        coordinator.fill(cached, arguments.samples)
        ways = {CACHED: cached, FLAT_OUT: cached, RANDOM: random}
        cells = _cells(arguments)
        yield coordinator.run(FIRST, [first], next(cells))
        for number, (way, dataset) in itertools.product(range(arguments.rounds), ways.items()):
            for cell in _cells(arguments, number, math.inf if way == FLAT_OUT else arguments.rate):
                say(f"round {number + 1} of {arguments.rounds}: {way}, {cell.jobs} jobs")
                yield coordinator.run(way, [dataset], cell)


def _many_catalogs(arguments: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Run[_Figures]]:
    with _running(arguments, catalogs=arguments.catalogs) as coordinator:
        datasets = []
        for number in range(arguments.catalogs):
            say(f"listing catalog {number + 1} of {arguments.catalogs}")
            source, recipe = f"s3://bench-{number}/train", Recipe.image(resize=256, crop=224)
            datasets.append(coordinator.clients.register(source, recipe))
        say(f"{arguments.memory_jobs} jobs on {arguments.catalogs} catalogs")
        cell = _Cell(0, arguments.memory_jobs, arguments.rate, int(arguments.rate * arguments.seconds), 0)
        yield coordinator.run(MANY, datasets, cell)


@dataclass(frozen=True, slots=True)
class _Cell:
    """How one measurement is made: ``rate`` and ``batches`` are of all jobs together."""

    round: int
    jobs: int
    rate: float
    batches: int
    epoch: int


_EPOCHS = itertools.count()


def _cells(arguments: argparse.Namespace, number: int = 0, rate: float = 0.0) -> Iterator[_Cell]:
    """Each begins in an epoch of its own, so that a random recipe's ids are fresh."""
    for jobs in arguments.jobs:
        offered = min(rate or arguments.rate, jobs * _RATE_OF_A_JOB) if rate < math.inf else math.inf
        batches = int(min(offered, arguments.rate) * arguments.seconds)
        yield _Cell(number, jobs, offered, batches, next(_EPOCHS))


@contextlib.contextmanager
def _running(arguments: argparse.Namespace, *, catalogs: int) -> Iterator[_Coordinator]:
    """Run a cache, a coordinator and its clients."""
    with private_directory() as directory, cache_server() as cache:
        spec = CoordinatorSpec(f"unix:{directory}/c.sock", cache.address, arguments.samples)
        with (
            coordinator_process(spec) as pid,
            contextlib.closing(Clients(spec.address, cache.address)) as clients,
        ):
            yield _Coordinator(clients, pid, cache.pid, arguments.batch_size, catalogs=catalogs)


def _rows(runs: Sequence[Run[_Figures]]) -> Iterator[dict[str, Any]]:
    for conditions, rounds in by_conditions(runs):
        run = min(rounds, key=lambda some: some.cpu_s / some.batches)
        grown, jobs = run.rss - run.rss_before, conditions["jobs"]
        yield {
            **conditions,
            "batches": run.batches,
            "batches_per_cpu_s": run.batches / run.cpu_s,
            "cpu_ms_per_batch": 1e3 * run.cpu_s / run.batches,
            "batches_per_s": run.batches / run.wall_s,
            "cache_cpu_ms_per_batch": 1e3 * run.cache_cpu_s / run.batches,
            "produced_per_batch": run.produced / run.batches,
            "requests_per_batch": run.invocations / run.batches,
            "open_ms": run.open_ms,
            "kb_per_job": grown / jobs / _KB if jobs >= _FEWEST_FOR_MEMORY else None,
            "rss_mb": run.rss / _MB,
        }
