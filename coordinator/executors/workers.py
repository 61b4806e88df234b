"""The ``workers`` executor: functions in processes that call in (``superdl worker``), wherever they run.

Each worker holds one stream open, over which it gets requests and answers them. Its capacity is the sum of
their slots, and changes as they come and go. A worker whose stream breaks, or that is silent for too long,
loses its requests, which are made again elsewhere. tf.data service lets its workers register with a
dispatcher in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import re
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import grpc

from superdl.coordinator.executors.base import (
    MAX_KIND,
    ConnectionLostError,
    Executor,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
    Scaling,
    ThrottledError,
    one_line,
    setting,
)
from superdl.coordinator.executors.messages import read_object, read_result
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.cancelling import HeldTasks
from superdl.super_wire.errors import ConfigError, CoordinatorError, ProtocolMismatchError, SuperError
from superdl.super_wire.protocol import ERROR_METADATA_KEY, PROTOCOL_VERSION, installed_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from superdl.coordinator.executors.base import ExecutorContext
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = ["Workers", "WorkersExecutor", "WorkersSettings"]

_log = logging.getLogger(__name__)

MAX_WORKERS, MAX_SLOTS = 4096, 1024
_DIGEST = re.compile(r"[0-9a-f]{32}")
_ABSENCE = "no worker has called in: start some with superdl worker"
_STUCK_S = 1.0
_MARGIN_S = 10.0
"""How much longer than a request's own time its answer may take: the worker ends what is over its time."""
_KINDS: dict[str, type[ExecutorError]] = {
    "crashed": FunctionCrashedError,
    "timed_out": FunctionTimedOutError,
    "raised": FunctionRaisedError,
    "too_large": PayloadTooLargeError,
    "busy": ThrottledError,
}


class _Worker:
    """A connected worker."""

    def __init__(self, hello: pb.WorkerHello) -> None:
        self.name, self.slots = one_line(hello.name, MAX_KIND) or "a worker", hello.slots
        self.fingerprint = hello.fingerprint
        self.ahead_s = hello.clock_s - time.time()
        self.free = hello.slots
        self.outgoing: asyncio.Queue[pb.ToWorker | None] = asyncio.Queue()
        self.calls: dict[int, asyncio.Future[pb.WorkerAnswer]] = {}
        self.is_draining, self.cpu_s = False, 0.0
        self.has_ended = asyncio.Event()

    def say(self, **message: Any) -> None:
        """Queue a message to the worker."""
        self.outgoing.put_nowait(pb.ToWorker(**message))


class Workers:
    """All connected workers, shared by the executor and the RPC ``Work``; used from one event loop.

    Args:
        silence_s: a worker that sends nothing for this long is dropped; heartbeats come every five seconds.
        absence: what to say while there is no worker.
    """

    def __init__(self, silence_s: float = 15.0, absence: str = _ABSENCE) -> None:
        self._silence_s, self._absence = silence_s, absence
        self._all: set[_Worker] = set()
        self._waiting: deque[asyncio.Future[_Worker]] = deque()
        self._numbers = itertools.count(1)
        self._came = asyncio.Event()
        self._tasks = HeldTasks("workers' streams")
        self.fingerprint = ""
        self.refusal = ""
        """Why the newest worker was refused; empty once one was admitted."""

    @property
    def slots(self) -> int:
        """Slots of all workers that are not draining."""
        return sum(worker.slots for worker in self._all if not worker.is_draining)

    @property
    def stats(self) -> list[pb.WorkerStats]:
        """What is told of those that are connected, by name."""
        told = [pb.WorkerStats(name=one.name, slots=one.slots, cpu_s=one.cpu_s) for one in self._all]
        return sorted(told, key=lambda one: one.name)

    def say_goodbye(self, exit_code: int) -> None:
        """Have all workers end with an exit code."""
        for worker in self._all:
            worker.say(goodbye=pb.Goodbye(exit_code=exit_code))

    async def first(self) -> None:
        """Wait for the first worker that can run functions."""
        await self._came.wait()

    async def serve(
        self, incoming: AsyncIterator[pb.FromWorker], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ToWorker]:
        """Answer the RPC ``Work``: one worker's stream, for as long as both sides live."""
        hello = asyncio.ensure_future(anext(incoming, pb.FromWorker()))
        await asyncio.wait([hello], timeout=self._silence_s)
        if not hello.done():  # the end of the call ends the read, by an error that is this one
            hello.add_done_callback(asyncio.Future.exception)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the worker's hello has not come")
            return
        try:
            worker = self._admit(hello.result())
        except SuperError as error:
            self.refusal = str(error)
            _log.warning("refused a worker: %s", error)
            named = ((ERROR_METADATA_KEY, type(error).__name__),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), named)
            return
        except Exception as error:  # noqa: BLE001  # gRPC has several for bytes that are no message
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the worker's hello is malformed: {error!r}"
            )
            return
        # Never cancelled: gRPC would go on writing to what the read leaves behind. It ends with the stream.
        self._tasks.start(self._hear(worker, incoming, context))
        try:
            worker.say(welcome=pb.Welcome())
            while (message := await worker.outgoing.get()) is not None:
                yield message
        finally:
            worker.has_ended.set()
            self._leave(worker)

    async def run(self, request: Callable[[float], bytes], timeout_s: float) -> bytes:
        """Run a request in the next free slot; its result, as JSON.

        Args:
            request: makes it, given by how many seconds the clock of its worker is ahead of this machine's.
            timeout_s: how long a function may take, and also the longest wait for a slot.

        Raises:
            ExecutorError: any of its kinds.
        """
        while (worker := await self._next_free(timeout_s)) not in self._all:  # it left at that moment
            pass
        call, answered = next(self._numbers), asyncio.get_running_loop().create_future()
        worker.calls[call] = answered
        said = pb.WorkerRequest(call=call, request=request(worker.ahead_s), timeout_s=timeout_s)
        worker.say(request=said)
        try:
            async with asyncio.timeout(timeout_s + _MARGIN_S):
                answer = await answered
        except TimeoutError:
            words = f"the worker {worker.name} did not answer within {timeout_s + _MARGIN_S:g} s"
            raise FunctionTimedOutError(words) from None
        finally:
            if not answered.done() or answered.cancelled():
                worker.say(cancel=call)
            worker.calls.pop(call, None)
            self._release(worker)
        if answer.HasField("result"):
            return bytes(answer.result)
        failure = answer.failure
        error = _KINDS.get(failure.kind, ExecutorError)(f"{worker.name}: {one_line(failure.message)}")
        error.ran_s = failure.ran_s if 0 <= failure.ran_s < math.inf else 0.0
        raise error

    def close(self) -> None:
        """End all streams. Workers may call in again; any decoder may be the first."""
        for worker in list(self._all):
            self._leave(worker)
        self.fingerprint = ""
        self._came.clear()

    def _admit(self, message: pb.FromWorker) -> _Worker:
        hello = message.hello
        if not message.HasField("hello"):
            raise ConfigError("a worker's first message is its hello")
        if (hello.protocol_version, hello.version) != (PROTOCOL_VERSION, installed_version()):
            raise ProtocolMismatchError(
                f"this coordinator is SUPER {installed_version()} (protocol version {PROTOCOL_VERSION}), the "
                f"worker {one_line(hello.version, MAX_KIND)} ({hello.protocol_version}): install the same "
                "version on both sides"
            )
        if hello.trouble:
            raise ConfigError(f"this worker cannot run functions: {one_line(hello.trouble)}")
        if not 1 <= hello.slots <= MAX_SLOTS:
            raise ConfigError(f"a worker has 1 to {MAX_SLOTS} slots; not {hello.slots}")
        if len(self._all) >= MAX_WORKERS:
            raise CoordinatorError(f"this coordinator has its {MAX_WORKERS} workers")
        if not _DIGEST.fullmatch(hello.fingerprint) or not math.isfinite(hello.clock_s):
            raise ConfigError(
                "a worker's hello has its clock, and of its decoder a fingerprint of 32 hex digits"
            )
        if self.fingerprint and hello.fingerprint != self.fingerprint:
            raise ConfigError(
                f"this worker decodes as {one_line(hello.fingerprint, MAX_KIND)}, the others as "
                f"{self.fingerprint}: install the same versions of SUPER and Pillow everywhere"
            )
        self.fingerprint, self.refusal = self.fingerprint or hello.fingerprint, ""
        worker = _Worker(hello)
        self._all.add(worker)
        _log.info("the worker %s called in with %d slots", worker.name, worker.slots)
        self._came.set()
        for _ in range(worker.free):
            self._hand_over(worker)
        return worker

    async def _hear(
        self,
        worker: _Worker,
        incoming: AsyncIterator[pb.FromWorker],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Read a worker's messages until its stream ends; end the stream if the worker falls silent."""
        loop = asyncio.get_running_loop()
        watch = loop.call_later(self._silence_s, self._give_up, worker, context)
        try:
            async for message in incoming:
                watch.cancel()
                watch = loop.call_later(self._silence_s, self._give_up, worker, context)
                if message.HasField("answer"):
                    answered = worker.calls.get(message.answer.call)
                    if answered is not None and not answered.done():  # else late, a second one, or made up
                        answered.set_result(message.answer)
                elif message.HasField("heartbeat"):
                    cpu_s = message.heartbeat.cpu_s
                    worker.cpu_s = cpu_s if 0 <= cpu_s < math.inf else 0.0
                    worker.say(heartbeat=pb.Heartbeat())
                elif message.HasField("draining"):
                    worker.is_draining = True
        except Exception as error:  # noqa: BLE001  # gRPC has several for a stream that has ended
            _log.debug("the stream of the worker %s ended: %r", worker.name, error)
        finally:
            watch.cancel()
            self._leave(worker)

    def _give_up(self, worker: _Worker, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        _log.warning("the worker %s has sent nothing for %g s and is dropped", worker.name, self._silence_s)
        self._leave(worker)
        self._tasks.start(self._end(worker, context))

    async def _end(self, worker: _Worker, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """End a stream on which a message may be under way, which nothing else ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STUCK_S):
                await worker.has_ended.wait()
                return
        with contextlib.suppress(
            grpc.aio.AbortError, grpc.aio.UsageError
        ):  # the stream hears of it, or is over
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the worker was silent for too long")

    def _leave(self, worker: _Worker) -> None:
        """Drop a worker: fail its requests and end its stream. A second call does nothing."""
        if worker in self._all:
            self._all.discard(worker)
            lost = [answered for answered in worker.calls.values() if not answered.done()]
            for answered in lost:
                answered.set_exception(ConnectionLostError(f"the worker {worker.name} is gone"))
            _log.info("the worker %s disconnected with %d requests unanswered", worker.name, len(lost))
            worker.outgoing.put_nowait(None)

    async def _next_free(self, timeout_s: float) -> _Worker:
        """Take a free slot, of the worker with the largest share of them free."""
        able = [worker for worker in self._all if worker.free and not worker.is_draining]
        if able:
            worker = max(able, key=lambda able: able.free / able.slots)
            worker.free -= 1
            return worker
        waiting: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except BaseException as error:
            if waiting.done() and not waiting.cancelled():
                self._release(waiting.result())
            if not isinstance(error, TimeoutError):
                raise
        busy = f"all {self.slots} slots of {len(self._all)} workers were busy"
        who = busy if self._all else self._absence
        raise ThrottledError(f"{who} for {timeout_s:g} s")

    def _hand_over(self, worker: _Worker) -> None:
        """Give free slots to the callers that have waited longest."""
        while self._waiting and worker.free and not worker.is_draining and worker in self._all:
            waiting = self._waiting.popleft()
            if not waiting.done():
                worker.free -= 1
                waiting.set_result(worker)

    def _release(self, worker: _Worker) -> None:
        worker.free += 1
        self._hand_over(worker)


@dataclass(frozen=True)
class WorkersSettings:
    """Settings of the workers executor."""

    shared_files: bool = setting(
        default=False, what="workers see this machine's files at the same place, for file:// sources"
    )


class WorkersExecutor(Executor):
    """Runs functions in the workers that call in."""

    name = "workers"
    region = ""
    files_by_others = True
    files_remedy = (
        "set SUPER_SHARED_FILES=1 (--shared-files) if all workers see it at the same place, else "
        f"{Executor.files_remedy}"
    )

    def __init__(self, settings: WorkersSettings, context: ExecutorContext) -> None:
        if context.workers is None:
            raise ConfigError("workers call in at a coordinator; there is none here")
        self.remote = not settings.shared_files
        self._workers: Workers = context.workers

    @property
    def scaling(self) -> Scaling:  # type: ignore[override]  # it changes
        """One request for each slot, and one more waiting."""
        slots = self._workers.slots
        return Scaling(slots, burst=slots, per_s=math.inf, backlog=slots)

    @property
    def connected(self) -> list[pb.WorkerStats]:  # type: ignore[override]  # they come and go
        """Those that are connected now."""
        return self._workers.stats

    @property
    def fingerprint(self) -> str:  # type: ignore[override]  # it is the first worker's
        """What the workers decode images to."""
        return self._workers.fingerprint

    async def start(self) -> None:
        """Wait for the first worker."""
        _log.info("waiting for the first worker to call in")
        await self._workers.first()

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run one request in a free slot; see :class:`.base.Executor`."""

        def made(ahead_s: float) -> bytes:
            return replace(request, expires_at=request.expires_at + ahead_s).to_json().encode()

        answer = await self._workers.run(made, timeout_s)
        result = read_result(read_object(answer, "a worker"), request.request_id, "a worker")
        messages, samples = result.messages, len(result.outcomes)
        if len(messages) > samples:
            raise FunctionRaisedError(f"a worker answered {len(messages)} messages for {samples} samples")
        return replace(result, messages={place: one_line(words) for place, words in messages.items()})

    async def close(self) -> None:
        """End the workers' streams. They wait for the next coordinator, or end by themselves."""
        self._workers.close()
