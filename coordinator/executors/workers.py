"""The ``workers`` executor, to which ``superdl worker`` processes connect, as in tf.data service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from superdl.coordinator.core import ExecutorResized
from superdl.coordinator.executors.base import (
    DIGEST,
    MAX_KIND,
    Executor,
    one_line,
    setting,
)
from superdl.coordinator.executors.messages import encoder, read_result
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire import coordinator_pb2_grpc as pb_grpc
from superdl.super_wire.errors import ConfigError, ProtocolMismatchError, SuperError
from superdl.super_wire.protocol import ERROR_METADATA_KEY, PROTOCOL_VERSION, installed_version
from superdl.super_wire.request import RequestKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from superdl.coordinator.executors.base import ExecutorContext
    from superdl.coordinator.executors.connected_workers import ConnectedWorker, Workers
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

_log = logging.getLogger(__name__)

_MAX_SLOTS = 1024
_STUCK_S, _SILENCE_S = 1.0, 15.0
_NO_DECODERS = (
    "this coordinator does not use workers. Add workers to its executors (SUPER_EXECUTOR=workers), or start "
    "this worker with --store-only"
)
_NO_SAVERS = (
    "this coordinator needs no workers with --store-only: either its functions see its store, or it has no "
    "store (SUPER_STORE)"
)


@dataclass(frozen=True)
class WorkersSettings:
    """Settings for the workers executor."""

    shared_files: bool = setting(
        default=False, what="workers see this machine's files at the same paths, for file:// sources"
    )


class WorkersExecutor(Executor):
    """An executor that runs functions in connected workers."""

    name = "workers"
    region = ""
    files_remedy = (
        "set SUPER_SHARED_FILES=1 (--shared-files) if all workers see it at the same path, otherwise "
        f"{Executor.files_remedy}"
    )

    def __init__(self, settings: WorkersSettings, context: ExecutorContext) -> None:
        if context.workers is None:
            raise ConfigError("workers need a coordinator to connect to, but there is none here")
        self.remote = not settings.shared_files
        self._workers: Workers = context.workers

    @property
    def scaling(self) -> ExecutorResized:  # type: ignore[override]  # it changes
        """Capacity for one running and one waiting request per slot."""
        return ExecutorResized(self._workers.slots)

    @property
    def connected(self) -> list[pb.WorkerStats]:  # type: ignore[override]  # they come and go
        """Statistics for the connected workers."""
        return self._workers.stats

    @property
    def slot_failures(self) -> Mapping[str, int]:  # type: ignore[override]  # they grow
        """Number of slot failures of each kind."""
        return self._workers.failures

    @property
    def fingerprint(self) -> str:  # type: ignore[override]  # it is the first worker's
        """The workers' decoder fingerprint."""
        return self._workers.fingerprint

    async def start(self) -> None:
        """Wait for the first worker, unless workers only restore and save."""
        if not self._workers.decodes:
            return
        _log.info("waiting for the first worker to connect")
        await self._workers.first()

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run a request in a free slot. See :class:`.base.Executor`."""
        of_store, encode = not request.kind.decodes, encoder(request)

        def encode_for(sees_store: bool) -> bytes:  # noqa: FBT001  # the only argument
            # Without the store, a worker can only decode.
            return encode() if sees_store or of_store else encode(kind=RequestKind.DECODE, store="")

        answer = await self._workers.run(encode_for, timeout_s, of_store=of_store)
        return read_result(answer, request, "a worker")

    async def close(self) -> None:
        """End the workers' streams. Workers wait for the next coordinator, or exit."""
        self._workers.close()


class WorkServicer(pb_grpc.CoordinatorServicer):
    """A servicer for workers only. Each call to ``Work`` is one worker's stream.

    ``workers`` maps ``True`` to workers that decode, and ``False`` to workers that only restore and save.
    """

    def __init__(self, workers: Mapping[bool, Workers]) -> None:
        self.workers = workers

    async def Work(  # noqa: N802  # the protocol's name
        self, incoming: AsyncIterator[pb.FromWorker], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ToWorker]:
        """Admit a worker after its hello, then yield the messages to send to it."""
        hello = asyncio.ensure_future(anext(incoming, pb.FromWorker()))
        silence_s = min((group.silence_s for group in self.workers.values()), default=_SILENCE_S)
        await asyncio.wait([hello], timeout=silence_s)
        if not hello.done():  # aborting the call ends the read
            hello.add_done_callback(asyncio.Future.exception)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the worker's hello did not arrive")
            return
        try:
            group = _group_for(hello.result(), self.workers)
            worker = group.admit(hello.result().hello)
        except SuperError as error:
            # A refused worker belongs to no executor, so all of them show the reason.
            for group in self.workers.values():
                group.refusal = str(error)
            _log.warning("refused a worker: %s", error)
            metadata = ((ERROR_METADATA_KEY, type(error).__name__),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), metadata)
            return
        except Exception as error:  # noqa: BLE001  # gRPC raises several types for malformed bytes
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the worker's hello is malformed: {error!r}"
            )
            return
        # Never cancel this task, since gRPC would write to freed memory. It ends with the stream.
        group.tasks.start(_read_messages(group, worker, incoming, context))
        try:
            worker.send(welcome=pb.Welcome())
            while (message := await worker.outgoing.get()) is not None:
                yield message
        finally:
            worker.has_ended.set()
            group.drop(worker)


def _group_for(message: pb.FromWorker, workers: Mapping[bool, Workers]) -> Workers:
    """Return the group for the worker that sent a hello, or raise ``SuperError`` to refuse it."""
    if not message.HasField("hello"):
        raise ConfigError("a worker's first message must be its hello")
    hello = message.hello
    if (hello.protocol_version, hello.version) != (PROTOCOL_VERSION, installed_version()):
        raise ProtocolMismatchError(
            f"this coordinator is SUPER {installed_version()} (protocol version {PROTOCOL_VERSION}), but the "
            f"worker is {one_line(hello.version, MAX_KIND)} ({hello.protocol_version}). Install the same "
            "version on both sides"
        )
    if hello.trouble:
        raise ConfigError(f"this worker cannot run functions: {one_line(hello.trouble)}")
    if not 1 <= hello.slots <= _MAX_SLOTS:
        raise ConfigError(f"a worker must have 1 to {_MAX_SLOTS} slots, not {hello.slots}")
    if not DIGEST.fullmatch(hello.fingerprint):
        raise ConfigError("a worker's hello needs a decoder fingerprint of 32 hex digits")
    group = workers.get(not hello.store_only)
    if group is None:
        raise ConfigError(_NO_SAVERS if hello.store_only else _NO_DECODERS)
    return group


async def _read_messages(
    group: Workers,
    worker: ConnectedWorker,
    incoming: AsyncIterator[pb.FromWorker],
    context: grpc.aio.ServicerContext[Any, Any],
) -> None:
    """Process messages until the stream ends. End it if the worker falls silent."""

    def give_up() -> None:
        words = "dropping the worker %s, which has sent nothing for %g s"
        _log.warning(words, worker.name, group.silence_s)
        group.drop(worker)
        group.tasks.start(_abort_stuck(worker, context))

    loop = asyncio.get_running_loop()
    watchdog = loop.call_later(group.silence_s, give_up)
    try:
        async for message in incoming:
            watchdog.cancel()
            watchdog = loop.call_later(group.silence_s, give_up)
            if message.HasField("answer"):
                group.accept_answer(worker, message.answer)
            elif message.HasField("heartbeat"):
                group.record_heartbeat(worker, message.heartbeat)
                # The reply shows the worker that the coordinator is alive.
                worker.send(heartbeat=pb.Heartbeat())
            elif message.HasField("draining"):
                worker.is_draining = True
    except Exception as error:  # noqa: BLE001  # gRPC raises several types for an ended stream
        _log.debug("the stream of the worker %s ended: %r", worker.name, error)
    finally:
        watchdog.cancel()
        group.drop(worker)


async def _abort_stuck(worker: ConnectedWorker, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Abort a stream that cannot end because a message is still in flight."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STUCK_S):
            await worker.has_ended.wait()
            return
    # The stream sees this, or has ended.
    with contextlib.suppress(grpc.aio.AbortError, grpc.aio.UsageError):
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the worker was silent for too long")
