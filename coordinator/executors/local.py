"""The ``local`` executor: functions as worker processes of this machine, each running one request at a time.

A worker that crashes or hangs costs its request alone and is replaced, after a bounded, growing pause if it
fails again and again. All workers must decode images to the same fingerprint. They end with this process,
however it ends (see :mod:`superdl.coordinator.executors.worker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from superdl.coordinator.executors.base import (
    Executor,
    ExecutorError,
    FunctionCrashedError,
    FunctionTimedOutError,
    Scaling,
    ThrottledError,
    setting,
)
from superdl.coordinator.executors.child_process import ChildProcess, keep_running
from superdl.coordinator.executors.messages import read_result, read_warmed, result_in, warm_event
from superdl.coordinator.executors.scratch import Scratch
from superdl.coordinator.executors.worker import FIRST_CALL, QUIET, MessageError
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping

    from superdl.coordinator.executors.base import ExecutorContext
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = ["LocalExecutor", "LocalSettings"]

_log = logging.getLogger(__name__)

_MODULE = "superdl.coordinator.executors.worker"
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_CLOSE_TIMEOUT_S = 5.0
_LEAST_SHARD_BYTES = 2**24  # a block


@dataclass(frozen=True)
class LocalSettings:
    """Settings of the local executor: its worker processes, their priority, how long they may start, and the
    disk that they may use.
    """

    workers: int = setting(1, "processes of the local executor (1)", low=1, high=4096)
    worker_nice: int = setting(0, "their niceness: 19 gives way to all else (0)", low=0, high=19)
    start_timeout_s: int = setting(300, "how long they may take to start (300)", low=1, high=86400)
    shard_cache_bytes: int = setting(
        0,
        "what they keep of shards while it runs (a tenth of the free disk, 64 GiB at most)",
        high=2**60,
    )


class LocalExecutor(Executor):
    """A pool of worker processes.

    Raises:
        ConfigError: the function is no ``module:attribute``.
    """

    name = "local"
    remote = False
    region = ""
    first_look: ClassVar = {"workers": 1}

    def __init__(self, settings: LocalSettings, context: ExecutorContext) -> None:
        module, _, attribute = context.function.partition(":")
        if not module or not attribute:
            raise ConfigError(f"a function is named module:attribute; not {context.function!r}")
        # One request more for each worker may wait, so that none idles between two.
        workers = settings.workers
        self.scaling = Scaling(workers, burst=workers, per_s=math.inf, backlog=workers)
        self._function, self._environment = context.function, context.environment
        self._nice, self._start_timeout_s = settings.worker_nice, settings.start_timeout_s
        self._scratch_in, self._shard_cache_bytes = context.scratch, settings.shard_cache_bytes
        self._scratch: Scratch | None = None
        self.fingerprint = ""
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()  # those who wait are served in their order
        self._workers: set[_Worker] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()
        self._ready = asyncio.Event()
        self._failures = 0
        self._last_failure = ""

    @classmethod
    def sees_store(cls, settings: LocalSettings, address: str) -> bool:  # noqa: ARG003  # it reaches both kinds
        """Its functions see what this machine sees."""
        return True

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that live now."""
        return sorted(worker.pid for worker in self._workers)

    async def start(self) -> None:
        """Start all workers and wait until the first is warm, as long as they live.

        Raises:
            ExecutorError: none became warm; the message says why, and the workers' words are on standard
                error.
        """
        await asyncio.to_thread(self._make_scratch)
        for _ in range(self.scaling.capacity):
            keeping = keep_running(
                self._run_one, self._closing, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S
            )
            self._keepers.append(asyncio.create_task(keeping, name="local worker"))
        late = ""
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._ready.wait()
        except TimeoutError:
            late = f" within {self._start_timeout_s} s (SUPER_START_TIMEOUT_S)"
        if not self.fingerprint:
            await self.close()
            reason = self._last_failure or "none of its workers answered"
            raise ExecutorError(f"the function {self._function} could not be started{late}: {reason}")

    def _make_scratch(self) -> None:
        """Make the directory in which functions keep shards; without one, each reads what it needs."""
        if self._scratch_in is None:
            return
        try:
            self._scratch = Scratch(self._scratch_in)
            max_bytes = self._shard_cache_bytes or self._scratch.max_bytes
        except OSError as error:
            _log.info("no shards are kept in %s: %s", self._scratch_in, error)
            return
        self.keeps_shards = max_bytes >= _LEAST_SHARD_BYTES
        self._environment = {
            **self._environment,
            "SUPER_SHARDS": self._scratch.path,
            "SUPER_SHARDS_BYTES": str(max_bytes),
        }

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run one request on the next free worker; see :class:`.base.Executor`."""
        worker = await self._next_free(timeout_s)
        began_s = time.monotonic()
        try:
            answer = await worker.call(request.to_mapping(), timeout_s)
        except ExecutorError as error:
            error.ran_s = time.monotonic() - began_s
            raise
        finally:
            # A worker that failed, or whose answer nobody waited for, has ended; its keeper starts another.
            if worker.alive:
                self._free.put_nowait(worker)
        return read_result(answer, request.request_id, f"the function {self._function}")

    async def close(self) -> None:
        """End all workers, by closing their input and, where that does not help in time, by force."""
        self._closing.set()
        for worker in list(self._workers):
            worker.end()
        if self._keepers:
            _, late = await asyncio.wait(self._keepers, timeout=_CLOSE_TIMEOUT_S)
            for worker in list(self._workers):
                worker.kill()
            for keeper in late:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.remove)

    async def _next_free(self, timeout_s: float) -> _Worker:
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    worker = await self._free.get()
                    if worker.alive:
                        return worker
        except TimeoutError:
            failure = f"; the last to fail said: {self._last_failure}" if self._last_failure else ""
            msg = f"none of the {self.scaling.capacity} local workers was free within {timeout_s} s{failure}"
            raise ThrottledError(msg) from None

    async def _run_one(self) -> bool:
        """Start a worker, warm it, offer it, and wait for its end; whether it ever served.

        One that served and then died may have met a bad image; one that never served is likely to fail again.
        """
        worker = None
        try:
            environment = {**QUIET, **os.environ, **self._environment}
            arguments = (self._function, str(self._nice))
            worker = await _Worker.start(_MODULE, *arguments, environment=environment)
            self._workers.add(worker)
            self._admit(await worker.warm(self._start_timeout_s))
            self._free.put_nowait(worker)
            await worker.wait()
        except ExecutorError as error:
            self._note_failure(str(error))
        finally:
            if worker is not None:
                self._workers.discard(worker)
                worker.kill()
                await worker.wait()
        return worker is not None and worker.served

    def _admit(self, fingerprint: str) -> None:
        """Refuse a worker that decodes otherwise than the others: equal ids would get other bytes."""
        self.fingerprint = self.fingerprint or fingerprint
        if fingerprint != self.fingerprint:
            raise ExecutorError(
                f"a worker's decoder has the fingerprint {fingerprint}, the others' {self.fingerprint}: "
                "restart the coordinator, so that all workers run what is installed now"
            )
        self._ready.set()

    def _note_failure(self, reason: str) -> None:
        if self._closing.is_set():
            return
        self._last_failure = reason
        self._failures += 1
        _log.warning("a local worker failed and is replaced: %s", reason)
        if self._failures >= self.scaling.capacity:
            self._ready.set()  # start() need not wait any longer


class _Worker(ChildProcess):
    """A worker process, and whether it can still be used."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.served = False
        self._given_up = False
        self._calls = FIRST_CALL - 1

    @property
    def alive(self) -> bool:
        """Whether it may be called."""
        return not self._given_up and super().alive

    async def warm(self, timeout_s: float) -> str:
        """Let the function open what it needs; returns its decoder's fingerprint, or raises."""
        answer = await self.call(warm_event(cache=""), timeout_s)
        self.served = False
        return read_warmed(answer, "a worker", "it does not run SUPER's function").fingerprint

    async def call(self, event: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """What the function answers to ``event``.

        A worker that gave no answer is ended, also when the caller is cancelled.

        Raises:
            FunctionTimedOutError: it took longer than ``timeout_s``.
            FunctionCrashedError: its process ended.
            FunctionRaisedError: the function raised.
        """
        answered = False
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._exchange(event, timeout_s)
            answered = True
        except TimeoutError:
            msg = f"the function did not answer within {timeout_s} s; its process {self.pid} was ended"
            raise FunctionTimedOutError(msg) from None
        except (asyncio.IncompleteReadError, ConnectionError, MessageError) as error:
            words = await self.last_words(error)
            raise FunctionCrashedError(
                f"the function's process {self.pid} ended before it answered: {words}"
            ) from error
        finally:
            if not answered:
                self.kill()
        result = result_in(message)
        self.served = True
        if message.get("ends") is True:  # else what is stuck in it would slow its next requests down
            self.kill()
        return result

    def end(self) -> None:
        """Close its input, upon which it ends."""
        self._given_up = True
        super().end()

    def kill(self) -> None:
        """End it by force; it must not be used any more."""
        self._given_up = True
        super().kill()

    async def _exchange(self, event: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self._calls += 1
        self.tell({"call": self._calls, "event": event, "timeout_s": timeout_s})
        with contextlib.suppress(ConnectionError):  # it has ended: what it said last is still to be read
            await self.drain()
        while True:
            message = await self.read()
            call = message.get("call")
            if call == self._calls:
                return message
            if not isinstance(call, int) or not FIRST_CALL <= call < self._calls:
                raise MessageError(f"it answered call {call!r:.20}, which was never made")
            _log.warning("process %d answered call %d more than once; this is dropped", self.pid, call)
