"""The ``ray`` executor: functions as tasks on the CPU nodes of a Ray cluster that exists already.

All that knows of Ray, and of its nodes, is a process of its own, started again when it dies
(:mod:`superdl.coordinator.executors.ray_driver`). This module is its other end: it sends requests, and turns
what comes back into results and errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import (
    ConnectionLostError,
    Executor,
    ExecutorError,
    FunctionRaisedError,
    Scaling,
    one_line,
    setting,
)
from superdl.coordinator.executors.child_process import ChildProcess, keep_running
from superdl.coordinator.executors.messages import read_object, read_result, result_in
from superdl.coordinator.executors.ray_nodes import DriverSettings
from superdl.coordinator.executors.worker import FIRST_CALL, MessageError
from superdl.super_wire.cancelling import cancel_and_wait
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import installed_version

if TYPE_CHECKING:
    from superdl.coordinator.executors.base import ExecutorContext
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = ["RayExecutor", "RaySettings"]

_log = logging.getLogger(__name__)

_SILENCE_S = 30.0
"""A driver that says nothing for so long, not even that it lives, is ended; connecting takes no longer."""
_START_TIMEOUT_S = 120.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CLOSE_TIMEOUT_S = 5.0
_BACKLOG_SHARE = 4
_LASTED_S = 2 * _LONGEST_PAUSE_S
_OURS = ("SUPER_", "AWS_")
_FAILURES = {kind.__name__: kind for kind in ExecutorError.__subclasses__()}
"""What the driver names of base's errors; all else is an ExecutorError as such."""


@dataclass(frozen=True)
class RaySettings:
    """Settings of the ray executor."""

    ray_address: str = setting("auto", "of the Ray cluster (auto: the one this machine is a node of)")
    ray_nodes: str = setting(
        "cpu", "cpu (default): nodes without accelerators; or all", choices=("cpu", "all")
    )
    ray_cpus_per_function: float = setting(1.0, "CPUs of a node for each function (1)", low=0.1, high=64)
    ray_shared_files: bool = setting(
        default=False, what="the cluster's nodes see this machine's files, for file:// sources"
    )


class RayExecutor(Executor):
    """Nodes of a Ray cluster.

    Raises:
        ConfigError: the address is none that a driver of its own can join.
    """

    name = "ray"
    region = ""
    files_by_others = True
    files_remedy = (
        "set SUPER_RAY_SHARED_FILES=1 (--ray-shared-files) if all nodes see it at the same place, else "
        f"{Executor.files_remedy}"
    )

    def __init__(self, settings: RaySettings, context: ExecutorContext) -> None:
        address = settings.ray_address
        # A driver is a process on a node of the cluster; Ray's client, which is none, streams no answers.
        if "://" in address or address == "local" or not address:
            raise ConfigError(
                "ray_address is auto, or HEAD:6379 of a cluster that this machine has joined as a node (with "
                f"no CPUs to give, if you like: ray start --address=HEAD:6379 --num-cpus=0); not {address!r}"
            )
        self.remote = not settings.ray_shared_files
        self.fingerprint = ""
        self._driver_settings = DriverSettings(
            address, settings.ray_nodes, settings.ray_cpus_per_function, context.function, context.cache
        )
        self.scaling = _scaling(0)
        self._child: ChildProcess | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._settled, self._closing = asyncio.Event(), asyncio.Event()
        self._failure = ExecutorError("Ray's driver has not been started")
        self._told = ""
        self._numbers = itertools.count(FIRST_CALL)
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._sending = asyncio.Lock()

    @property
    def driver_pid(self) -> int:
        """Process id of the driver; 0 while there is none."""
        return self._child.pid if self._child is not None else 0

    async def start(self) -> None:
        """Connect, and wait, bounded, until each node was tried; one that is fit is enough.

        Raises:
            ExecutorError: there is no cluster, or no node that can run the function; the message says why.
        """
        self._settled.clear()
        self._closing.clear()
        keeping = keep_running(self._drive, self._closing, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
        self._keeper = asyncio.create_task(keeping, name="ray")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._settled.wait()
        if not self.scaling.capacity:
            failure = self._failure
            await self.close()
            raise failure
        _log.info("Ray: %d functions at once", self.scaling.capacity)

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run one request on a node; see :class:`superdl.coordinator.executors.base.Executor`.

        A request that no node begins in time, since other jobs have its CPUs, was throttled.
        """
        child = self._child
        if child is None or self._closing.is_set():
            raise ExecutorError(f"there is no driver for Ray now: {self._failure}")
        # To be refused by a function that is not the one that was warmed.
        asked = replace(request, golden=self.fingerprint, function_version=installed_version())
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        message = {"call": number, "event": asked.to_mapping(), "timeout_s": timeout_s}
        self._calls[number] = answer
        sent_s = time.monotonic()
        try:
            async with self._sending:  # once it has read what was written before: little is ever buffered
                await child.drain()
                child.tell(message)
            told = await answer
        except ConnectionLostError as error:
            error.ran_s = time.monotonic() - sent_s
            raise
        except (ConnectionError, RuntimeError) as error:  # the transport is closed
            raise ExecutorError(f"Ray's driver has ended: {error}") from error
        finally:
            del self._calls[number]
            if answer.cancelled() or not answer.done():
                child.tell({"cancel": number})
        return _result_of(told, request.request_id)

    async def close(self) -> None:
        """End the driver, by closing its input and, where that does not help in time, by force."""
        self._closing.set()
        if self._child is not None:
            self._child.end()
        if self._keeper is not None:
            await asyncio.wait([self._keeper], timeout=_CLOSE_TIMEOUT_S)
            await cancel_and_wait(self._keeper)

    async def _drive(self) -> bool:
        """Have one driver until it ends; whether it served for long."""
        began_s, child = time.monotonic(), None
        # The driver gets Ray's variables, and no credentials of ours. Ray makes its working directory a place
        # where workers look for modules, so it is one that has none.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        settings = json.dumps(asdict(replace(self._driver_settings, fingerprint=self.fingerprint)))
        module = "superdl.coordinator.executors.ray_driver"
        try:
            child = await ChildProcess.start(module, settings, environment=environment, directory="/")
            self._child = child
            while True:
                async with asyncio.timeout(_SILENCE_S):
                    self._take(await child.read())
        except TimeoutError:
            self._failure = self._unconnected(f"no answer within {_SILENCE_S:.0f} s")
        except (asyncio.IncompleteReadError, ConnectionError, MessageError) as error:
            words = str(error) if child is None else await child.last_words(error)
            self._failure = self._unconnected(f"its driver ended: {words}")
        except ExecutorError as error:
            self._failure = error
        finally:
            self._child, self.scaling = None, _scaling(0)
            for answer in self._calls.values():
                if not answer.done():
                    answer.set_exception(ConnectionLostError(str(self._failure)))
            if child is not None:
                child.kill()
                await child.last_words()
        if not self._closing.is_set():
            if self.fingerprint and str(self._failure) != self._told:
                self._told = str(self._failure)
                _log.warning("Ray's driver is started again: %s", self._told)
            self._settled.set()  # start() need not wait any longer
        return time.monotonic() - began_s > _LASTED_S

    def _take(self, message: dict[str, Any]) -> None:
        if (state := message.get("state")) is not None:
            self.scaling, self.fingerprint = _scaling(state["capacity"]), state["fingerprint"]
            if state["why"]:
                self._failure = ExecutorError(state["why"])
            if state["settled"]:
                self._settled.set()
        elif "log" in message:
            cause = ": ".join(message["log"].split(": ", 2)[:2])  # whichever node it is
            _log.warning("%s", message["log"], extra={"cause": cause})
        elif "refused" in message:
            words, is_wrong = one_line(message["refused"]), message["wrong_settings"]
            error = ExecutorError(words) if is_wrong else self._unconnected(words)
            error.wrong_settings = is_wrong
            raise error
        elif (answer := self._calls.get(message.get("call", 0))) is not None and not answer.done():
            answer.set_result(message)

    def _unconnected(self, reason: str) -> ExecutorError:
        return ExecutorError(
            f"no connection to the Ray cluster at ray_address={self._driver_settings.address} ({reason}): "
            "start one, or join this machine to it with `ray start --address=HEAD:6379 --num-cpus=0`; auto "
            "finds the one that this machine is a node of. Ray and Python are to be the cluster's; one with "
            "tokens or TLS wants RAY_AUTH_MODE and RAY_AUTH_TOKEN, or RAY_USE_TLS and its files, in this "
            "environment too"
        )


def _scaling(capacity: int) -> Scaling:
    """One request for each place on nodes that are fit now, and a few more, so that none idles."""
    return Scaling(capacity, burst=capacity, per_s=math.inf, backlog=math.ceil(capacity / _BACKLOG_SHARE))


def _result_of(told: dict[str, Any], request_id: str) -> PrefetchResult:
    """The result in what the driver tells of a call; words of others in one line each, of bounded length."""
    try:
        if "failed" in told:
            raise _FAILURES.get(told["failed"], ExecutorError)(told["message"])
        result = read_result(result_in(read_object(told["answer"], "it"), "it"), request_id, "it")
        samples, messages = len(result.outcomes), result.messages
        if len(messages) > samples:
            raise FunctionRaisedError(f"it answered {len(messages)} messages for {samples} samples")
    except ExecutorError as error:
        error.ran_s = told["ran_s"]
        if "node" in told:
            error.args = (f"{told['node']}: {error}",)
        raise
    return replace(result, messages={place: one_line(words) for place, words in messages.items()})
