"""Ways to ask a coordinator where the batches of an epoch are: by pages, one by one, or for nothing at all.

They go over one channel, without retries; how long they take is measured in :mod:`benchmarks.status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.errors import BenchmarkError
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["StatusCalls"]

_TIMEOUT_S = 30.0
_EPOCH = 0


class StatusCalls:
    """Asks about the batches of the first epoch of one job, rank 0; gives how many it was told of.

    Attributes:
        made: calls made; the caller may reset it.
        reply_bytes: bytes of their replies; likewise.

    """

    def __init__(self, coordinator: str, job: str, batch_ids: Sequence[bytes]) -> None:
        self.made = 0
        self.reply_bytes = 0
        self._job = job
        self._batch_ids = batch_ids
        self._channel = grpc.insecure_channel(coordinator)
        self._coordinator = CoordinatorStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def pages(self, page_batches: int) -> int:
        """The plan in pages, as the sampler asks for it."""
        position, end = 0, len(self._batch_ids)
        while position < end:
            request = pb.NextBatchesRequest(
                job=self._job,
                epoch=_EPOCH,
                position=position,
                count=min(page_batches, end - position),
                yielded=position,
                with_keys=True,
            )
            page = self._coordinator.NextBatches(request, timeout=_TIMEOUT_S)
            self._count(page.ByteSize())
            for batch in page.batches:
                _check_ready(batch.resident, len(batch.sample_ids) // ID_BYTES)
            position += len(page.batches)
        return position

    def statuses(self) -> int:
        """One call for each batch."""
        for batch_id in self._batch_ids:
            request = pb.GetBatchStatusRequest(batch_ids=[batch_id])
            reply = self._coordinator.GetBatchStatus(request, timeout=_TIMEOUT_S)
            self._count(reply.ByteSize())
            for status in reply.statuses:
                _check_ready(status.resident, status.samples)
        return len(self._batch_ids)

    def nothing(self) -> int:
        """A health check for each batch: what a call costs that says nothing of batches."""
        request = health_pb2.HealthCheckRequest()
        for _ in self._batch_ids:
            self._count(self._health.Check(request, timeout=_TIMEOUT_S).ByteSize())
        return len(self._batch_ids)

    def _count(self, reply_bytes: int) -> None:
        self.made += 1
        self.reply_bytes += reply_bytes


def _check_ready(resident: int, samples: int) -> None:
    if resident != samples or not samples:
        raise BenchmarkError(f"{resident} of a batch's {samples} samples are cached, though all were read")
