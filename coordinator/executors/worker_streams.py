"""Workers that have called in, each by a stream over which it gets requests and answers them.

A worker whose stream breaks, or that is silent for too long, loses its requests, which are made again
elsewhere. tf.data service lets its workers register with a dispatcher in the same way.
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
from typing import TYPE_CHECKING, Any

import grpc

from superdl.coordinator.executors.base import (
    MAX_KIND,
    ConnectionLostError,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
    ThrottledError,
    one_line,
)
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.cancelling import HeldTasks
from superdl.super_wire.errors import ConfigError, CoordinatorError, ProtocolMismatchError, SuperError
from superdl.super_wire.protocol import ERROR_METADATA_KEY, PROTOCOL_VERSION, installed_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


__all__ = ["Workers"]

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

    def __init__(self, hello: pb.WorkerHello, number: int) -> None:
        self.number = number
        self.name, self.slots = one_line(hello.name, MAX_KIND) or "a worker", hello.slots
        self.fingerprint = hello.fingerprint
        self.ahead_s = hello.clock_s - time.time()
        self.free = hello.slots
        self.outgoing: asyncio.Queue[pb.ToWorker | None] = asyncio.Queue()
        self.calls: dict[int, asyncio.Future[pb.WorkerAnswer]] = {}
        self.is_draining, self.cpu_s = False, 0.0
        self.waits = False
        self.has_ended = asyncio.Event()

    def say(self, **message: Any) -> None:
        """Queue a message to the worker."""
        self.outgoing.put_nowait(pb.ToWorker(**message))


class Workers:
    """All connected workers, shared by the executor and the RPC ``Work``; used from one event loop.

    All that run functions decode alike. Where another decoder may take the place of theirs, its workers wait
    for that.

    Args:
        silence_s: a worker that sends nothing for this long is dropped; heartbeats come every five seconds.
        absence: what to say while there is no worker.
        patience_s: another decoder is taken once for so long nobody needed the one in use, or had a worker of
            it; ``None``: its workers are refused.
    """

    def __init__(
        self, silence_s: float = 15.0, absence: str = _ABSENCE, *, patience_s: float | None = None
    ) -> None:
        self._silence_s, self._absence, self.patience_s = silence_s, absence, patience_s
        self._all: set[_Worker] = set()
        self._waiting: deque[asyncio.Future[_Worker]] = deque()
        self._numbers = itertools.count(1)
        self._came, self._some = asyncio.Event(), asyncio.Event()
        self._needed_s = time.monotonic()
        self._tasks = HeldTasks("workers' streams")
        self.fingerprint = ""
        """The decoder in use; empty until the first worker comes, unless the cache has records of one."""
        self.refusal = ""
        """Why the newest worker was refused; empty once one was admitted."""

    @property
    def slots(self) -> int:
        """Slots of all workers that take requests."""
        return sum(worker.slots for worker in self._all if not (worker.is_draining or worker.waits))

    @property
    def stats(self) -> list[pb.WorkerStats]:
        """What is told of those that are connected, by name."""
        told = [
            pb.WorkerStats(name=one.name, slots=one.slots, cpu_s=one.cpu_s, waits=one.waits)
            for one in self._all
        ]
        return sorted(told, key=lambda one: one.name)

    def say_goodbye(self, exit_code: int) -> None:
        """Have all workers end with an exit code."""
        for worker in self._all:
            worker.say(goodbye=pb.Goodbye(exit_code=exit_code))

    async def first(self) -> None:
        """Wait for the first worker that can run functions.

        Where only such of another decoder than the one in use come, theirs is taken after a while.
        """
        while not self._came.is_set():
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.patience_s):
                    await self._came.wait()
                    return
            if successor := self._newest():
                self.fingerprint = successor
                for worker in list(self._all):
                    self._take_up(worker)

    def successor(self, *, is_needed: bool) -> str:
        """The decoder of the newest worker that waits, once it is to take the place of the one in use.

        Args:
            is_needed: whether a job is open, which is to go on with the decoder that it has.
        """
        now_s, used = time.monotonic(), [worker for worker in self._all if not worker.waits]
        if self.patience_s is None or (is_needed and used) or any(worker.calls for worker in used):
            self._needed_s = now_s
            return ""
        return self._newest() if now_s - self._needed_s >= self.patience_s else ""

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

    def _newest(self) -> str:
        """The decoder of the newest worker that waits."""
        waiting = [worker for worker in self._all if worker.waits]
        return max(waiting, key=lambda worker: worker.number).fingerprint if waiting else ""

    def _take_up(self, worker: _Worker) -> None:
        """Give a worker requests from now on, if it decodes as it should; else have it wait."""
        worker.waits = worker.fingerprint != self.fingerprint
        if not worker.waits:
            self._came.set()
            self._hand_over(worker)

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
        self.fingerprint = self.fingerprint or hello.fingerprint
        if self.patience_s is None and hello.fingerprint != self.fingerprint:
            raise ConfigError(
                f"this worker decodes as {one_line(hello.fingerprint, MAX_KIND)}, the others as "
                f"{self.fingerprint}: install the same versions of SUPER and Pillow everywhere"
            )
        self.refusal = ""
        worker = _Worker(hello, next(self._numbers))
        self._all.add(worker)
        self._some.set()
        self._take_up(worker)
        _log.info("the worker %s called in with %d slots", worker.name, worker.slots)
        if worker.waits:
            _log.warning(
                "the worker %s decodes as %s and waits: %s is in use, until no job is open or no worker of "
                "that is left",
                *(worker.name, worker.fingerprint, self.fingerprint),
                extra={"cause": f"workers of decoder {worker.fingerprint} wait"},
            )
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
        if not self._all:
            self._some.clear()

    async def _next_free(self, timeout_s: float) -> _Worker:
        """Take a free slot, of the worker with the largest share of them free."""
        able = [worker for worker in self._all if worker.free and not (worker.is_draining or worker.waits)]
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
        who = busy if self.slots else self._absence
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
