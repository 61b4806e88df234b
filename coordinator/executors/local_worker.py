"""One worker process of the local executor, seen from the coordinator's side: start, call, end.

When a worker is replaced, and which request it gets, is :mod:`superdl.coordinator.executors.local`'s; what
runs inside it, :mod:`superdl.coordinator.executors.worker`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import (
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
)
from superdl.coordinator.executors.framing import (
    FIRST_CALL,
    LENGTH_BYTES,
    FramingError,
    body_length,
    frame,
    parse,
)

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping

__all__ = ["WARM_TIMEOUT_S", "LocalWorker"]

_log = logging.getLogger(__name__)

WARM_TIMEOUT_S = 30.0
"""How long a worker may take from its start to its answer to the warm event."""

_EXIT_TIMEOUT_S = 5.0


class LocalWorker:
    """A worker process, and whether it still can be used; made by :meth:`start`."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self.served = False
        self._process = process
        self._given_up = False
        self._calls = FIRST_CALL - 1

    @classmethod
    async def start(cls, function: str, environment: Mapping[str, str]) -> LocalWorker:
        """Start a process that will run ``function`` (``module:attribute``).

        Raises:
            ExecutorError: the system has no room for another process.
        """
        command = (sys.executable, "-P", "-m", "superdl.coordinator.executors.worker", function)
        try:
            # A process group of its own: Ctrl-C at the terminal is for the trainer, not for its workers.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, env=environment, process_group=0
            )
        except OSError as error:
            msg = f"no worker process could be started: {error}"
            raise ExecutorError(msg) from error
        return cls(process)

    @property
    def alive(self) -> bool:
        """Whether it may be called."""
        return not self._given_up and self._process.returncode is None

    async def warm(self) -> str:
        """Let the function open what it needs; returns the digest of its golden images.

        Raises:
            ExecutorError: any of its kinds.
        """
        answer = await self.call({"super_warm": 1, "cache": ""}, WARM_TIMEOUT_S)
        golden = answer.get("golden")
        if not isinstance(golden, str) or not golden:
            msg = f"a worker answered the warm event without a golden digest: {str(answer)[:200]}"
            raise FunctionRaisedError(msg)
        self.served = False
        return golden

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
        except (asyncio.IncompleteReadError, ConnectionError, FramingError) as error:
            msg = (
                f"the function's process {self.pid} ended before it answered: {await self._last_words(error)}"
            )
            raise FunctionCrashedError(msg) from error
        finally:
            if not answered:
                self.kill()
        if "error" in message:
            msg = f"the function raised {message['error']}: {message.get('message', '')}"
            raise FunctionRaisedError(msg)
        self.served = True
        if message.get("ends") is True:  # else what is stuck in it would slow its next requests down
            self.kill()
        result: dict[str, Any] = message["result"]
        return result

    def end(self) -> None:
        """Close its input, upon which it ends."""
        self._given_up = True
        if self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End it by force; it must not be used any more."""
        self._given_up = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> None:
        """Wait until the process has ended, for whatever reason."""
        await self._process.wait()

    async def _exchange(self, event: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        to_worker, from_worker = self._process.stdin, self._process.stdout
        if to_worker is None or from_worker is None:  # never: both were asked for
            raise ConnectionError
        self._calls += 1
        to_worker.write(frame({"call": self._calls, "event": event, "timeout_s": timeout_s}))
        await to_worker.drain()
        while True:
            prefix = await from_worker.readexactly(LENGTH_BYTES)
            message = parse(await from_worker.readexactly(body_length(prefix)))
            call = message.get("call")
            if call == self._calls:
                return message
            if not isinstance(call, int) or not FIRST_CALL <= call < self._calls:
                msg = f"it answered call {call!r:.20}, which was never made"
                raise FramingError(msg)
            _log.warning("process %d answered call %d more than once; this is dropped", self.pid, call)

    async def _last_words(self, error: Exception) -> str:
        """How the process ended, as far as can be told now."""
        if isinstance(error, FramingError):
            return str(error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await self._process.wait()
        code = self._process.returncode
        if code is None:
            return "it closed its output"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"
