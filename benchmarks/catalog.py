"""``superdl bench catalog``: what a coordinator spends on listing a source, and how fast it starts again.

The coordinator is the real one, with its state in a directory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import TYPE_CHECKING, Self

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks import positive
from benchmarks.coordinator_clients import Clients, write_key_list
from benchmarks.listed_bucket import listed_bucket
from benchmarks.results import BenchmarkReport, Column, Run, Started, by_conditions
from benchmarks.services import Server, cache_server, coordinator, private_directory
from superdl.super_wire.recipe import Recipe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["SOURCES", "add_arguments", "measure"]

SOURCES = ("s3", "parquet")

_METHOD = (
    (
        "'s3': a bucket of a local server is listed: 20 folders, in pages of 1,000 keys. 'parquet': a key "
        "list with labels and versions is read. CPU is that of the coordinator and of its process that "
        "lists: requests, parsing, sorting, ids, the catalog's file. The server's is not in it."
    ),
    (
        "'probe' is the answer to a health check, asked for every 20 ms meanwhile. 'peak' and 'after' are "
        "anonymous memory of both processes above the idle coordinator's; mapped files do not count."
    ),
    (
        "'2nd job' is OpenJob on the known dataset. 'restart': the coordinator is killed; from then until a "
        "new one, started at once on the same state, has answered the job's first page."
    ),
)

_COLUMNS = (
    Column("source", "source"),
    Column("samples", "samples", ",d"),
    Column("cpu_us_per_sample", "CPU us\n/sample", ".1f"),
    Column("wall_s", "s", ".1f"),
    Column("probe_median_ms", "probe ms\nmedian", ".1f"),
    Column("probe_p99_ms", "\n99%", ".1f"),
    Column("probe_most_ms", "\nmost", ".0f"),
    Column("peak_mb", "peak\nMB", ",.0f"),
    Column("after_mb", "after\nMB", ",.0f"),
    Column("open_ms", "2nd job\nms", ".0f"),
    Column("restart_s", "restart\ns", ".1f"),
)

_BUCKET = "bench"
_PROBE_S, _LOOK_S = 0.02, 0.05
_PER_CENT = 100
_MB = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--samples", type=positive, default=1_000_000, help="of the source (1000000)")
    parser.add_argument(
        "--sources", nargs="+", choices=SOURCES, default=list(SOURCES), help="what is listed (both)"
    )
    parser.add_argument(
        "--rounds", type=positive, default=1, help="rounds; the one with the least CPU counts (1)"
    )


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Run all measurements; ``say`` gets a line for each.

    Raises:
        SuperError: a process cannot be started, or the source cannot be listed.

    """
    started = Started(arguments)
    runs = []
    for number in range(arguments.rounds):
        for source in arguments.sources:
            say(f"round {number + 1} of {arguments.rounds}: {source}, {arguments.samples:,} samples")
            conditions = {"source": source, "samples": arguments.samples}
            runs.append(Run(conditions, number, _measured(source, arguments.samples)))
    rows = (
        {**conditions, **vars(min(rounds, key=lambda figures: figures.cpu_us_per_sample))}
        for conditions, rounds in by_conditions(runs)
    )
    return started.report(
        method=_METHOD, columns=_COLUMNS, rows=rows, rounds=(run.to_mapping() for run in runs)
    )


@dataclass(frozen=True)
class _Figures:
    cpu_us_per_sample: float
    wall_s: float
    probe_median_ms: float
    probe_p99_ms: float
    probe_most_ms: float
    peak_mb: float
    after_mb: float
    open_ms: float
    restart_s: float


def _measured(source: str, samples: int) -> _Figures:
    """List a source with a coordinator of its own, and start that again."""
    with private_directory() as directory, cache_server() as cache, listed_bucket(samples) as bucket:
        key_list = write_key_list(directory / "keys.parquet", samples) if source == "parquet" else ""
        url, recipe = f"s3://{_BUCKET}/train", Recipe.image(resize=256, crop=224)
        words = ("--store", "none", "--state", str(directory / "state"), "--slots", "1", "--owner", "bench")
        run = partial(coordinator, directory, cache, *words, environment=bucket.environment)
        with run() as server, contextlib.closing(Clients(server.address, cache.address)) as clients:
            with _Watch(server) as watch:
                dataset = clients.register(url, recipe, key_list=key_list)
            clients.start([clients.open(dataset, "first", batch_size=256, seed=0, epoch=0)])
            second = clients.open(dataset, "second", batch_size=256, seed=1, epoch=0)
            began_s = time.perf_counter()
            os.kill(server.pid, signal.SIGKILL)
        with run() as server, contextlib.closing(Clients(server.address, cache.address)) as clients:
            again = clients.register(url, recipe, key_list=key_list)
            clients.start([clients.open(again, "first", batch_size=256, seed=0, epoch=0)])
            restart_s = time.perf_counter() - began_s
    return _Figures(
        cpu_us_per_sample=1e6 * watch.cpu_s / samples,
        wall_s=watch.wall_s,
        probe_median_ms=1e3 * median(watch.answers_s),
        probe_p99_ms=1e3 * quantiles(watch.answers_s, n=_PER_CENT)[-1],
        probe_most_ms=1e3 * max(watch.answers_s),
        peak_mb=watch.peak_bytes / _MB,
        after_mb=watch.after_bytes / _MB,
        open_ms=1e3 * second.open_s,
        restart_s=restart_s,
    )


class _Watch:
    """What a coordinator and its process that lists spend, and how long health checks wait.

    Attributes:
        answers_s: of each health check.
        peak_bytes: the most anonymous memory, above that at the beginning.
        after_bytes: the same at the end.
        cpu_s: user and system time.
        wall_s: how long it took.
    """

    def __init__(self, server: Server) -> None:
        self.answers_s: list[float] = []
        self.peak_bytes = self.after_bytes = 0
        self.cpu_s = self.wall_s = 0.0
        self._process = psutil.Process(server.pid)
        self._ended = threading.Event()
        self._address = server.address
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._probe, self._look)]

    def __enter__(self) -> Self:
        self._idle_bytes, self._idle_cpu_s = self._anonymous(), self._cpu_s()
        self._began_s = time.perf_counter()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self.wall_s, self.cpu_s = time.perf_counter() - self._began_s, self._cpu_s() - self._idle_cpu_s
        self.after_bytes = self._anonymous() - self._idle_bytes

    def _probe(self) -> None:
        with grpc.insecure_channel(self._address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            while True:
                began_s = time.perf_counter()
                check(health_pb2.HealthCheckRequest(), timeout=60)
                self.answers_s.append(time.perf_counter() - began_s)
                if self._ended.wait(_PROBE_S):
                    return

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.peak_bytes = max(self.peak_bytes, self._anonymous() - self._idle_bytes)

    def _cpu_s(self) -> float:
        spent = self._process.cpu_times()  # with those of processes that have ended
        return float(spent.user + spent.system + spent.children_user + spent.children_system)

    def _anonymous(self) -> int:
        listing = [child for child in self._process.children() if _lists(child)]
        return sum(map(_anonymous_bytes, (self._process, *listing)))


def _lists(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return any(word.endswith("listing_process") for word in process.cmdline())
    return False


def _anonymous_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        memory = process.memory_info()
        return int(memory.rss - memory.shared)
    return 0  # it has ended
