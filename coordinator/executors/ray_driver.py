"""The process that speaks to Ray: ``python -m superdl.coordinator.executors.ray_driver``, a child of the
coordinator.

Ray ends its driver's process when it loses the cluster, unpickles what nodes answer and needs memory of its
own; none of that shall happen to a coordinator. This process reads calls from its standard input and writes
what became of them to its standard output, in frames (:mod:`superdl.coordinator.executors.worker`), many at
a time:

    in   {"call": 7, "node": id, "event": text, "timeout_s": 60.0}      {"cancel": 7}    {"ping": 3}
    out  {"ready": version of Ray}    {"nodes": [...]}    {"begun": 7}    {"call": 7, "answer": text}
         {"call": 7, "failed": kind, "message": words}
         {"refused": words, "wrong_settings": true}    there is no cluster to work with; it ends after that
         {"pong": 3}    it reads, works and writes: a parent that hears nothing for long may end it

It ends when its input ends. On which node a call runs, how long it may wait, and what follows from a failure
is :mod:`superdl.coordinator.executors.ray_executor`'s.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, BinaryIO

from superdl.coordinator.executors.worker import (
    BEGUN,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    FrameError,
    frame,
    read_frame,
    run_task,
    take_standard_streams,
)
from superdl.super_wire.encryption import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

_REACH_S = 5.0
_LOOK_S = 1.0
_GOODBYE_S = 3.0
_FEW_LINES = 4
_MAX_WORDS = 1000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ACCELERATORS = frozenset({"GPU", "TPU", "HPU", "NPU", "neuron_cores"})
_ACCELERATOR_TYPE = "accelerator_type:"
# Kinds of failures by the names of Ray's exceptions, of which not every version has all; the first that fits.
_KINDS = (
    ("TaskCancelledError", "cancelled"),
    ("RayTaskError", "not loaded"),  # what the function itself raises is an answer
    ("RuntimeEnvSetupError", "not loaded"),
    ("NodeDiedError", "node lost"),
    ("LocalRayletDiedError", "node lost"),
    ("TaskUnschedulableError", "not begun"),
    ("WorkerCrashedError", "crashed"),
    ("OutOfMemoryError", "crashed"),
    ("ObjectLostError", "answer lost"),
    ("ObjectFetchTimedOutError", "answer lost"),
)


def main(arguments: list[str]) -> int:
    """Connect, and serve until the input ends: arguments are address, function, CPUs of a function."""
    address, function, cpus = arguments[0], arguments[1], float(arguments[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    # What Ray prints of its own accord goes nowhere.
    calls_in, answers_out = take_standard_streams(os.open(os.devnull, os.O_WRONLY))

    def tell(message: dict[str, Any]) -> None:
        answers_out.write(_framed(message))
        answers_out.flush()

    try:
        import ray
    except ImportError as error:
        words = f"the executor ray needs Ray ({error}): pip install 'superdl[ray]'"
        tell({"refused": words, "wrong_settings": True})
        return 1
    try:
        _check_reachable(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
        # What functions print is in the logs that Ray keeps on each node.
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    except Exception as error:  # noqa: BLE001  # Ray says so by a dozen of types, its own and Python's
        tell({"refused": f"{type(error).__name__}: {error}", "wrong_settings": _is_for_good(error)})
        return 1
    asyncio.run(_Driver(ray, function, cpus, tell).serve(calls_in))
    return 0


def _framed(message: dict[str, Any]) -> bytes:
    """A message as a frame; of an answer that no frame holds, that it was too large."""
    framed = frame(message)
    if len(framed) <= LENGTH_BYTES + MAX_FRAME_BYTES or "call" not in message:
        return framed
    words = f"an answer of {len(framed)} bytes, of which {MAX_FRAME_BYTES} can be carried"
    return frame({"call": message["call"], "failed": "too large", "message": words})


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes, and tells nobody why."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()


def _is_for_good(error: Exception) -> bool:
    """Whether only other settings or another installation help: Ray and Python must be the cluster's."""
    return isinstance(error, (ValueError, RuntimeError)) and "mismatch" in str(error).lower()


class _Driver:
    """Calls as Ray's tasks, on one event loop."""

    def __init__(self, ray: Any, function: str, cpus: float, tell: Callable[[dict[str, Any]], None]) -> None:
        self._ray = ray
        self._function = function
        self._decoders = max(1, int(cpus))
        self._tell = tell
        # Retries are the coordinator's, which counts them. The generator's items come one by one.
        self._task = ray.remote(max_retries=0, num_cpus=cpus, num_returns="streaming")(run_task)
        self._kinds = [
            (getattr(ray.exceptions, name), kind) for name, kind in _KINDS if hasattr(ray.exceptions, name)
        ]
        self._running: dict[int, Any] = {}  # what Ray gave for a call; None until it is started
        self._tasks: set[asyncio.Task[None]] = set()
        self._nodes: list[dict[str, Any]] = []

    async def serve(self, calls_in: BinaryIO) -> None:
        """Until the process ends."""
        loop = asyncio.get_running_loop()
        self._tell({"ready": self._ray.__version__})
        threading.Thread(target=self._read, args=(calls_in, loop), name="super-calls", daemon=True).start()
        while True:
            # In a thread: Ray asks its head node, and waits for the answer.
            nodes = await loop.run_in_executor(None, self._look)
            if nodes != self._nodes:
                self._tell({"nodes": nodes})
            self._nodes = nodes
            await asyncio.sleep(_LOOK_S)

    def _read(self, calls_in: BinaryIO, loop: asyncio.AbstractEventLoop) -> None:
        """Hand calls over; end the process when there will be no more, whatever the event loop does."""
        code = 0
        try:
            while (message := read_frame(calls_in)) is not None:
                loop.call_soon_threadsafe(self._take, message)
        except (FrameError, OSError) as error:
            print(f"super ray driver {os.getpid()}: {error}", file=sys.stderr)  # noqa: T201  # no logger is set up here
            code = 1
        goodbye = threading.Timer(_GOODBYE_S, os._exit, (code,))
        goodbye.daemon = True
        goodbye.start()
        self._ray.shutdown()  # so that the cluster need not find out that this job is over
        os._exit(code)

    def _take(self, message: dict[str, Any]) -> None:
        if "ping" in message:
            self._tell({"pong": message["ping"]})
            return
        if "cancel" in message:
            generator = self._running.pop(message["cancel"], None)
            if generator is not None:  # else it has not been started, and will not be
                self._ray.cancel(generator, force=True)
            return
        self._running[message["call"]] = None
        task = asyncio.get_running_loop().create_task(self._run(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, message: dict[str, Any]) -> None:
        number: int = message["call"]
        if number not in self._running:  # cancelled by what was read together with it
            return
        try:
            items = self._start(number, message)
            if await (await anext(items)) == BEGUN:
                self._tell({"begun": number})
            answer = await (await anext(items))
            self._tell({"call": number, "answer": answer.decode()})
        except Exception as error:  # noqa: BLE001  # told, by its kind, to whoever made the call
            kind = next((kind for cause, kind in self._kinds if isinstance(error, cause)), "failed")
            self._tell({"call": number, "failed": kind, "message": _words_of(error)})
        finally:
            self._running.pop(number, None)

    def _start(self, number: int, message: dict[str, Any]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(message["node"], soft=False)
        items = self._task.options(scheduling_strategy=there, name="super-prefetch").remote(
            self._function,
            message["event"].encode(),
            f"ray-{os.getpid()}-{number}",
            message["timeout_s"],
            self._decoders,
        )
        self._running[number] = items
        return items

    def _look(self) -> list[dict[str, Any]]:
        """The nodes that live, as the head node tells."""
        here = self._ray.util.get_node_ip_address()
        return [
            _described(entry, here)
            for entry in sorted(self._ray.nodes(), key=lambda entry: str(entry["NodeID"]))
            if entry["Alive"]
        ]


def _words_of(error: Exception) -> str:
    """Type and words of an error in one line: of the trace that Ray makes of a task's, the last one."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()] or [""]
    words = lines[-1] if len(lines) > _FEW_LINES else " ".join(lines)
    return f"{type(error).__name__}: {words}".removesuffix(": ")[:_MAX_WORDS]


def _described(entry: dict[str, Any], here: str) -> dict[str, Any]:
    resources: dict[str, float] = entry["Resources"]
    address = str(entry["NodeManagerAddress"])
    accelerated = any(
        name in _ACCELERATORS or name.startswith(_ACCELERATOR_TYPE)
        for name, amount in resources.items()
        if amount
    )
    return {
        "id": entry["NodeID"],
        "name": f"{entry['NodeManagerHostname']} ({address})",
        "cpus": resources.get("CPU", 0.0),
        "accelerated": accelerated,
        "here": address == here or is_loopback(address),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
