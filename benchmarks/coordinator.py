"""``superdl bench coordinator``: what the coordinator itself costs, with one job and with a thousand.

It decides what is asked of a coordinator and makes figures of it. The coordinator is
:mod:`benchmarks.answering`'s, the jobs are :mod:`benchmarks.coordinator_clients`'s.
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
from benchmarks.coordinator_clients import PAGE_BATCHES, Clients, write_key_list
from benchmarks.processes import process_cpu_s
from benchmarks.results import BenchmarkReport, Column, Run, Started, by_conditions
from benchmarks.services import Server, cache_server, coordinator, private_directory
from superdl.super_wire.recipe import Recipe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

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

_SETTINGS = ("--cache-bytes", str(2**50), "--catalog-max-age-s", "3600")  # nothing is dropped or listed again
_WARM_UP_BATCHES = 4
_FILL_BATCH = 4096
_FILL_RATE = 30.0
_FILL_EPOCHS = 2  # the second brings what was read past before it was produced
_KB, _MB = 1e3, 1e6
_FEWEST_FOR_MEMORY = 100
_RATE_OF_A_JOB = 100.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--jobs", nargs="+", type=positive, default=[1, 10, 100, 1000], metavar="N", help="(1 10 100 1000)"
    )
    parser.add_argument("--samples", type=positive, default=1_280_000, help="of a catalog (1280000)")
    parser.add_argument("--batch-size", type=positive, default=256, help="(256)")
    parser.add_argument(
        "--rate", type=positive, default=1500, help="batches a second that all jobs together read (1500)"
    )
    parser.add_argument("--seconds", type=positive, default=8, help="of each measurement, about (8)")
    parser.add_argument("--rounds", type=positive, default=2, help="rounds; the best counts (2)")
    parser.add_argument("--catalogs", type=positive, default=10, help="in the measurement of memory (10)")
    parser.add_argument("--memory-jobs", type=positive, default=1000, help="likewise (1000)")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all measurements; ``say`` gets a line for each.

    Raises:
        SuperError: a process cannot be started, or the coordinator answered otherwise than expected.

    """
    started = Started(arguments)
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

    def __init__(
        self, clients: Clients, server: Server, cache: Server, directory: Path, options: argparse.Namespace
    ) -> None:
        self._clients = clients
        self._pid, self._cache_pid = server.pid, cache.pid
        self._directory, self._options = directory, options
        self._key_list = write_key_list(directory / "keys.parquet", options.samples)
        self._seeds, self._epochs = itertools.count(1), itertools.count()

    def register(self, recipe: Recipe, number: int = 0) -> bytes:
        """List a catalog under a recipe: keys of an empty directory, which nobody reads."""
        source = self._directory / f"bench-{number}"
        source.mkdir(exist_ok=True)
        return self._clients.register(source.as_uri(), recipe, key_list=self._key_list)

    def run(self, way: str, datasets: Sequence[bytes], jobs: int, number: int = 0) -> Run[_Figures]:
        """Open so many jobs over all datasets, have each ask for its first page, then measure.

        They begin in an epoch of their own, so that a random recipe's ids are fresh.
        """
        options, clients, rss_before = self._options, self._clients, self._rss()
        paced = min(options.rate, jobs * _RATE_OF_A_JOB)
        rate, offered = (math.inf, options.rate) if way == FLAT_OUT else (paced, paced)
        batches, epoch, opened = int(offered * options.seconds), next(self._epochs), []
        for place in range(jobs):
            seed = next(self._seeds)
            name, dataset = f"job-{seed}", datasets[place % len(datasets)]
            opened.append(clients.open(dataset, name, batch_size=options.batch_size, seed=seed, epoch=epoch))
        clients.start(opened)
        clients.go_on(opened, jobs * _WARM_UP_BATCHES, rate)
        start, before = self._clocks(), clients.produced(opened)
        clients.go_on(opened, batches, rate)
        wall_s, cpu_s, cache_cpu_s = (end - begin for end, begin in zip(self._clocks(), start, strict=True))
        produced, invocations = map(operator.sub, clients.produced(opened), before)
        rss = self._rss()
        clients.close_jobs(opened)
        figures = _Figures(
            batches=batches,
            wall_s=wall_s,
            cpu_s=cpu_s,
            cache_cpu_s=cache_cpu_s,
            produced=produced,
            invocations=invocations,
            open_ms=1e3 * median(job.open_s for job in opened),
            rss_before=rss_before,
            rss=rss,
        )
        return Run({"catalogs": len(datasets), "way": way, "jobs": jobs}, number, figures)

    def fill(self, dataset: bytes) -> None:
        """Have a whole epoch produced, unmeasured, no faster than functions keep up."""
        job = self._clients.open(dataset, "fill", batch_size=_FILL_BATCH, seed=0, epoch=0)
        self._clients.start([job])
        for _ in range(_FILL_EPOCHS):
            self._clients.go_on([job], -(-self._options.samples // _FILL_BATCH), _FILL_RATE)
        self._clients.close_jobs([job])

    def _clocks(self) -> tuple[float, float, float]:
        return time.perf_counter(), process_cpu_s(self._pid), process_cpu_s(self._cache_pid)

    def _rss(self) -> int:
        return int(psutil.Process(self._pid).memory_info().rss)


def _one_catalog(arguments: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Run[_Figures]]:
    with _running(arguments) as measured:
        say("listing, and a first epoch")
        first = measured.register(Recipe.image(resize=160, crop=160))
        cached = measured.register(Recipe.image(resize=256, crop=224))
        random = measured.register(Recipe([{"op": "random_resized_crop", "size": 224}]))
        measured.fill(cached)
        ways = {CACHED: cached, FLAT_OUT: cached, RANDOM: random}
        yield measured.run(FIRST, [first], arguments.jobs[0])
        for number, way, jobs in itertools.product(range(arguments.rounds), ways, arguments.jobs):
            say(f"round {number + 1} of {arguments.rounds}: {way}, {jobs} jobs")
            yield measured.run(way, [ways[way]], jobs, number)


def _many_catalogs(arguments: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Run[_Figures]]:
    with _running(arguments) as measured:
        datasets = []
        for number in range(arguments.catalogs):
            say(f"listing catalog {number + 1} of {arguments.catalogs}")
            datasets.append(measured.register(Recipe.image(resize=256, crop=224), number))
        say(f"{arguments.memory_jobs} jobs on {arguments.catalogs} catalogs")
        yield measured.run(MANY, datasets, arguments.memory_jobs)


@contextlib.contextmanager
def _running(arguments: argparse.Namespace) -> Iterator[_Coordinator]:
    """Run a cache, a coordinator and its clients."""
    with (
        private_directory() as directory,
        cache_server() as cache,
        coordinator(directory, cache, *_SETTINGS, module="benchmarks.answering") as server,
        contextlib.closing(Clients(server.address, cache.address)) as clients,
    ):
        yield _Coordinator(clients, server, cache, directory, arguments)


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
