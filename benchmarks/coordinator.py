"""The cost of the coordinator with many jobs and while listing a source: ``superdl bench coordinator``."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import threading
import time
from functools import partial
from statistics import quantiles
from typing import TYPE_CHECKING, Self

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.coordinator_clients import PAGE_BATCHES, Clients, SimulatedJob, write_key_list
from benchmarks.harness.image_sets import add_option
from benchmarks.harness.processes import Server, cache_server, coordinator, private_directory, process_cpu_s
from benchmarks.harness.results import BenchmarkReport, Column, Run
from benchmarks.listed_bucket import listed_bucket
from superdl.super_wire.recipe import Recipe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

CACHED, RANDOM = "cached, flat out", "random recipe"
SOURCES = ("s3", "parquet")

_METHOD = (
    (
        "jobs: one coordinator process with its real service, core, catalogs and upkeep on a unix socket, "
        "and a real cache server. Its CPU is counted until the last read report has been processed. Another "
        f"process simulates the jobs: it requests pages of {PAGE_BATCHES} batches, as the sampler does, and "
        "sends a report for each batch. No function runs. Instead, an executor waits for 20 ms plus 2 ms per "
        "sample, then reports all samples as cached."
    ),
    (
        f"'{CACHED}': all samples have been produced, and jobs read as fast as possible. '{RANDOM}': the "
        "samples of each epoch are requested. Each job reads up to 100 batches per second, and all jobs "
        "together up to --rate."
    ),
    (
        "listing: a bucket on a local server, or a key list. CPU is the time used by the coordinator and its "
        "listing process. 'check': 99% of health checks took less. 'peak' and 'after' are anonymous memory "
        "in excess of the idle coordinator's. 'restart': from the kill until a new coordinator has returned "
        "the first page. Figures are medians over the rounds."
    ),
)

_COLUMNS = (
    Column("source", "source"),
    Column("jobs", "jobs", ",d"),
    Column("batches_per_cpu_s", "batches/s\nof a core", ",.0f"),
    Column("batches_per_s", "batches\n/s", ",.0f"),
    Column("cpu_us_per_sample", "CPU us\n/sample", ".1f"),
    Column("wall_s", "s", ".1f"),
    Column("check_p99_ms", "check ms\n99%", ".1f"),
    Column("peak_mb", "peak\nMB", ",.0f"),
    Column("after_mb", "after\nMB", ",.0f"),
    Column("restart_s", "restart\ns", ".1f"),
)

_SETTINGS = ("--cache-bytes", str(2**50), "--catalog-max-age-s", "3600")  # nothing is dropped or listed again
_WARM_UP_BATCHES = 4
_FILL_BATCH, _FILL_RATE = 4096, 30.0
_FILL_EPOCHS = 2  # the second epoch produces samples that were read past before they were ready
_RATE_OF_A_JOB = 100.0
_CHECK_S = 0.02
_PER_CENT = 100
_MB = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    add_option(parser, "--only", list(PARTS), "parts to measure", choices=PARTS)
    add_option(parser, "--jobs", [1, 10, 100, 1000], "numbers of concurrent jobs")
    add_option(parser, "--samples", 1_280_000, "samples of each source")
    add_option(parser, "--batch-size", 256, "samples per batch")
    add_option(parser, "--rate", 1500, "batches per second that all jobs together read")
    add_option(parser, "--seconds", 8, "seconds per measurement of jobs")
    add_option(parser, "--sources", list(SOURCES), "sources to list", choices=SOURCES)
    add_option(parser, "--rounds", 2, "number of rounds")


def measure(arguments: argparse.Namespace, log: Callable[[str], None]) -> BenchmarkReport:
    """Run all measurements, calling ``log`` with a line for each."""
    return BenchmarkReport(
        method=_METHOD,
        group_by=("part", "way"),
        columns=_COLUMNS,
        runs=[run for part in arguments.only for run in PARTS[part](arguments, log)],
    )


# ----------------------------------------------------------------------------------------------- jobs


def _jobs(arguments: argparse.Namespace, log: Callable[[str], None]) -> Iterator[Run]:
    with (
        private_directory() as directory,
        cache_server() as cache,
        coordinator(directory, cache, *_SETTINGS, module="benchmarks.simulated_functions") as server,
        contextlib.closing(Clients(server.address, cache.address)) as clients,
    ):
        log("listing the source and reading a first epoch")
        source = directory / "bench"
        source.mkdir()
        register = partial(
            clients.register,
            source.as_uri(),
            key_list=write_key_list(directory / "keys.parquet", arguments.samples),
        )
        ways = {
            CACHED: register(Recipe.image(resize=256, crop=224)),
            RANDOM: register(Recipe([{"op": "random_resized_crop", "size": 224}])),
        }
        _fill(clients, ways[CACHED], arguments.samples)
        rounds = itertools.product(range(1, arguments.rounds + 1), ways, arguments.jobs)
        for epoch, (number, way, jobs) in enumerate(rounds):
            log(f"round {number} of {arguments.rounds}: {way}, {jobs} jobs")
            # Each measurement has an epoch of its own, so that a random recipe's ids are fresh.
            opened = [
                clients.open(
                    ways[way], f"job-{epoch}-{seed}", batch_size=arguments.batch_size, seed=seed, epoch=epoch
                )
                for seed in range(jobs)
            ]
            figures = _measured_jobs(clients, server, arguments, opened, flat_out=way == CACHED)
            yield Run({"part": "jobs", "way": way, "source": None, "jobs": jobs}, figures)


def _fill(clients: Clients, dataset: bytes, samples: int) -> None:
    """Read all samples without measuring, slowly enough for functions to keep up."""
    job = clients.open(dataset, "fill", batch_size=_FILL_BATCH, seed=0, epoch=0)
    clients.start([job])
    for _ in range(_FILL_EPOCHS):
        clients.advance([job], -(-samples // _FILL_BATCH), _FILL_RATE)
    clients.close_jobs([job])


def _measured_jobs(
    clients: Clients,
    server: Server,
    arguments: argparse.Namespace,
    jobs: Sequence[SimulatedJob],
    *,
    flat_out: bool,
) -> dict[str, float]:
    paced = min(arguments.rate, len(jobs) * _RATE_OF_A_JOB)
    rate, offered = (math.inf, arguments.rate) if flat_out else (paced, paced)
    batches = int(offered * arguments.seconds)
    clients.start(jobs)
    clients.advance(jobs, len(jobs) * _WARM_UP_BATCHES, rate)
    began_s, cpu_s = time.perf_counter(), process_cpu_s(server.pid)
    clients.advance(jobs, batches, rate)
    wall_s, cpu_s = time.perf_counter() - began_s, process_cpu_s(server.pid) - cpu_s
    clients.close_jobs(jobs)
    return {"batches_per_cpu_s": batches / cpu_s, "batches_per_s": batches / wall_s}


# -------------------------------------------------------------------------------------------- listing


def _listing(arguments: argparse.Namespace, log: Callable[[str], None]) -> Iterator[Run]:
    """Measure how a new coordinator lists each source, and how it restarts."""
    for number, source in itertools.product(range(1, arguments.rounds + 1), arguments.sources):
        log(f"round {number} of {arguments.rounds}: listing {source}, {arguments.samples:,} samples")
        conditions = {"part": "listing", "way": f"{arguments.samples:,} samples", "source": source}
        yield Run(conditions, _measured_listing(source, arguments.samples))


def _measured_listing(source: str, samples: int) -> dict[str, float]:
    with private_directory() as directory, cache_server() as cache, listed_bucket(samples) as bucket:
        key_list = write_key_list(directory / "keys.parquet", samples) if source == "parquet" else ""
        words = ("--store", "none", "--state", str(directory / "state"), "--slots", "1", "--owner", "bench")
        run = partial(coordinator, directory, cache, *words, environment=bucket.environment)

        def list_it(clients: Clients) -> bytes:
            recipe = Recipe.image(resize=256, crop=224)
            return clients.register("s3://bench/train", recipe, key_list=key_list)

        def first_page(clients: Clients, dataset: bytes) -> None:
            clients.start([clients.open(dataset, "job", batch_size=256, seed=0, epoch=0)])

        with run() as server, contextlib.closing(Clients(server.address, cache.address)) as clients:
            with _Watch(server) as watch:
                dataset = list_it(clients)
            first_page(clients, dataset)
            began_s = time.perf_counter()
            os.kill(server.pid, signal.SIGKILL)
        with run() as server, contextlib.closing(Clients(server.address, cache.address)) as clients:
            first_page(clients, list_it(clients))
            restart_s = time.perf_counter() - began_s
    return {
        "cpu_us_per_sample": 1e6 * watch.cpu_s / samples,
        "wall_s": watch.wall_s,
        "check_p99_ms": 1e3 * quantiles(watch.latencies_s, n=_PER_CENT)[-1],
        "peak_mb": watch.peak_bytes / _MB,
        "after_mb": watch.after_bytes / _MB,
        "restart_s": restart_s,
    }


class _Watch:
    """Measure the resource use of a coordinator and its listing process, and the latency of health checks."""

    def __init__(self, server: Server) -> None:
        self.latencies_s: list[float] = []
        # Anonymous memory above that at the beginning.
        self.peak_bytes = self.after_bytes = 0
        self.cpu_s = self.wall_s = 0.0
        self._process = psutil.Process(server.pid)
        self._ended = threading.Event()
        self._address = server.address
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._idle_bytes, self._idle_cpu_s = self._anonymous(), self._cpu_s()
        self._began_s = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.wall_s, self.cpu_s = time.perf_counter() - self._began_s, self._cpu_s() - self._idle_cpu_s
        self.after_bytes = self._anonymous() - self._idle_bytes

    def _watch(self) -> None:
        with grpc.insecure_channel(self._address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            while not self._ended.wait(_CHECK_S):
                began_s = time.perf_counter()
                check(health_pb2.HealthCheckRequest(), timeout=60)
                self.latencies_s.append(time.perf_counter() - began_s)
                self.peak_bytes = max(self.peak_bytes, self._anonymous() - self._idle_bytes)

    def _cpu_s(self) -> float:
        spent = self._process.cpu_times()  # includes processes that have ended
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


# By the name that --only accepts.
PARTS = {"jobs": _jobs, "listing": _listing}
