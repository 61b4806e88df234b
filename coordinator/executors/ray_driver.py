"""The process that speaks to Ray: ``python -m superdl.coordinator.executors.ray_driver``, a child of the
coordinator.

Ray ends its driver's process when it loses the cluster, unpickles what nodes answer and needs memory of its
own; none of that shall happen to a coordinator. Messages are lines of
:mod:`superdl.coordinator.executors.worker`, many calls at a time:

    in   {"call": 7, "event": request, "timeout_s": 60.0}      {"cancel": 7}
    out  {"call": 7, "ran_s": 0.2, "node": name, "answer": text}
         {"call": 7, "ran_s": 0.2, "failed": name of an ExecutorError, "message": words}
         {"state": of the nodes}    {"log": words}
         {"refused": words, "wrong_settings": true}    there is no cluster to work with; it ends after that
         {}    each second: it lives
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from superdl.coordinator.executors.base import (
    ConnectionLostError,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    ThrottledError,
    one_line,
)
from superdl.coordinator.executors.messages import read_object, read_warmed, result_in, warm_event
from superdl.coordinator.executors.ray_nodes import DriverSettings, RayNodes
from superdl.coordinator.executors.worker import (
    MAX_MESSAGE_BYTES,
    MessageError,
    line_of,
    parse,
    run_task,
    take_standard_streams,
)
from superdl.super_wire.cache import CacheAddress
from superdl.super_wire.protocol import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.executors.ray_nodes import RayNode

__all__ = ["main"]

_REACH_S = 5.0
_LOOK_S = 1.0
_GOODBYE_S = 3.0
_WARM_TIMEOUT_S = 30.0
_BEGIN_S = 15.0
"""A node that is free begins a call within milliseconds, or seconds where it has to start a process first."""
_AT_ONCE_S = 2.0
_NODES_TRIED = 4
_FEW_LINES = 4
_MAX_WORDS = 1000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _NodeLostError(ExecutorError):
    """The node is gone, or cannot run the function at all; the call had not begun."""


# By the names of Ray's exceptions, of which not every version has all.
_FAILURES: dict[str, type[ExecutorError]] = {
    "TaskCancelledError": ConnectionLostError,
    "RayTaskError": FunctionRaisedError,  # what the function itself raises is an answer
    "RuntimeEnvSetupError": FunctionRaisedError,
    "NodeDiedError": _NodeLostError,
    "LocalRayletDiedError": _NodeLostError,
    "TaskUnschedulableError": _NodeLostError,
    "WorkerCrashedError": FunctionCrashedError,
    "OutOfMemoryError": FunctionCrashedError,
    "ObjectLostError": ConnectionLostError,
    "ObjectFetchTimedOutError": ConnectionLostError,
}
_IF_UNBEGUN_LOST = (_NodeLostError, FunctionRaisedError, FunctionCrashedError)


class _LogToParent(logging.Handler):
    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell({"log": record.getMessage()})


def main(arguments: list[str]) -> int:
    """Connect, and serve until the input ends; the argument is :class:`DriverSettings` as JSON."""
    settings = DriverSettings(**json.loads(arguments[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    # What Ray prints of its own accord goes nowhere.
    calls_in, answers_out = take_standard_streams(os.open(os.devnull, os.O_WRONLY))

    def tell(message: dict[str, Any]) -> None:
        answers_out.write(line_of(message))
        answers_out.flush()

    logging.getLogger("superdl").addHandler(_LogToParent(tell))
    try:
        import ray
    except ImportError as error:
        words = f"the executor ray needs Ray ({error}): pip install 'superdl[ray]'"
        tell({"refused": words, "wrong_settings": True})
        return 1
    try:
        address = settings.address
        _check_reachable(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
        # What functions print is in the logs that Ray keeps on each node.
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    except Exception as error:  # noqa: BLE001  # Ray says so by a dozen of types, its own and Python's
        # Ray and Python must be the cluster's: else only another installation helps.
        is_for_good = isinstance(error, (ValueError, RuntimeError)) and "mismatch" in str(error).lower()
        tell({"refused": f"{type(error).__name__}: {error}", "wrong_settings": is_for_good})
        return 1
    asyncio.run(_serve(ray, settings, tell, calls_in))
    return 0


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes, and tells nobody why."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()


async def _serve(
    ray: Any, settings: DriverSettings, tell: Callable[[dict[str, Any]], None], calls_in: BinaryIO
) -> None:
    """Until the process ends."""
    driver, loop = Driver(ray, settings, tell), asyncio.get_running_loop()
    arguments = (ray, driver, calls_in, loop)
    threading.Thread(target=_read, args=arguments, name="super-calls", daemon=True).start()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(driver.look_around())
        while True:
            tell({})
            await asyncio.sleep(_LOOK_S)


def _read(ray: Any, driver: Driver, calls_in: BinaryIO, loop: asyncio.AbstractEventLoop) -> None:
    """Hand calls over; end the process when there will be no more, whatever the event loop does."""
    code = 0
    try:
        for line in calls_in:
            loop.call_soon_threadsafe(driver.take, parse(line))
    except (MessageError, OSError) as error:
        print(f"super ray driver {os.getpid()}: {error}", file=sys.stderr)  # noqa: T201  # no logger is set up here
        code = 1
    goodbye = threading.Timer(_GOODBYE_S, os._exit, (code,))
    goodbye.daemon = True
    goodbye.start()
    ray.shutdown()  # so that the cluster need not find out that this job is over
    os._exit(code)


class Driver:
    """Calls to nodes as Ray's tasks, on one event loop."""

    def __init__(self, ray: Any, settings: DriverSettings, tell: Callable[[dict[str, Any]], None]) -> None:
        self._ray = ray
        self._settings = settings
        self._tell = tell
        # Retries are the coordinator's, which counts them. The generator's items come one by one.
        self._task = ray.remote(max_retries=0, num_cpus=settings.cpus, num_returns="streaming")(run_task)
        self._nodes = RayNodes(settings, self._warm, lambda state: tell({"state": state}))
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._started = 0

    async def look_around(self) -> None:
        """See which nodes there are, again and again."""
        here = self._ray.util.get_node_ip_address()
        while True:
            # In a thread: Ray asks its head node, and waits for the answer.
            entries = await asyncio.get_running_loop().run_in_executor(None, self._ray.nodes)
            self._nodes.update(entries, here)
            await asyncio.sleep(_LOOK_S)

    def take(self, message: dict[str, Any]) -> None:
        """A message from the parent: begin a call, or cancel one."""
        if "cancel" in message:
            if (call := self._calls.get(message["cancel"])) is not None:
                call.cancel()
            return
        number = message["call"]
        self._calls[number] = asyncio.get_running_loop().create_task(self._call(number, message))
        self._calls[number].add_done_callback(lambda _: self._calls.pop(number))

    async def _call(self, number: int, message: dict[str, Any]) -> None:
        try:
            told = await self._answered(message["event"], message["timeout_s"])
        except ExecutorError as error:
            told = {"failed": type(error).__name__, "message": str(error), "ran_s": error.ran_s}
        self._tell({"call": number, **told})

    async def _answered(self, event: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """What a node answers; of one that fails before it begins, another node."""
        until_s = asyncio.get_running_loop().time() + timeout_s
        for _ in range(_NODES_TRIED):
            node = await self._nodes.take(until_s)
            by_its_clock = event | {"expires_at": max(0.0, event["expires_at"] + node.clock.ahead_s)}
            try:
                answer, ran_s = await self._run(node, by_its_clock, timeout_s)
            except _NodeLostError:
                continue
            except ExecutorError as error:
                error.args = (f"{node.name}: {error}",)
                raise
            finally:
                self._nodes.give_back(node)
            return {"ran_s": ran_s, "node": node.name, "answer": answer}
        raise ExecutorError(f"{_NODES_TRIED} nodes of the Ray cluster failed before they began a request")

    async def _run(
        self, node: RayNode, event: dict[str, Any], timeout_s: float, begin_s: float = 0.0
    ) -> tuple[str, float]:
        """What the function answers to an event on a node, as JSON, and how many seconds it ran."""
        asked_s, began_s = time.monotonic(), 0.0
        begin_s = begin_s or min(_BEGIN_S, timeout_s)
        items = self._start(node, event, timeout_s)
        try:
            async with asyncio.timeout(begin_s):
                await (await anext(items))
            began_s = time.monotonic()
            node.is_crowded = node.is_crowded and began_s - asked_s >= _AT_ONCE_S
            async with asyncio.timeout(timeout_s):
                answer: bytes = await (await anext(items))
        except (asyncio.CancelledError, TimeoutError) as error:
            self._ray.cancel(items, force=True)
            if isinstance(error, asyncio.CancelledError):
                raise
            node.is_crowded = node.is_crowded or not began_s
            if began_s:
                failed: ExecutorError = FunctionTimedOutError(
                    f"the function did not answer within {timeout_s:.1f} s"
                )
            else:
                failed = ThrottledError(f"not begun within {begin_s:.0f} s: other jobs have its CPUs")
        except Exception as error:  # noqa: BLE001  # told, by its kind, to whoever made the call
            failed = self._failure(node, error, begun=bool(began_s))
        else:
            if len(answer) <= MAX_MESSAGE_BYTES // 2:
                return answer.decode(), time.monotonic() - began_s
            failed = FunctionRaisedError(f"it answered {len(answer)} bytes")
        failed.ran_s = time.monotonic() - began_s if began_s else 0.0
        raise failed

    def _start(self, node: RayNode, event: dict[str, Any], timeout_s: float) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._started += 1
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        return self._task.options(scheduling_strategy=there, name="super-prefetch").remote(
            self._settings.function,
            json.dumps(event).encode(),
            f"ray-{os.getpid()}-{self._started}",
            timeout_s,
            max(1, int(self._settings.cpus)),
        )

    def _failure(self, node: RayNode, error: Exception, *, begun: bool) -> ExecutorError:
        """What Ray raised for a call; a node that is gone, or cannot run the function, is left out."""
        kinds = (_FAILURES.get(cause.__name__) for cause in type(error).__mro__)
        kind, words = next(filter(None, kinds), ExecutorError), _words_of(error)
        if kind is _NodeLostError or (not begun and kind in _IF_UNBEGUN_LOST):
            self._nodes.lost(node, words)  # seconds before Ray says so
            kind = FunctionCrashedError if begun else _NodeLostError
        return kind(words)

    async def _warm(self, node: RayNode) -> str:
        """Let a node's function open what it needs; the fingerprint of its decoder."""
        cache = self._settings.cache
        if cache and CacheAddress.parse(cache).local and not node.here:
            raise ExecutorError(
                f"the cache's address, {cache}, is the coordinator's machine by a name that means another "
                "there: give it one that all nodes reach it by (rediss://host:port)"
            )
        answer, _ = await self._run(node, warm_event(cache), _WARM_TIMEOUT_S, begin_s=_WARM_TIMEOUT_S)
        warmed = read_warmed(result_in(read_object(answer, "it"), "it"), "it", "install SUPER there")
        version = warmed.function_version
        if version != installed_version():
            raise ExecutorError(
                f"SUPER {version[:80]} is installed there, the coordinator is SUPER {installed_version()}: "
                f"install {installed_version()} there, and restart its Ray workers"
            )
        node.clock.told(warmed.clock_s)
        return warmed.fingerprint


def _words_of(error: Exception) -> str:
    """Type and words of an error in one line: of the trace that Ray makes of a task's, the last one."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()] or [""]
    words = lines[-1] if len(lines) > _FEW_LINES else " ".join(lines)
    return one_line(f"{type(error).__name__}: {words}".removesuffix(": "), _MAX_WORDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
