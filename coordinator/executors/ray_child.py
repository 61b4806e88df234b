"""Ray's driver, seen from the coordinator: calls to nodes, many under way at once, and what becomes of them.

What runs in that process is :mod:`superdl.coordinator.executors.ray_driver`'s; when it is started again, and
what is called on which node, :mod:`superdl.coordinator.executors.ray_executor`'s.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import (
    ConnectionLostError,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
    ThrottledError,
    one_line,
)
from superdl.coordinator.executors.child_process import ChildProcess
from superdl.coordinator.executors.worker import (
    FIRST_CALL,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    FrameError,
    frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NodeFailedError", "RayChild"]

_PING_S = 1.0
_MAX_SILENT_PINGS = 30
"""A driver that says nothing for so many pings hangs; while this process stands still none is counted."""
_MAX_WORDS = 1000
_OURS = ("SUPER_", "AWS_")
_FAILURES: dict[str, type[ExecutorError]] = {
    "crashed": FunctionCrashedError,
    "not loaded": FunctionRaisedError,
    "answer lost": ConnectionLostError,
    "too large": PayloadTooLargeError,
    "cancelled": ConnectionLostError,  # by others: who cancels here does not listen any more
}


class NodeFailedError(ExecutorError):
    """The node is gone, or cannot run the function at all. ``begun`` says whether the call had begun."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class _Call:
    """One call under way."""

    def __init__(self, node: str) -> None:
        loop = asyncio.get_running_loop()
        self.node = node
        self.begun: asyncio.Future[None] = loop.create_future()
        self.answer: asyncio.Future[str] = loop.create_future()
        self.begun_s = 0.0
        self.is_sent = False
        self.is_over = False

    def fail(self, error: ExecutorError) -> None:
        self.is_over = True
        if self.begun_s:
            error.ran_s = time.monotonic() - self.begun_s
        for future in (self.begun, self.answer):
            if not future.done():
                future.set_exception(error)
                future.exception()  # it need not be waited for


class RayChild:
    """A driver process, made by :meth:`start`; it is of no use any more once :meth:`ended` has returned."""

    def __init__(self, process: ChildProcess, address: str, on_nodes: Callable[[list[Any]], None]) -> None:
        self.pid = process.pid
        self._process = process
        self._address = address
        self._on_nodes = on_nodes
        self._numbers = itertools.count(FIRST_CALL)
        self._calls: dict[int, _Call] = {}
        self._reason = ""
        self._sending = asyncio.Lock()
        self._heard = False
        self._watcher: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(), name="ray driver")

    @classmethod
    async def start(
        cls, *, address: str, function: str, cpus: float, on_nodes: Callable[[list[Any]], None]
    ) -> RayChild:
        """Start a driver.

        Args:
            address: of the cluster, as Ray takes it.
            function: the function's import path, ``module:attribute``.
            cpus: how many CPUs of a node a function takes.
            on_nodes: is told all nodes that live, whenever they change.

        Raises:
            ExecutorError: the system has no room for another process.
        """
        # The driver gets Ray's variables, and no credentials of ours. Ray makes its working directory a place
        # where workers look for modules, so it is one that has none.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        module = "superdl.coordinator.executors.ray_driver"
        process = await ChildProcess.start(
            module, address, function, str(cpus), environment=environment, directory="/"
        )
        return cls(process, address, on_nodes)

    async def ready(self, timeout_s: float) -> str:
        """Wait until it has connected; the version of Ray.

        Raises:
            ExecutorError: it has not in time, or there is nothing to connect to.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            raise ExecutorError(self._unconnected(f"no answer within {timeout_s:.0f} s")) from None

    async def call(
        self, node: str, event: str, *, begin_s: float, timeout_s: float, on_begun: Callable[[], None]
    ) -> str:
        """What the function answers to an event on a node, both as JSON.

        Args:
            node: its id.
            event: the event.
            begin_s: how long the call may wait for the driver, and for the node's CPUs.
            timeout_s: how long the function may run from then on.
            on_begun: is called when it begins.

        Raises:
            ThrottledError: it was not begun in time.
            FunctionTimedOutError: it ran longer than ``timeout_s``.
            FunctionCrashedError: its process ended.
            NodeFailedError: the node is gone or cannot run the function.
            ConnectionLostError: the answer, or the driver, was lost.
            PayloadTooLargeError: no frame holds the event or the answer.
            ExecutorError: the driver has ended before, or takes no calls.
        """
        if self._reason:
            raise ExecutorError(f"Ray's driver has ended: {self._reason}")
        number, call = next(self._numbers), _Call(node)
        self._calls[number] = call
        try:
            framed = frame({"call": number, "node": node, "event": event, "timeout_s": timeout_s})
            async with asyncio.timeout(begin_s):
                await self._send(call, framed)
                await call.begun
            on_begun()
            async with asyncio.timeout(timeout_s):
                return await call.answer
        except TimeoutError:
            if not call.is_sent:
                raise _unsent(ExecutorError(f"Ray's driver took no call for {begin_s:.0f} s")) from None
            if not call.begun_s:
                raise ThrottledError(f"not begun within {begin_s:.0f} s") from None
            late = FunctionTimedOutError(f"the function did not answer within {timeout_s:.1f} s")
            late.ran_s = time.monotonic() - call.begun_s
            raise late from None
        finally:
            del self._calls[number]
            if call.is_sent and not call.is_over:
                self._process.tell({"cancel": number})

    def lose(self, node: str, words: str, *, begun_too: bool) -> None:
        """A node is gone: fail its calls that have not begun, or all of them."""
        for call in self._calls.values():
            if call.node == node and (begun_too or not call.begun_s):
                call.fail(NodeFailedError(words, begun=bool(call.begun_s)))

    async def ended(self) -> str:
        """Wait for its end, for whatever reason; how it ended."""
        await asyncio.wait([self._reader])
        return self._reason or await self._process.last_words()

    def end(self) -> None:
        """Close its input, upon which it ends."""
        self._process.end()

    async def kill(self) -> None:
        """End it by force, and wait until it is gone, which it may be slow at where the machine hangs."""
        self._process.kill()
        self._reader.cancel()
        await asyncio.wait([self._reader])
        await self._process.last_words()
        self._give_up("it was ended")

    async def _send(self, call: _Call, framed: bytes) -> None:
        """Write a call once the driver has read what was written before, so that little is ever buffered."""
        if len(framed) > LENGTH_BYTES + MAX_FRAME_BYTES:
            raise _unsent(PayloadTooLargeError(f"a request of {len(framed)} bytes: lower request_samples"))
        try:
            async with self._sending:
                await self._process.drain()
                if not call.is_over:  # its node may have gone meanwhile
                    self._process.write(framed)
                    call.is_sent = True
        except (ConnectionError, RuntimeError) as error:  # the transport is closed
            raise ExecutorError(f"Ray's driver has ended: {error}") from error

    async def _watch(self) -> None:
        """End a driver that says nothing any more, not even to pings."""
        silent = 0
        for number in itertools.count():
            if not silent:
                self._process.tell({"ping": number})
            self._heard = False
            await asyncio.sleep(_PING_S)
            silent = 0 if self._heard else silent + 1
            if silent == _MAX_SILENT_PINGS:
                break
        self._give_up(f"it gave no sign of life for {_MAX_SILENT_PINGS * _PING_S:.0f} s, and was killed")
        self._process.kill()

    async def _read(self) -> None:
        """Take what it says, until it ends or says what is no message."""
        reason = ""
        try:
            while True:
                message = await self._process.read()
                self._take(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except FrameError as error:
            reason = str(error)
            self._process.kill()
        finally:
            if self._watcher is not None:
                self._watcher.cancel()
            words = await self._process.last_words()
            self._give_up(reason or words)

    def _take(self, message: dict[str, Any]) -> None:
        self._heard = True
        if "nodes" in message:
            self._on_nodes(message["nodes"])
        elif "ready" in message:
            self._ready.set_result(str(message["ready"]))
            self._watcher = asyncio.create_task(self._watch(), name="ray driver's silence")
        elif "refused" in message:
            self._refuse(message)
        elif "begun" in message:
            call = self._calls.get(message["begun"])
            if call is not None and not call.begun.done():
                call.begun_s = time.monotonic()
                call.begun.set_result(None)
        elif (call := self._calls.get(message.get("call", 0))) is not None:  # else it was given up
            self._end(call, message)

    @staticmethod
    def _end(call: _Call, message: dict[str, Any]) -> None:
        kind, words = message.get("failed"), one_line(str(message.get("message", "")), _MAX_WORDS)
        if kind is None:
            call.is_over = True
            if not call.answer.done():
                call.answer.set_result(message["answer"])
        elif kind in {"node lost", "not begun"} or (kind in {"not loaded", "crashed"} and not call.begun_s):
            call.fail(NodeFailedError(words, begun=bool(call.begun_s)))
        else:
            call.fail(_FAILURES.get(kind, ExecutorError)(words))

    def _refuse(self, message: dict[str, Any]) -> None:
        words = one_line(str(message["refused"]), _MAX_WORDS)
        is_wrong = bool(message.get("wrong_settings"))
        error = ExecutorError(words if is_wrong else self._unconnected(words))
        error.wrong_settings = is_wrong
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # it need not be waited for

    def _unconnected(self, reason: str) -> str:
        return (
            f"no connection to the Ray cluster at ray_address={self._address} ({reason}): start one, or join "
            "this machine to it with `ray start --address=HEAD:6379 --num-cpus=0`; auto finds the one that "
            "this machine is a node of. Ray and Python are to be the cluster's; one with tokens or TLS wants "
            "RAY_AUTH_MODE and RAY_AUTH_TOKEN, or RAY_USE_TLS and its files, in this environment too"
        )

    def _give_up(self, reason: str) -> None:
        """Fail all that waits for it, and whoever comes."""
        self._reason = self._reason or reason
        if not self._ready.done():
            self._ready.set_exception(ExecutorError(self._unconnected(f"its driver ended: {reason}")))
            self._ready.exception()  # it need not be waited for
        for call in self._calls.values():
            call.fail(ConnectionLostError(f"Ray's driver ended: {reason}"))


def _unsent(error: ExecutorError) -> ExecutorError:
    """An error that comes before any function was asked."""
    error.refused = True
    return error
