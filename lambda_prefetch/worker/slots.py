"""A worker's settings and its slots, child processes that run functions and are replaced when they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from superdl.lambda_prefetch.worker.slot import ENDS, MAX_LINE_BYTES, RAISED, RESULT
from superdl.lambda_prefetch.worker.template import FUNCTION, Template, cpu_s_of
from superdl.super_wire.credentials import CoordinatorCredentials
from superdl.super_wire.errors import SuperError

_log = logging.getLogger(__name__)

_WARM_EVENT = b'{"super_warm":1,"cache":""}'
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_EXIT_TIMEOUT_S = 5.0
_SHOWN = 120
_FREE_WAIT_S = 8.0  # the coordinator waits longer for a result
_WARM_TIMEOUT_S = 300.0  # on a busy host
# Functions need not log a line and metrics for each invocation here.
_QUIET = {"SUPER_LOG_LEVEL": "WARNING", "POWERTOOLS_METRICS_DISABLED": "true"}


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """A worker's settings."""

    coordinator: str  # host:port or unix:/path
    name: str  # in the coordinator's log
    function: str = FUNCTION  # module:attribute that the slots run
    slots: int = 1  # concurrent requests, each in its own process
    nice: int = 0  # niceness of the slots
    linger_s: float = 300.0  # how long to wait for an unreachable coordinator
    grace_s: float = 30.0  # how long running requests may take after SIGTERM
    credentials: CoordinatorCredentials = field(default_factory=CoordinatorCredentials)
    store: str = ""  # address of an accessible store; empty for SUPER_STORE
    store_only: bool = False  # only restore and save, for functions without access to the store
    metrics_listen: str = ""  # host:port that serves metrics to Prometheus; empty for none
    health_listen: str = ""  # host:port that answers health probes; empty for none


class RequestFailedError(SuperError):
    """A request crashed, timed out or raised after ``ran_s`` seconds, or all slots were busy."""

    def __init__(self, kind: str, message: str, ran_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind, self.ran_s = kind, ran_s


class Slots:
    """A pool of ``count`` slots that run ``function`` at niceness ``nice``. Use from one event loop.

    If ``template`` is ``None``, :meth:`start` starts a template.
    """

    def __init__(self, function: str, count: int, *, nice: int = 0, template: Template | None = None) -> None:
        self.function, self.count, self._template = function, count, template
        start = {"function": function, "nice": nice, "environment": {**_QUIET, **os.environ}}
        self._start_line = json.dumps(start).encode() + b"\n"
        self.fingerprint = ""
        self._free: asyncio.Queue[_Slot] = asyncio.Queue()
        self._living: set[_Slot] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._warm = asyncio.Event()
        self._failures, self._last_failure = 0, ""
        self.busy = self.restarts = 0  # running requests; restarts of slots
        self.ended: Counter[str] = Counter()  # completed requests: answered, or by kind of failure

    @property
    def cpu_s(self) -> float:
        """CPU time used so far by this process and all slots, in seconds."""
        own, template = os.times(), self._template  # includes children that have ended
        return sum(own[:4]) + sum(slot.cpu_s for slot in self._living) + (template.cpu_s if template else 0.0)

    async def start(self) -> None:
        """Start all slots and wait until one is warm. Raises ``SuperError`` after ``count`` failures."""
        try:
            template = self._template = self._template or Template(self.function)
        except OSError as error:
            raise SuperError(f"cannot start a process for slots: {error}") from error
        self._tasks = [asyncio.create_task(self._maintain(template)) for _ in range(self.count)]
        await self._warm.wait()
        if not self.fingerprint:
            await self.close()
            raise SuperError(f"cannot start the function {self.function}: {self._last_failure}")

    async def run(self, request: bytes, timeout_s: float) -> bytes:
        """Run a request given as a line of JSON. Returns JSON, or raises :class:`RequestFailedError`."""
        outcome = "cancelled"
        self.busy += 1
        try:
            slot = await self._next_free()
            try:
                result = await slot.call(request, timeout_s)
            finally:
                if slot.is_alive:
                    self._free.put_nowait(slot)
            outcome = "answered"
        except RequestFailedError as error:
            outcome = error.kind
            raise
        finally:
            self.busy -= 1
            self.ended[outcome] += 1
        return result

    async def close(self) -> None:
        """End all slots, even those that are running a request."""
        for task in self._tasks:
            task.cancel()
        if self._template is not None:
            await self._template.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slot in self._living:  # slots whose task was cancelled before it waited for them
            await slot.close()

    async def _next_free(self) -> _Slot:
        try:
            # For the coordinator, a slot that is restarting is free.
            async with asyncio.timeout(_FREE_WAIT_S):
                while not (slot := await self._free.get()).is_alive:
                    pass
                return slot
        except TimeoutError:
            last = f"; the last failure was: {self._last_failure}" if self._last_failure else ""
            raise RequestFailedError("busy", f"no slot was free for {_FREE_WAIT_S:g} s{last}") from None

    async def _maintain(self, template: Template) -> None:
        """Keep a slot running. The pauses grow after repeated failures."""
        pause_s = _FIRST_PAUSE_S
        while True:
            slot = None
            try:
                slot = await _Slot.start(template, self._start_line)
                self._living.add(slot)
                self._admit(json.loads(await slot.call(_WARM_EVENT, _WARM_TIMEOUT_S)))
                self._free.put_nowait(slot)
                await slot.ended()
                pause_s = _FIRST_PAUSE_S
            except SuperError as error:
                _log.warning("replacing a failed slot: %s", error)
                self._failures, self._last_failure = self._failures + 1, str(error)
                if self._failures >= self.count:
                    self._warm.set()  # start() then fails, unless a slot is warm
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            finally:
                if slot is not None:
                    await slot.close()
                    self._living.discard(slot)
            await asyncio.sleep(pause_s)
            self.restarts += 1

    def _admit(self, warmed: object) -> None:
        """Use the first slot's decoder as the worker's, and refuse slots with a different decoder."""
        fingerprint = warmed.get("golden") if isinstance(warmed, dict) else None
        if not isinstance(fingerprint, str) or not fingerprint:
            raise SuperError(
                f"the reply to a warm event, {str(warmed)[:_SHOWN]}, is not from SUPER's function"
            )
        self.fingerprint = self.fingerprint or fingerprint
        if fingerprint != self.fingerprint:
            raise SuperError(
                f"a new slot decodes as {fingerprint}, but the others decode as {self.fingerprint}. Restart "
                "the worker to run the installed version in all slots"
            )
        self._warm.set()


class _Slot:
    """A child process and its connection, created by :meth:`start`."""

    def __init__(self, pid: int, from_child: asyncio.StreamReader, to_child: asyncio.StreamWriter) -> None:
        self._pid, self._from_child, self._to_child = pid, from_child, to_child
        self._given_up = False
        self._calls, self._turn = 0, asyncio.Lock()
        self._code, self._ended = 0, asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    @classmethod
    async def start(cls, template: Template, start_line: bytes) -> Self:
        starting = asyncio.ensure_future(cls._start(template, start_line))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # the process exists, or will exist
            with contextlib.suppress(SuperError):
                await (await starting).close()
            raise

    @classmethod
    async def _start(cls, template: Template, start_line: bytes) -> Self:
        try:
            pid, connection = await template.fork()
            with contextlib.ExitStack() as undo:  # closing the connection ends the slot
                undo.callback(connection.close)
                from_child, to_child = await asyncio.open_connection(sock=connection, limit=MAX_LINE_BYTES)
                undo.callback(to_child.transport.abort)
                slot = cls(pid, from_child, to_child)
                undo.pop_all()
        except OSError as error:
            raise SuperError(f"cannot start a process for a slot: {error}") from error
        slot._to_child.write(start_line)
        return slot

    @property
    def is_alive(self) -> bool:
        return not (self._given_up or self._ended.is_set())

    @property
    def cpu_s(self) -> float:
        return cpu_s_of(self._pid)

    async def call(self, event: bytes, timeout_s: float) -> bytes:
        """Return the function's result. Kill the process if it does not reply or the call is cancelled."""
        began_s, is_answered = time.monotonic(), False
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                kind, reply = await self._exchange(event, timeout_s)
            is_answered = True
        except TimeoutError:
            message = f"the function did not respond within {timeout_s:g} s; process {self._pid} was killed"
            raise RequestFailedError("timed_out", message, time.monotonic() - began_s) from None
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            reason = str(error) if isinstance(error, ValueError) else await self._exit_reason()
            message = f"the function's process {self._pid} ended before it answered: {reason}"
            raise RequestFailedError("crashed", message, time.monotonic() - began_s) from error
        finally:
            if not is_answered:
                self.kill()
        if kind.endswith(ENDS):
            self.kill()
        if kind.removesuffix(ENDS) == RAISED:
            raised = json.loads(reply)
            message = f"the function raised {raised['error']}: {raised['message']}"
            raise RequestFailedError("raised", message, time.monotonic() - began_s)
        return reply

    async def _exchange(self, event: bytes, timeout_s: float) -> tuple[bytes, bytes]:
        """Send a request and return the reply's kind and JSON. Raises ``ValueError`` if it is malformed."""
        self._calls += 1
        self._to_child.write(b"%d %f %b\n" % (self._calls, timeout_s, event))
        with contextlib.suppress(ConnectionError):  # the process has ended; its last output is still unread
            await self._to_child.drain()
        while True:
            line = await self._from_child.readline()
            if not line.endswith(b"\n"):
                raise asyncio.IncompleteReadError(line, None)
            number, kind, reply = line[:-1].split(b" ", 2)
            if int(number) == self._calls and kind.removesuffix(ENDS) in {RESULT, RAISED}:
                return kind, reply
            if not 0 < int(number) < self._calls:
                raise ValueError(f"unexpected reply {kind[:_SHOWN]!r} to call {int(number)}")
            _log.warning("a slot answered call %d more than once; ignoring the duplicate", int(number))

    async def ended(self) -> None:
        await self._ended.wait()

    async def close(self) -> None:
        """Kill the process, then close the connection once a pending call has read the last output."""
        self.kill()
        await self.ended()
        with contextlib.suppress(TimeoutError):  # a fork of the process may hold the connection
            async with asyncio.timeout(_EXIT_TIMEOUT_S), self._turn:
                pass
        self._to_child.close()

    def kill(self) -> None:
        self._given_up = True
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        with contextlib.suppress(ChildProcessError):  # if SIGCHLD is ignored, the exit code is lost
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._ended.set()

    async def _exit_reason(self) -> str:
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await self.ended()
        except TimeoutError:
            return "connection closed"
        code = self._code
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
