"""Simulated samplers and readers of many jobs. They request pages and send reports, but read no data."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import numpy as np

from benchmarks.harness.processes import BenchmarkError
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.cache import CacheAddress, CacheConnection, Credentials
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.protocol import PROTOCOL_VERSION
from superdl.super_wire.read_reports import ReadReport

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from superdl.super_wire.recipe import Recipe

# Batches per page. The next page is requested once no more than this many batches are unread.
PAGE_BATCHES = 32

_TIMEOUT_S = 120.0
_POLL_S = 0.1
_CLASSES = 1000
_NAME_DIGITS, _ETAG_DIGITS = 9, 32
_ROWS_AT_A_TIME = 2**17


def write_key_list(path: Path, samples: int) -> str:
    """Write a key list like ImageNet's, with labels and versions, and return its URL."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # The coordinator's work depends on the number of rows and their strings, not on images.
    schema = pa.schema({"key": pa.string(), "label": pa.int64(), "version": pa.string()})
    with pq.ParquetWriter(path, schema) as writer:
        for begin in range(0, samples, _ROWS_AT_A_TIME):
            indices = np.arange(begin, min(begin + _ROWS_AT_A_TIME, samples))
            labels = pa.array(indices % _CLASSES)
            folders, names = (pc.cast(numbers, pa.string()) for numbers in (labels, pa.array(indices)))
            names = pc.utf8_lpad(names, _NAME_DIGITS, "0")
            keys = pc.binary_join_element_wise("n", folders, "/", names, ".JPEG", "")
            versions = pc.utf8_lpad(names, _ETAG_DIGITS, "0")
            writer.write_table(pa.table([keys, labels, versions], schema))
    return path.as_uri()


@dataclass(slots=True)
class SimulatedJob:
    """A job with a single rank, and its progress."""

    name: str
    batches_per_epoch: int
    epoch: int
    samples: int = 0  # of a batch
    requested: int = 0  # batches of this epoch
    read: int = 0  # batches of this epoch
    batches: int = 0  # batches read in total


class Clients:
    """A client that opens jobs and advances them page by page."""

    def __init__(self, coordinator: str, cache: str) -> None:
        self._channel = grpc.insecure_channel(
            coordinator, options=[("grpc.max_receive_message_length", 8 * 2**20)]
        )
        self._coordinator = CoordinatorStub(self._channel)
        self._cache = CacheConnection(CacheAddress.parse(cache), Credentials())

    def close(self) -> None:
        """Close the connections."""
        self._cache.close()
        self._channel.close()

    def register(self, source: str, recipe: Recipe, *, key_list: str = "") -> bytes:
        """Register a source with a recipe, and return the dataset's id once it is listed."""
        request = pb.RegisterDatasetRequest(
            protocol_version=PROTOCOL_VERSION,
            source=source,
            key_list=key_list,
            recipe=recipe.json,
            run_id="bench",
        )
        dataset = self._coordinator.RegisterDataset(request, timeout=_TIMEOUT_S)
        while not dataset.ready:
            poll = pb.GetDatasetRequest(dataset_id=dataset.dataset_id, listed=dataset.listed, wait_s=10.0)
            dataset = self._coordinator.GetDataset(poll, timeout=_TIMEOUT_S)
        return bytes(dataset.dataset_id)

    def open(self, dataset_id: bytes, name: str, *, batch_size: int, seed: int, epoch: int) -> SimulatedJob:
        """Open a shuffled job at the start of ``epoch``."""
        request = pb.OpenJobRequest(
            dataset_id=dataset_id,
            job=name,
            batch_size=batch_size,
            replicas=1,
            seed=seed,
            shuffle=True,
            epoch=epoch,
        )
        job = self._coordinator.OpenJob(request, timeout=_TIMEOUT_S)
        return SimulatedJob(name, job.batches_per_epoch, epoch)

    def start(self, jobs: Sequence[SimulatedJob]) -> None:
        """Request each job's first page."""
        # First pages differ in size, so that jobs request later pages at different times.
        for number, job in enumerate(jobs):
            self._request_page(job, PAGE_BATCHES + number % PAGE_BATCHES)

    def advance(self, jobs: Sequence[SimulatedJob], batches: int, rate: float = math.inf) -> None:
        """Read ``batches`` batches from the jobs in turn, ``rate`` per second, and wait for the last one."""
        began_s = time.perf_counter()
        for count, job in zip(range(batches), itertools.cycle(jobs), strict=False):
            ahead_s = began_s + count / rate - time.perf_counter()
            if ahead_s > 0:
                time.sleep(ahead_s)
            self._read_one(job)
        self._wait_until_read(jobs)

    def close_jobs(self, jobs: Sequence[SimulatedJob]) -> None:
        """Close the jobs."""
        for job in jobs:
            self._coordinator.CloseJob(pb.CloseJobRequest(job=job.name, rank=0), timeout=_TIMEOUT_S)

    def _read_one(self, job: SimulatedJob) -> None:
        """Report one batch as read, and request the next page if there is room."""
        report = ReadReport(
            rank=0,
            epoch=job.epoch,
            position=job.read,
            samples=job.samples,
            hits=job.samples,
            wait_us=0,
            read_us=9000,
            check_us=0,
            size_bytes=job.samples * 150_592,
            attempt=1,
            done=1,
        )
        self._cache.ask(*report.command(job.name))
        job.read += 1
        job.batches += 1
        if job.read == job.batches_per_epoch:
            job.epoch, job.requested, job.read = job.epoch + 1, 0, 0
        if job.requested < job.batches_per_epoch and job.requested - job.read <= PAGE_BATCHES:
            self._request_page(job, PAGE_BATCHES)

    def _request_page(self, job: SimulatedJob, count: int) -> None:
        request = pb.NextBatchesRequest(
            job=job.name,
            rank=0,
            epoch=job.epoch,
            position=job.requested,
            count=count,
            yielded=job.read,
            with_keys=True,
        )
        page = self._coordinator.NextBatches(request, timeout=_TIMEOUT_S)
        if not page.batches or page.batches[0].position != job.requested:
            raise BenchmarkError(
                f"job {job.name} received {len(page.batches)} batches at position {job.requested}"
            )
        job.samples = len(page.batches[0].sample_ids) // ID_BYTES
        job.requested += len(page.batches)

    def _wait_until_read(self, jobs: Sequence[SimulatedJob]) -> None:
        names, expected = {job.name for job in jobs}, sum(job.batches for job in jobs)
        until_s = time.monotonic() + _TIMEOUT_S
        while True:
            reply = self._coordinator.GetJobStats(pb.GetJobStatsRequest(), timeout=_TIMEOUT_S)
            stats = [job for job in reply.jobs if job.job in names]
            read = sum(job.batches_read for job in stats)
            in_flight = sum(job.requests_in_flight for job in stats)
            if read >= expected and not in_flight:
                return
            if time.monotonic() > until_s:
                raise BenchmarkError(
                    f"only {read} of {expected} reports were read, with {in_flight} requests in flight"
                )
            time.sleep(_POLL_S)
