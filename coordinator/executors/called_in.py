"""The connected workers: their free slots, their view of the store, and their decoders."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from superdl.coordinator.core import FailureKind
from superdl.coordinator.executors.base import MAX_KIND, ExecutorError, one_line
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.cancelling import HeldTasks
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.store import is_bucket

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

# Failures of slots: requests whose slot ended or was ended, and restarts of slots.
FAILURES = ("crashed", "timed_out", "restarted")

_MAX_WORKERS = 4096
_ABSENCE = "no worker is connected: start some with superdl worker"
# Extra time for an answer: the worker ends overdue requests itself.
_MARGIN_S = 10.0
_KINDS = {
    "crashed": FailureKind.CRASHED,
    "timed_out": FailureKind.TIMED_OUT,
    "raised": FailureKind.RAISED,
    "too_large": FailureKind.RAISED,
    "busy": FailureKind.THROTTLED,
}


class ConnectedWorker:
    """A connected worker, with the facts from its hello, its free slots and its calls."""

    def __init__(self, hello: pb.WorkerHello, number: int) -> None:
        self.number = number
        self.name, self.slots = one_line(hello.name, MAX_KIND) or "a worker", hello.slots
        self.fingerprint, self.store, self.store_id = hello.fingerprint, hello.store, hello.store_id
        self.free = hello.slots
        self.outgoing: asyncio.Queue[pb.ToWorker | None] = asyncio.Queue()
        # Nothing more is sent to it.
        self.has_ended = asyncio.Event()
        self.calls: dict[int, asyncio.Future[pb.WorkerAnswer]] = {}
        self.is_draining, self.cpu_s = False, 0.0
        self.failures = dict.fromkeys(FAILURES, 0)
        self.waits = False

    def say(self, **message: Any) -> None:
        """Queue a message for the worker."""
        self.outgoing.put_nowait(pb.ToWorker(**message))


class Workers:
    """All connected workers, shared by the executor and the RPC ``Work``; for one event loop.

    All workers in use decode alike. If another decoder may replace theirs, its workers wait until it does.

    Args:
        silence_s: drop a worker that sends nothing for this long; heartbeats arrive
            every five seconds.
        absence: the error message while no worker is connected.
        patience_s: switch to another decoder once the current one has been unneeded or
            without workers for this long. If ``None``, refuse workers with another decoder.
        decodes: if false, workers only restore and save, and their decoder does not matter.
    """

    def __init__(
        self,
        silence_s: float = 15.0,
        absence: str = _ABSENCE,
        *,
        patience_s: float | None = None,
        decodes: bool = True,
    ) -> None:
        self.silence_s, self._absence, self.patience_s = silence_s, absence, patience_s
        self.decodes = decodes
        self._store = ""
        self._store_id: Callable[[], str] = str
        self._all: set[ConnectedWorker] = set()
        self._waiting: deque[tuple[asyncio.Future[ConnectedWorker], bool]] = deque()
        self._numbers = itertools.count(1)
        self._exit_code: int | None = None
        self._came, self._some = asyncio.Event(), asyncio.Event()
        self._needed_s = time.monotonic()
        # By kind, including those of workers that have left.
        self.failures = dict.fromkeys(FAILURES, 0)
        self.tasks = HeldTasks("workers' streams")
        # The decoder in use; empty until a worker connects, unless the cache has records of one.
        self.fingerprint = ""
        # Reason that the newest worker was refused; empty once one was admitted.
        self.refusal = ""

    @property
    def slots(self) -> int:
        """Return the number of slots of all workers that accept requests."""
        return sum(worker.slots for worker in self._all if not (worker.is_draining or worker.waits))

    @property
    def stats(self) -> list[pb.WorkerStats]:
        """Return the statistics of the connected workers, sorted by name."""
        return [
            pb.WorkerStats(
                name=worker.name,
                slots=worker.slots,
                cpu_s=worker.cpu_s,
                waits=worker.waits,
                **worker.failures,
            )
            for worker in sorted(self._all, key=lambda worker: worker.name)
        ]

    def say_goodbye(self, exit_code: int) -> None:
        """Make all workers exit with this code, including those that connect later."""
        self._exit_code = exit_code
        for worker in self._all:
            worker.say(goodbye=pb.Goodbye(exit_code=exit_code))

    async def first(self) -> None:
        """Wait for the first worker that can run functions."""
        while not self._came.is_set():
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.patience_s):
                    await self._came.wait()
                    return
            # Only workers with another decoder connected: switch to theirs.
            if successor := self._newest():
                self.use(successor)

    def use(self, fingerprint: str) -> None:
        """Switch to a decoder. Workers with other decoders wait, including those already connected."""
        self.fingerprint = fingerprint
        self._came.clear()
        for worker in list(self._all):
            self._take_up(worker)

    def successor(self, *, is_needed: bool) -> str:
        """Return the newest waiting worker's decoder if it is time to switch to it, else an empty string.

        ``is_needed`` means that a job is open and must continue with its decoder.
        """
        now_s, used = time.monotonic(), [worker for worker in self._all if not worker.waits]
        # As long as this holds, the waiting time starts over.
        if self.patience_s is None or (is_needed and used) or any(worker.calls for worker in used):
            self._needed_s = now_s
            return ""
        return self._newest() if now_s - self._needed_s >= self.patience_s else ""

    def follow_store(self, address: str, store_id: Callable[[], str]) -> None:
        """Follow the store at ``address``; ``store_id`` returns a directory's id, or an empty string."""
        self._store, self._store_id = address, store_id

    def sees_store(self, worker: ConnectedWorker) -> bool:
        """Return whether a worker sees our store: the same address and, for a directory, the same id."""
        if not self._store:
            return True
        return worker.store == self._store and (is_bucket(self._store) or worker.store_id == self._store_id())

    @property
    def all_see_store(self) -> bool:
        """Return whether there are workers and all of them see the store."""
        return bool(self._all) and all(map(self.sees_store, self._all))

    async def run(
        self, request: Callable[[bool], bytes], timeout_s: float, *, of_store: bool = False
    ) -> bytes:
        """Run a request in the next free slot. Return its result as JSON, or raise :class:`ExecutorError`.

        Args:
            request: creates the request once a slot is free, given whether its worker sees the
                store.
            timeout_s: how long a function may take, and also the longest wait for a slot.
            of_store: prefer a worker that sees the store, if there is one.
        """
        while (worker := await self._next_free(timeout_s, of_store=of_store)) not in self._all:
            pass  # it left at that moment
        call, answered = next(self._numbers), asyncio.get_running_loop().create_future()
        worker.calls[call] = answered
        message = pb.WorkerRequest(call=call, request=request(self.sees_store(worker)), timeout_s=timeout_s)
        worker.say(request=message)
        try:
            async with asyncio.timeout(timeout_s + _MARGIN_S):
                answer = await answered
        except TimeoutError:
            words = f"the worker {worker.name} did not answer within {timeout_s + _MARGIN_S:g} s"
            raise ExecutorError(words, FailureKind.TIMED_OUT) from None
        finally:
            # The caller has given up, so the worker can stop.
            if not answered.done() or answered.cancelled():
                worker.say(cancel=call)
            worker.calls.pop(call, None)
            self._release(worker)
        if answer.HasField("result"):
            return bytes(answer.result)
        failure = answer.failure
        raise ExecutorError(
            f"{worker.name}: {one_line(failure.message)}",
            _KINDS.get(failure.kind, FailureKind.UNAVAILABLE),
            ran_s=failure.ran_s if 0 <= failure.ran_s < math.inf else 0.0,
        )

    def close(self) -> None:
        """End all streams. Workers may reconnect, with any decoder."""
        for worker in list(self._all):
            self.leave(worker)
        self.fingerprint = ""
        self._came.clear()

    def _newest(self) -> str:
        waiting = [worker for worker in self._all if worker.waits]
        return max(waiting, key=lambda worker: worker.number).fingerprint if waiting else ""

    def _take_up(self, worker: ConnectedWorker) -> None:
        """Give a worker requests if it has the decoder in use, otherwise let it wait."""
        worker.waits = self.decodes and worker.fingerprint != self.fingerprint
        if not worker.waits:
            self._came.set()
            self._hand_over(worker)

    def admit(self, hello: pb.WorkerHello) -> ConnectedWorker:
        """Admit a worker, or raise ``ConfigError`` if it cannot be admitted."""
        if len(self._all) >= _MAX_WORKERS:
            raise ConfigError(f"this coordinator already has its maximum of {_MAX_WORKERS} workers")
        others = self.fingerprint or hello.fingerprint
        if self.decodes and self.patience_s is None and hello.fingerprint != others:
            raise ConfigError(
                f"this worker decodes as {one_line(hello.fingerprint, MAX_KIND)}, but the others decode as "
                f"{others}: install the same versions of SUPER and Pillow everywhere"
            )
        store = self._store, self._store_id()
        if not self.decodes and store[1] and (hello.store, hello.store_id) != store:
            raise ConfigError(
                f"this worker does not see the store {self._store}: mount it on the worker's machine, and "
                f"start the worker with --store {self._store} (SUPER_STORE)"
            )
        self.refusal = ""
        worker = ConnectedWorker(hello, next(self._numbers))
        self.fingerprint = self.fingerprint or worker.fingerprint
        self._all.add(worker)
        self._some.set()
        if self._exit_code is None:
            self._take_up(worker)
        else:
            worker.is_draining = True
            worker.say(goodbye=pb.Goodbye(exit_code=self._exit_code))
        _log.info("the worker %s connected with %d slots", worker.name, worker.slots)
        if worker.waits:
            _log.warning(
                "the worker %s decodes as %s and has to wait: %s is in use until no job is open or no worker "
                "with that decoder is left",
                *(worker.name, worker.fingerprint, self.fingerprint),
                extra={"cause": f"workers of decoder {worker.fingerprint} wait"},
            )
        elif not self.sees_store(worker) and (is_bucket(self._store) or any(map(self.sees_store, self._all))):
            _log.warning(
                "the worker %s does not see the store %s, so it can neither save samples there nor restore "
                "them: start it with --store %s (SUPER_STORE)",
                *(worker.name, self._store, self._store),
                extra={"cause": "workers that do not see the store"},
            )
        return worker

    def heard(self, worker: ConnectedWorker, heartbeat: pb.Heartbeat) -> None:
        """Record the figures in a heartbeat."""
        # Workers may send anything: keep the figures finite, and let counters only grow.
        worker.cpu_s = heartbeat.cpu_s if 0 <= heartbeat.cpu_s < math.inf else 0.0
        for kind in FAILURES:
            count = getattr(heartbeat, kind)
            self.failures[kind] += max(0, count - worker.failures[kind])
            worker.failures[kind] = count

    def answered(self, worker: ConnectedWorker, answer: pb.WorkerAnswer) -> None:
        """Accept an answer, unless it is late, duplicate or forged."""
        waiting = worker.calls.get(answer.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def leave(self, worker: ConnectedWorker) -> None:
        """Drop a worker: fail its requests and end its stream. A second call does nothing."""
        if worker in self._all:
            self._all.discard(worker)
            lost = [answered for answered in worker.calls.values() if not answered.done()]
            for answered in lost:
                answered.set_exception(ExecutorError(f"the worker {worker.name} disconnected"))
            _log.info("the worker %s disconnected with %d requests unanswered", worker.name, len(lost))
            worker.outgoing.put_nowait(None)
        if not self._all:
            self._some.clear()

    async def _next_free(self, timeout_s: float, *, of_store: bool) -> ConnectedWorker:
        """Take a free slot, from the worker with the largest share of free slots."""
        # Without such a worker, any other may run the request.
        of_store = of_store and any(map(self.sees_store, self._all))
        able = [worker for worker in self._all if self._takes(worker, of_store=of_store)]
        if able:
            worker = max(able, key=lambda able: able.free / able.slots)
            worker.free -= 1
            return worker
        waiting: asyncio.Future[ConnectedWorker] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiting, of_store))
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except BaseException as error:
            # A slot arrived at the moment of giving up: pass it on.
            if waiting.done() and not waiting.cancelled():
                self._release(waiting.result())
            if not isinstance(error, TimeoutError):
                raise
        busy = f"all {self.slots} slots of {len(self._all)} workers were busy"
        who = busy if self.slots else self._absence
        raise ExecutorError(f"{who} (waited {timeout_s:g} s)", FailureKind.THROTTLED)

    def _takes(self, worker: ConnectedWorker, *, of_store: bool) -> bool:
        is_free = worker.free and not worker.is_draining and not worker.waits and worker in self._all
        return bool(is_free) and (self.sees_store(worker) or not of_store)

    def _hand_over(self, worker: ConnectedWorker) -> None:
        """Give free slots to the callers that have waited longest."""
        # Go through all callers once. Those that this worker cannot serve keep their order.
        for _ in range(len(self._waiting)):
            waiting, of_store = self._waiting.popleft()
            if not waiting.done() and not self._takes(worker, of_store=of_store):
                self._waiting.append((waiting, of_store))
            elif not waiting.done():
                worker.free -= 1
                waiting.set_result(worker)

    def _release(self, worker: ConnectedWorker) -> None:
        worker.free += 1
        self._hand_over(worker)
