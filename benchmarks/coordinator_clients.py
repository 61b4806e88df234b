"""What samplers and readers do to a coordinator, many jobs of them from one process: pages asked for as the
sampler asks, read reports left as readers leave them. Nothing is read and nothing trained.

What it costs the coordinator is measured by :mod:`benchmarks.coordinator`.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import grpc

from benchmarks.errors import BenchmarkError
from super_dataset.resp import encode_report
from super_wire import coordinator_pb2 as pb
from super_wire.coordinator_pb2_grpc import CoordinatorStub
from super_wire.ids import ID_BYTES
from super_wire.protocol import PROTOCOL_VERSION
from super_wire.report import ReadReport

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from super_wire.recipe import Recipe

__all__ = ["PAGE_BATCHES", "Clients", "SimulatedJob"]

PAGE_BATCHES = 32
"""The sampler asks for a page once there is room for so many batches, and has as many left by then."""

_TIMEOUT_S = 120.0
_THREADS = 4
_POLL_S = 0.1
_REPLY_LINES = 2


@dataclass(slots=True)
class SimulatedJob:
    """One job with one rank, and where it stands: all before ``asked`` is known, all before ``read`` read."""

    name: str
    batches_per_epoch: int
    epoch: int
    open_s: float
    asked: int = 0
    read: int = 0
    batches: int = 0
    reported: int = 0


class Clients:
    """Opens jobs and has them go on, page by page, from a few threads."""

    def __init__(self, coordinator: str, cache_path: str) -> None:
        self._cache_path = cache_path
        self._channel = grpc.insecure_channel(
            coordinator, options=[("grpc.max_receive_message_length", 8 * 2**20)]
        )
        self._coordinator = CoordinatorStub(self._channel)
        self._pool = ThreadPoolExecutor(_THREADS)
        self._connections = [self._connect() for _ in range(_THREADS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()
        self._channel.close()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_TIMEOUT_S)
        connection.connect(self._cache_path)
        return connection

    def register(self, source: str, recipe: Recipe) -> bytes:
        """Have a source listed under a recipe; gives the dataset's id."""
        request = pb.RegisterDatasetRequest(
            protocol_version=PROTOCOL_VERSION, source=source, recipe=recipe.json, run_id="bench"
        )
        dataset = self._coordinator.RegisterDataset(request, timeout=_TIMEOUT_S)
        while not dataset.ready:
            poll = pb.GetDatasetRequest(dataset_id=dataset.dataset_id, listed=dataset.listed, wait_s=10.0)
            dataset = self._coordinator.GetDataset(poll, timeout=_TIMEOUT_S)
        return bytes(dataset.dataset_id)

    def open(self, dataset_id: bytes, name: str, *, batch_size: int, seed: int, epoch: int) -> SimulatedJob:
        """Open a shuffled job that begins at the start of ``epoch``; ``open_s`` is how long that took."""
        request = pb.OpenJobRequest(
            dataset_id=dataset_id,
            job=name,
            batch_size=batch_size,
            replicas=1,
            seed=seed,
            shuffle=True,
            epoch=epoch,
        )
        began_s = time.perf_counter()
        job = self._coordinator.OpenJob(request, timeout=_TIMEOUT_S)
        return SimulatedJob(name, job.batches_per_epoch, epoch, time.perf_counter() - began_s)

    def go_on(self, jobs: Sequence[SimulatedJob], pages: int) -> None:
        """Each job asks for so many pages and reads as many batches; waits until all is reported."""
        shares = [jobs[number::_THREADS] for number in range(_THREADS)]

        def work(number: int) -> None:
            for _ in range(pages):
                for job in shares[number]:
                    self._turn(job, self._connections[number])

        list(self._pool.map(work, range(_THREADS)))
        self._wait_until_read(jobs)

    def close_jobs(self, jobs: Sequence[SimulatedJob]) -> None:
        """Say goodbye."""
        for job in jobs:
            self._coordinator.CloseJob(pb.CloseJobRequest(job=job.name, rank=0), timeout=_TIMEOUT_S)

    def produced(self, jobs: Sequence[SimulatedJob]) -> tuple[int, int]:
        """Samples that functions produced for these jobs, and their invocations."""
        found = self._stats(jobs)
        return sum(stats.samples_produced for stats in found), sum(stats.invocations for stats in found)

    def _turn(self, job: SimulatedJob, connection: socket.socket) -> None:
        """One page, asked for when one is left; and reports of what was read meanwhile."""
        request = pb.NextBatchesRequest(
            job=job.name,
            rank=0,
            epoch=job.epoch,
            position=job.asked,
            count=PAGE_BATCHES,
            yielded=job.read,
            with_keys=True,
        )
        page = self._coordinator.NextBatches(request, timeout=_TIMEOUT_S)
        count = len(page.batches)
        if not count or page.batches[0].position != job.asked:
            raise BenchmarkError(f"job {job.name} got a page of {count} batches at {job.asked}")
        samples = len(page.batches[0].sample_ids) // ID_BYTES
        job.asked += count
        job.batches += count
        ended = job.asked == job.batches_per_epoch
        until = job.asked if ended else max(job.read, job.asked - PAGE_BATCHES)
        self._report(job, until, samples, connection)
        if ended:
            job.epoch, job.asked, job.read = job.epoch + 1, 0, 0

    def _report(self, job: SimulatedJob, until: int, samples: int, connection: socket.socket) -> None:
        reports = [
            ReadReport(
                rank=0,
                epoch=job.epoch,
                position=position,
                samples=samples,
                hits=samples,
                wait_us=0,
                read_us=9000,
                size_bytes=samples * 150_592,
                attempt=1,
                done=1,
            )
            for position in range(job.read, until)
        ]
        if not reports:
            return
        connection.sendall(b"".join(encode_report(job.name, report) for report in reports))
        lines = 0
        while lines < _REPLY_LINES * len(reports):
            answer = connection.recv(65_536)
            if not answer or b"-ERR" in answer:
                raise BenchmarkError(f"the cache refused a report: {answer[:200]!r}")
            lines += answer.count(b"\n")
        job.read = until
        job.reported += len(reports)

    def _wait_until_read(self, jobs: Sequence[SimulatedJob]) -> None:
        expected = sum(job.reported for job in jobs)
        until_s = time.monotonic() + _TIMEOUT_S
        while True:
            stats = self._stats(jobs)
            read, under_way = (
                sum(one.batches_read for one in stats),
                sum(one.requests_in_flight for one in stats),
            )
            if read >= expected and not under_way:
                return
            if time.monotonic() > until_s:
                raise BenchmarkError(
                    f"{read} of {expected} reports were read, {under_way} requests are under way"
                )
            time.sleep(_POLL_S)

    def _stats(self, jobs: Sequence[SimulatedJob]) -> Sequence[pb.JobStats]:
        wanted = {job.name for job in jobs}
        reply = self._coordinator.GetJobStats(pb.GetJobStatsRequest(), timeout=_TIMEOUT_S)
        return [stats for stats in reply.jobs if stats.job in wanted]
