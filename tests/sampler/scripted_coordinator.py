"""A real gRPC server that speaks the coordinator's protocol as scripted by a test.

Its plans are made of digests; it lists, decodes and caches nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire import coordinator_pb2_grpc
from superdl.super_wire.errors import SuperError, UnknownJobError
from superdl.super_wire.ids import digest128
from superdl.super_wire.protocol import ERROR_METADATA_KEY, PROTOCOL_VERSION, TOKEN_METADATA_KEY
from tests.fixtures.ids import batch_id


@dataclass
class Script:
    """What the server returns. Tests change it while it runs."""

    size: int = 1000
    batches: int = 50
    fingerprint: bytes = b"f" * 16
    page_fingerprints: list[bytes] = field(default_factory=list)  # of the next pages of samples, if others
    protocol_version: int = PROTOCOL_VERSION
    listing: list[int] = field(default_factory=list)  # samples listed at each poll; ready after the last
    packing: bool = False  # whether it reports packing until it is ready
    cache: str = "unix:///nowhere/redis.sock"
    store: str = ""  # its directory
    store_id: str = ""
    page_batches: int = 1000  # most batches in a reply
    resident: set[int] | None = None  # positions that are in the cache; None: all
    warnings: tuple[str, ...] = ()
    job_answered: str = ""  # instead of the job that was opened
    shift: int = 0  # added to the positions of a page
    cache_stats: pb.CacheStats = field(default_factory=lambda: pb.CacheStats(budget_bytes=77))
    prices: list[pb.ExecutorPrices] = field(default_factory=list)
    fillings: list[pb.Filling] = field(
        default_factory=list
    )  # replies to FillUp in order; the last one is repeated
    failures: dict[str, list[Exception | grpc.StatusCode | None]] = field(default_factory=dict)


class ScriptedCoordinator(coordinator_pb2_grpc.CoordinatorServicer):
    """Serves on a free loopback port, with TLS if ``tls`` is given."""

    def __init__(self, tls=None):
        self.script = Script()
        self.jobs = {}
        self.calls = []
        self.tokens = []  # what each call showed
        self.heard = threading.Condition()
        self.gate = threading.Event()  # NextBatches waits for it
        self.gate.set()
        self.closing = threading.Event()  # CloseJob waits for it
        self.closing.set()
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        coordinator_pb2_grpc.add_CoordinatorServicer_to_server(self, self._server)
        if tls is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", tls)
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self):
        self.gate.set()
        self.closing.set()
        self._server.stop(0).wait(10)

    def count(self, method):
        return sum(name == method for name, _ in self.calls)

    def requests(self, method):
        return [request for name, request in self.calls if name == method]

    def wait_for(self, condition, timeout_s=20.0):
        """Wait until ``condition()`` holds, checking after each call."""
        with self.heard:
            assert self.heard.wait_for(condition, timeout_s), Counter(name for name, _ in self.calls)

    def _hear(self, method, request, context):
        with self.heard:
            self.calls.append((method, request))
            self.tokens.append(dict(context.invocation_metadata()).get(TOKEN_METADATA_KEY, ""))
            planned = self.script.failures.get(method)
            failure = planned.pop(0) if planned else None
            self.heard.notify_all()
        if isinstance(failure, SuperError):
            refuse(context, failure)
        if isinstance(failure, grpc.StatusCode):
            context.abort(failure, "as scripted")

    def RegisterDataset(self, request, context):
        self._hear("RegisterDataset", request, context)
        return self._dataset(0)

    def GetDataset(self, request, context):
        self._hear("GetDataset", request, context)
        polls = self.count("GetDataset")
        return self._dataset(polls)

    def _dataset(self, polls):
        script = self.script
        listing = script.listing or [script.size]
        ready = polls >= len(script.listing)
        return pb.Dataset(
            protocol_version=script.protocol_version,
            dataset_id=b"d" * 16,
            ready=ready,
            listed=listing[min(polls, len(listing) - 1)],
            packing=script.packing and not ready,
            size=script.size if ready else 0,
            fingerprint=script.fingerprint if ready else b"",
            classes=["cat", "dog"] if ready else [],
            label_dtype="int64" if ready else "",
            warnings=script.warnings if ready else (),
        )

    def GetSamples(self, request, context):
        self._hear("GetSamples", request, context)
        places = range(self.script.size)[request.start : request.start + 300]
        keys = [b"%d.jpg" % at for at in places] if request.with_keys else []
        others = self.script.page_fingerprints
        return pb.Samples(
            labels=b"".join(int(at % 2).to_bytes(8, "little") for at in places),
            bucket="file:///images",
            keys=b"".join(keys),
            key_lengths=b"".join(len(key).to_bytes(4, "little") for key in keys),
            fingerprint=others.pop(0) if others else self.script.fingerprint,
        )

    def OpenJob(self, request, context):
        self._hear("OpenJob", request, context)
        self.jobs[request.job] = request.batch_size
        job = self.script.job_answered or request.job
        return pb.Job(
            job=job,
            cache=self.script.cache,
            batches_per_epoch=self.script.batches,
            store=self.script.store,
            store_id=self.script.store_id,
        )

    def NextBatches(self, request, context):
        self._hear("NextBatches", request, context)
        if request.job not in self.jobs:
            refuse(context, UnknownJobError(f"no job {request.job}"))
        assert self.gate.wait(20)
        last = min(request.position + min(request.count, self.script.page_batches), self.script.batches)
        size = self.jobs[request.job]
        return pb.Page(
            batches=[
                self._batch(request, position + self.script.shift, size)
                for position in range(request.position, last)
            ]
        )

    def _batch(self, request, position, size):
        resident = self.script.resident
        ids = planned_ids(request.rank, request.epoch, position, size)
        return pb.Batch(
            position=position,
            batch_id=batch_id(ids),
            sample_ids=ids,
            labels=b"\0" * 8 * size,
            keys=[f"{position}/{offset}.jpg" for offset in range(size)] if request.with_keys else [],
            resident=size if resident is None or position in resident else 0,
        )

    def FillUp(self, request, context):
        self._hear("FillUp", request, context)
        fillings = self.script.fillings
        return fillings.pop(0) if len(fillings) > 1 else fillings[0]

    def CloseJob(self, request, context):
        self._hear("CloseJob", request, context)
        assert self.closing.wait(60)
        return pb.CloseJobReply(closed=self.jobs.pop(request.job, None) is not None)

    def GetJobStats(self, request, context):
        self._hear("GetJobStats", request, context)
        jobs = [pb.JobStats(job=job, invocations=3, decode_s=1.5) for job in request.jobs if job in self.jobs]
        return pb.JobStatsList(jobs=jobs, cache=self.script.cache_stats, prices=self.script.prices)


def planned_ids(rank, epoch, position, size):
    """Return a planned batch's sample ids."""
    return b"".join(digest128(b"%d %d %d %d" % (rank, epoch, position, at)) for at in range(size))


def refuse(context, error):
    context.set_trailing_metadata(((ERROR_METADATA_KEY, type(error).__name__),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
