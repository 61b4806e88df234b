"""Connected workers: their free slots, their access to the store, and their decoders."""

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

# Counts in heartbeats: requests whose slot crashed or was ended, and restarts of slots.
FAILURES = ("crashed", "timed_out", "restarted")

_MAX_WORKERS = 4096
_ABSENCE = "no worker is connected; start one with superdl worker"
_MARGIN_S = 10.0  # extra time for a result, since the worker ends overdue requests itself
_KINDS = {
    "crashed": FailureKind.CRASHED,
    "timed_out": FailureKind.TIMED_OUT,
    "raised": FailureKind.RAISED,
    "too_large": FailureKind.RAISED,
    "busy": FailureKind.THROTTLED,
}


class ConnectedWorker:
    """A connected worker, with its hello message, free slots and pending calls."""

    def __init__(self, hello: pb.WorkerHello, number: int) -> None:
        self.number = number
        self.name, self.slots = one_line(hello.name, MAX_KIND) or "a worker", hello.slots
        self.fingerprint, self.store, self.store_id = hello.fingerprint, hello.store, hello.store_id
        self.free = hello.slots
        self.outgoing: asyncio.Queue[pb.ToWorker | None] = asyncio.Queue()
        self.has_ended = asyncio.Event()  # nothing more is sent
        self.calls: dict[int, asyncio.Future[pb.WorkerAnswer]] = {}
        self.is_draining, self.cpu_s = False, 0.0
        self.failures = dict.fromkeys(FAILURES, 0)
        self.waits = False

    def send(self, **message: Any) -> None:
        """Queue a message for the worker."""
        self.outgoing.put_nowait(pb.ToWorker(**message))


class Workers:
    """All connected workers, shared by the executor and the RPC ``Work``. Use from one event loop.

    All active workers use the same decoder. Workers with a different one wait for a switch or are refused.

    Args:
        silence_s: drop a worker that has sent nothing for this long. Heartbeats arrive every five seconds.
        absence: the error message while no worker is connected.
        patience_s: switch to another decoder once the current decoder has not been needed, or has had no
            workers, for this long. If ``None``, refuse workers with a different decoder.
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
        self._has_usable, self._has_any = asyncio.Event(), asyncio.Event()
        self._needed_s = time.monotonic()
        # Totals by kind, including workers that have disconnected.
        self.failures = dict.fromkeys(FAILURES, 0)
        self.tasks = HeldTasks("workers' streams")
        # The decoder in use. Empty until a worker connects, unless the cache has a decoder's records.
        self.fingerprint = ""
        # Reason the latest worker was refused; empty if it was admitted.
        self.refusal = ""

    @property
    def slots(self) -> int:
        """Total number of slots on the workers that accept requests."""
        return sum(worker.slots for worker in self._all if not (worker.is_draining or worker.waits))

    @property
    def stats(self) -> list[pb.WorkerStats]:
        """Statistics of the connected workers, sorted by name."""
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

    def send_goodbye(self, exit_code: int) -> None:
        """Tell all workers, including those that connect later, to exit with this code."""
        self._exit_code = exit_code
        for worker in self._all:
            worker.send(goodbye=pb.Goodbye(exit_code=exit_code))

    async def first(self) -> None:
        """Wait for the first worker that can run functions."""
        while not self._has_usable.is_set():
            await self._has_any.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.patience_s):
                    await self._has_usable.wait()
                    return
            # Only workers with another decoder connected, so switch to it.
            if successor := self._newest():
                self.use(successor)

    def use(self, fingerprint: str) -> None:
        """Switch to a decoder. Workers with other decoders wait, including those already connected."""
        self.fingerprint = fingerprint
        self._has_usable.clear()
        for worker in list(self._all):
            self._use_or_hold(worker)

    def successor(self, *, is_needed: bool) -> str:
        """Return the newest waiting worker's decoder if it is time to switch, or else an empty string.

        ``is_needed`` means that a job is open and must keep its decoder.
        """
        now_s, used = time.monotonic(), [worker for worker in self._all if not worker.waits]
        if self.patience_s is None or (is_needed and used) or any(worker.calls for worker in used):
            self._needed_s = now_s  # patience starts over
            return ""
        return self._newest() if now_s - self._needed_s >= self.patience_s else ""

    def follow_store(self, address: str, store_id: Callable[[], str]) -> None:
        """Set the store for workers to see. ``store_id`` returns a directory's id, or an empty string."""
        self._store, self._store_id = address, store_id

    def sees_store(self, worker: ConnectedWorker) -> bool:
        """Return whether a worker has the same store: the same address and, for a directory, the same id."""
        if not self._store:
            return True
        return worker.store == self._store and (is_bucket(self._store) or worker.store_id == self._store_id())

    @property
    def all_see_store(self) -> bool:
        """Whether there are connected workers and all of them see the store."""
        return bool(self._all) and all(map(self.sees_store, self._all))

    async def run(
        self, request: Callable[[bool], bytes], timeout_s: float, *, of_store: bool = False
    ) -> bytes:
        """Run a request in the next free slot and return its result as JSON, or raise :class:`ExecutorError`.

        Args:
            request: called once a slot is free to create the request. Its argument says whether the worker
                sees the store.
            timeout_s: time limit for the function, and for waiting for a slot.
            of_store: use only workers that see the store, if there are any.
        """
        while (worker := await self._next_free(timeout_s, of_store=of_store)) not in self._all:
            pass  # it disconnected at that moment
        call, answered = next(self._numbers), asyncio.get_running_loop().create_future()
        worker.calls[call] = answered
        message = pb.WorkerRequest(call=call, request=request(self.sees_store(worker)), timeout_s=timeout_s)
        worker.send(request=message)
        try:
            async with asyncio.timeout(timeout_s + _MARGIN_S):
                answer = await answered
        except TimeoutError:
            words = f"worker {worker.name} did not respond within {timeout_s + _MARGIN_S:g} s"
            raise ExecutorError(words, FailureKind.TIMED_OUT) from None
        finally:
            if not answered.done() or answered.cancelled():  # the caller has given up
                worker.send(cancel=call)
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
            self.drop(worker)
        self.fingerprint = ""
        self._has_usable.clear()

    def _newest(self) -> str:
        waiting = [worker for worker in self._all if worker.waits]
        return max(waiting, key=lambda worker: worker.number).fingerprint if waiting else ""

    def _use_or_hold(self, worker: ConnectedWorker) -> None:
        worker.waits = self.decodes and worker.fingerprint != self.fingerprint
        if not worker.waits:
            self._has_usable.set()
            self._assign_slots(worker)

    def admit(self, hello: pb.WorkerHello) -> ConnectedWorker:
        """Admit a worker, or refuse it with a ``ConfigError``."""
        if len(self._all) >= _MAX_WORKERS:
            raise ConfigError(f"this coordinator has already reached its maximum of {_MAX_WORKERS} workers")
        others = self.fingerprint or hello.fingerprint
        if self.decodes and self.patience_s is None and hello.fingerprint != others:
            raise ConfigError(
                f"this worker decodes as {one_line(hello.fingerprint, MAX_KIND)}, but the others decode as "
                f"{others}. Install the same versions of SUPER and Pillow everywhere"
            )
        store = self._store, self._store_id()
        if not self.decodes and store[1] and (hello.store, hello.store_id) != store:
            raise ConfigError(
                f"this worker does not see the store {self._store}. Mount it on the worker's machine, and "
                f"start the worker with --store {self._store} (SUPER_STORE)"
            )
        self.refusal = ""
        worker = ConnectedWorker(hello, next(self._numbers))
        self.fingerprint = self.fingerprint or worker.fingerprint
        self._all.add(worker)
        self._has_any.set()
        if self._exit_code is None:
            self._use_or_hold(worker)
        else:
            worker.is_draining = True
            worker.send(goodbye=pb.Goodbye(exit_code=self._exit_code))
        _log.info("worker %s connected (slots: %d)", worker.name, worker.slots)
        if worker.waits:
            _log.warning(
                "worker %s decodes as %s and has to wait: %s is in use until no job is open or no worker "
                "with that decoder is connected",
                worker.name,
                worker.fingerprint,
                self.fingerprint,
                extra={"cause": f"workers of decoder {worker.fingerprint} wait"},
            )
        elif not self.sees_store(worker) and (is_bucket(self._store) or any(map(self.sees_store, self._all))):
            _log.warning(
                "worker %s does not see the store %s, so it can neither save nor restore samples. Start "
                "it with --store %s (SUPER_STORE)",
                worker.name,
                self._store,
                self._store,
                extra={"cause": "workers that do not see the store"},
            )
        return worker

    def record_heartbeat(self, worker: ConnectedWorker, heartbeat: pb.Heartbeat) -> None:
        """Record the CPU time and counts from a heartbeat."""
        # Workers may send anything: keep times finite, and let totals only grow.
        worker.cpu_s = heartbeat.cpu_s if 0 <= heartbeat.cpu_s < math.inf else 0.0
        for kind in FAILURES:
            count = getattr(heartbeat, kind)
            self.failures[kind] += max(0, count - worker.failures[kind])
            worker.failures[kind] = count

    def accept_answer(self, worker: ConnectedWorker, answer: pb.WorkerAnswer) -> None:
        """Accept the first answer to a request and ignore any others."""
        waiting = worker.calls.get(answer.call)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def drop(self, worker: ConnectedWorker) -> None:
        """Fail a worker's requests and end its stream. Calling this again does nothing."""
        if worker in self._all:
            self._all.discard(worker)
            lost = [answered for answered in worker.calls.values() if not answered.done()]
            for answered in lost:
                answered.set_exception(ExecutorError(f"worker {worker.name} disconnected"))
            _log.info("worker %s disconnected (unanswered requests: %d)", worker.name, len(lost))
            worker.outgoing.put_nowait(None)
        if not self._all:
            self._has_any.clear()

    async def _next_free(self, timeout_s: float, *, of_store: bool) -> ConnectedWorker:
        """Reserve a slot on the worker with the largest share of free slots."""
        of_store = of_store and any(map(self.sees_store, self._all))
        able = [worker for worker in self._all if self._can_run(worker, of_store=of_store)]
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
            # If a slot arrived at that moment, pass it on.
            if waiting.done() and not waiting.cancelled():
                self._release(waiting.result())
            if not isinstance(error, TimeoutError):
                raise
        busy = f"all {self.slots} slots of {len(self._all)} workers were busy"
        reason = busy if self.slots else self._absence
        raise ExecutorError(f"{reason} (waited {timeout_s:g} s)", FailureKind.THROTTLED)

    def _can_run(self, worker: ConnectedWorker, *, of_store: bool) -> bool:
        is_free = worker.free and not worker.is_draining and not worker.waits and worker in self._all
        return bool(is_free) and (self.sees_store(worker) or not of_store)

    def _assign_slots(self, worker: ConnectedWorker) -> None:
        """Assign a worker's free slots to the callers that have waited the longest."""
        # Rotate through all callers once. Those that this worker cannot serve keep their order.
        for _ in range(len(self._waiting)):
            waiting, of_store = self._waiting.popleft()
            if not waiting.done() and not self._can_run(worker, of_store=of_store):
                self._waiting.append((waiting, of_store))
            elif not waiting.done():
                worker.free -= 1
                waiting.set_result(worker)

    def _release(self, worker: ConnectedWorker) -> None:
        worker.free += 1
        self._assign_slots(worker)
