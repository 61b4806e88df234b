"""The ``local`` executor: functions as worker processes of this machine, each running one request at a time.

A worker that crashes or hangs costs its request alone and is replaced, after a bounded, growing pause if it
fails again and again. All workers must decode golden images to the same digest. They end with this process,
however it ends (see :mod:`superdl.coordinator.executors.worker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import time
from typing import TYPE_CHECKING

from superdl.coordinator.executors.base import ExecutorError, FunctionRaisedError, Scaling, ThrottledError
from superdl.coordinator.executors.local_worker import WARM_TIMEOUT_S, LocalWorker
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import PrefetchResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.super_wire.request import PrefetchRequest

__all__ = ["LocalExecutor"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_CLOSE_TIMEOUT_S = 5.0
# On Lambda the operator wants a line and a set of metrics per invocation; on a training machine nobody does.
_QUIET = {"SUPER_LOG_LEVEL": "WARNING", "POWERTOOLS_METRICS_DISABLED": "true"}


class LocalExecutor:
    """A pool of worker processes.

    Args:
        workers: how many; each is busy with one request at a time.
        function: the function's import path, ``module:attribute``.
        environment: variables for the workers, over this process's own.

    Raises:
        ConfigError: fewer than one worker, or a function that is no ``module:attribute``.
    """

    name = "local"
    remote = False
    region = ""

    def __init__(
        self,
        workers: int,
        *,
        function: str = "superdl.lambda_prefetch.handler:handler",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if workers < 1:
            msg = f"a local executor has at least 1 worker; not {workers}"
            raise ConfigError(msg)
        module, _, attribute = function.partition(":")
        if not module or not attribute:
            msg = f"a function is named module:attribute; not {function!r}"
            raise ConfigError(msg)
        # One request more for each worker may wait, so that none idles between two.
        self.scaling = Scaling(workers, burst=workers, per_s=math.inf, backlog=workers)
        self._function = function
        self._environment = dict(environment or {})
        self._golden = ""
        self._free: asyncio.Queue[LocalWorker] = asyncio.Queue()  # those who wait are served in their order
        self._workers: set[LocalWorker] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()
        self._ready = asyncio.Event()
        self._failures = 0
        self._last_failure = ""

    @property
    def golden(self) -> str:
        """Digest of the golden images as all workers decode them; empty before :meth:`start`."""
        return self._golden

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that live now."""
        return sorted(worker.pid for worker in self._workers)

    async def start(self) -> None:
        """Start all workers and wait, bounded, until the first is warm.

        Raises:
            ExecutorError: none became warm; the message says why, and the workers' words are on standard
                error.
        """
        self._keepers = [
            asyncio.create_task(self._keep(), name=f"worker-{n}") for n in range(self.scaling.capacity)
        ]
        try:
            async with asyncio.timeout(WARM_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            await self.close()
            reason = self._last_failure or "none of its workers answered"
            msg = f"the function {self._function} could not be started within {WARM_TIMEOUT_S} s: {reason}"
            raise ExecutorError(msg) from None
        if not self._golden:
            await self.close()
            msg = f"the function {self._function} could not be started: {self._last_failure}"
            raise ExecutorError(msg)

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run one request on the next free worker; see :class:`superdl.coordinator.executors.base.Executor`.

        Raises:
            ThrottledError: no worker became free within ``timeout_s``.
            FunctionTimedOutError: the function ran longer than ``timeout_s``.
            FunctionCrashedError: its process ended.
            FunctionRaisedError: it raised, or answered what is no result of this request.
        """
        worker = await self._next_free(timeout_s)
        began_s = time.monotonic()
        try:
            answer = await worker.call(json.loads(request.to_json()), timeout_s)
        except ExecutorError as error:
            error.ran_s = time.monotonic() - began_s
            raise
        finally:
            # A worker that failed, or whose answer nobody waited for, has ended; its keeper starts another.
            if worker.alive:
                self._free.put_nowait(worker)
        try:
            result = PrefetchResult.from_mapping(answer)
        except ConfigError as error:
            msg = f"the function {self._function} answered what is no prefetch result: {error}"
            raise FunctionRaisedError(msg) from error
        if result.request_id != request.request_id:
            msg = (
                f"the function {self._function} was asked for request {request.request_id} and answered "
                f"for {result.request_id[:80]!r}"
            )
            raise FunctionRaisedError(msg)
        return result

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

    async def _next_free(self, timeout_s: float) -> LocalWorker:
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

    async def _keep(self) -> None:
        """Keep one worker alive until the executor closes."""
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            served = await self._run_one()
            # One that served and then died may have met a bad image; one that never served is likely to fail
            # again.
            pause_s = _FIRST_PAUSE_S if served else min(2 * pause_s, _LONGEST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()

    async def _run_one(self) -> bool:
        """Start a worker, warm it, offer it, and wait for its end; whether it ever served."""
        worker = None
        try:
            worker = await LocalWorker.start(self._function, {**_QUIET, **os.environ, **self._environment})
            self._workers.add(worker)
            self._admit(await worker.warm())
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

    def _admit(self, golden: str) -> None:
        """Refuse a worker that decodes otherwise than the others: equal ids would get other bytes."""
        self._golden = self._golden or golden
        if golden != self._golden:
            msg = (
                f"a worker decodes the golden images to {golden}, the others to {self._golden}: "
                "restart the coordinator, so that all workers run what is installed now"
            )
            raise ExecutorError(msg)
        self._ready.set()

    def _note_failure(self, reason: str) -> None:
        if self._closing.is_set():
            return
        self._last_failure = reason
        self._failures += 1
        _log.warning("a local worker failed and is replaced: %s", reason)
        if self._failures >= self.scaling.capacity:
            self._ready.set()  # start() need not wait any longer
