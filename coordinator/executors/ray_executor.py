"""The ``ray`` executor: functions as tasks on the CPU nodes of a Ray cluster that exists already.

The driver, which is all that knows of Ray, is a process of its own and started again when it dies. Each node
is tried with a warm event before it gets requests: one that lacks SUPER, has another version, decodes
otherwise, or cannot reach the cache is left out, and tried again later. A node that dies costs the requests
that run there; those that had not begun go to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import (
    Executor,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    Scaling,
    ThrottledError,
    one_line,
    setting,
)
from superdl.coordinator.executors.cancelling import cancel_and_wait
from superdl.coordinator.executors.child_process import keep_running
from superdl.coordinator.executors.messages import (
    read_object,
    read_result,
    read_warmed,
    result_in,
    warm_event,
)
from superdl.coordinator.executors.ray_child import NodeFailedError, RayChild
from superdl.coordinator.executors.ray_nodes import NodePreflight, RayNodes
from superdl.super_wire.cache import CacheAddress
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import installed_version

if TYPE_CHECKING:
    from superdl.coordinator.executors.base import ExecutorContext
    from superdl.coordinator.executors.ray_nodes import RayNode
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = ["RayExecutor", "RaySettings"]

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 30.0
_WARM_TIMEOUT_S = 30.0
_START_TIMEOUT_S = _CONNECT_TIMEOUT_S + 3 * _WARM_TIMEOUT_S
_BEGIN_S = 15.0
"""A node that is free begins a call within milliseconds, or seconds where it has to start a process first."""
_PLACES_TRIED = 4
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CLOSE_TIMEOUT_S = 5.0
_BACKLOG_SHARE = 4
_MAX_WORDS = 600
_LASTED_S = 2 * _LONGEST_PAUSE_S


@dataclass(frozen=True)
class RaySettings:
    """Settings of the ray executor.

    ``ray_address`` is the Ray cluster's, ``auto`` for the one that this machine is a node of; ``ray_nodes``
    is ``cpu`` for its nodes without accelerators, or ``all``; a function takes ``ray_cpus_per_function``
    CPUs. ``ray_shared_files`` says that its nodes see this machine's files, for ``file://`` sources.
    """

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

    Args:
        cache: address of the cache that functions are to reach, as requests will name it.
        address: of the cluster, as Ray takes it; ``auto`` for the one that this machine is a node of.
        nodes: ``cpu`` for those without accelerators, ``all`` for the others' CPUs too.
        cpus: how many CPUs a function takes.
        function: the function's import path, ``module:attribute``.
        shared_files: whether nodes see this machine's files, under the same names.

    Raises:
        ConfigError: ``address`` is none that a driver of its own can join.
    """

    name = "ray"
    region = ""
    files_by_others = True
    files_remedy = (
        "set SUPER_RAY_SHARED_FILES=1 (--ray-shared-files) if all nodes see it at the same place, else "
        f"{Executor.files_remedy}"
    )

    def __init__(
        self,
        *,
        cache: str,
        address: str = "auto",
        nodes: str = "cpu",
        cpus: float = 1.0,
        function: str = "superdl.lambda_prefetch.handler:handler",
        shared_files: bool = False,
    ) -> None:
        _check_address(address)
        self._shared_files = shared_files
        self._cache = cache
        self._cache_is_local = CacheAddress.parse(cache).local
        self._address = address
        self._kind = nodes
        self._cpus = cpus
        self._function = function
        self._nodes = RayNodes(cpus=cpus, everywhere=nodes == "all")
        self._child: RayChild | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._preflight = NodePreflight(self._nodes, self._warm)
        self._closing = asyncio.Event()
        self._failure = ExecutorError("Ray's driver has not been started")
        self._told = ""

    @classmethod
    def of(cls, settings: RaySettings, context: ExecutorContext) -> RayExecutor:
        """See :class:`superdl.coordinator.executors.base.Executor`."""
        return cls(
            cache=context.cache,
            address=settings.ray_address,
            nodes=settings.ray_nodes,
            cpus=settings.ray_cpus_per_function,
            function=context.function,
            shared_files=settings.ray_shared_files,
        )

    @property
    def remote(self) -> bool:
        """Unless the nodes see this machine's files."""
        return not self._shared_files

    @property
    def fingerprint(self) -> str:
        """What all nodes decode images to; empty before :meth:`start`."""
        return self._preflight.fingerprint

    @property
    def scaling(self) -> Scaling:
        """One request for each place on nodes that are fit now, and a few more, so that none idles."""
        capacity = self._nodes.capacity
        return Scaling(capacity, burst=capacity, per_s=math.inf, backlog=math.ceil(capacity / _BACKLOG_SHARE))

    @property
    def driver_pid(self) -> int:
        """Process id of the driver; 0 while there is none."""
        return self._child.pid if self._child is not None else 0

    async def start(self) -> None:
        """Connect, and wait, bounded, until each node was tried; one that is fit is enough.

        Raises:
            ExecutorError: there is no cluster, or no node that can run the function; the message says why.
        """
        self._preflight.settled.clear()
        self._closing.clear()
        keeping = keep_running(
            self._keep_one, self._closing, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S
        )
        self._keeper = asyncio.create_task(keeping, name="ray")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._preflight.settled.wait()
        if not self._nodes.capacity:
            failure = self._why_not()
            await self.close()
            raise failure
        _log.info("Ray: %d functions at once on %d nodes", self._nodes.capacity, len(self._nodes))

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run one request on a node; see :class:`superdl.coordinator.executors.base.Executor`.

        Raises:
            ThrottledError: no place became free within ``timeout_s``, or its node did not begin it, since
                other jobs of the cluster have the CPUs.
            FunctionTimedOutError: the function ran longer than ``timeout_s``.
            FunctionCrashedError: its process or its node ended.
            ConnectionLostError: the driver ended.
            FunctionRaisedError: it raised, or answered what is no result of this request.
            ExecutorError: there is no driver or no node now.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        for _ in range(_PLACES_TRIED):
            self._check_alive()
            left_s = max(0.0, deadline_s - loop.time())
            node = await self._nodes.take(left_s)
            if node is None:
                raise ThrottledError(
                    f"none of {self._nodes.capacity} places on {len(self._nodes)} nodes of the Ray cluster "
                    f"became free within {left_s:.1f} s"
                )
            try:
                return await self._run(node, request, min(_BEGIN_S, timeout_s), timeout_s)
            except NodeFailedError as error:
                if error.begun:
                    raise _crashed(error) from error
                _log.info("request %s goes to another node: %s", request.request_id, error)
        raise ExecutorError(f"{_PLACES_TRIED} nodes of the Ray cluster failed before they began the request")

    async def close(self) -> None:
        """End the driver, by closing its input and, where that does not help in time, by force."""
        self._closing.set()
        if self._child is not None:
            self._child.end()
        if self._keeper is not None:
            await asyncio.wait([self._keeper], timeout=_CLOSE_TIMEOUT_S)
            await cancel_and_wait(self._keeper)

    async def _run(
        self, node: RayNode, request: PrefetchRequest, begin_s: float, timeout_s: float
    ) -> PrefetchResult:
        """One request on a node where it has a place, which is given back."""
        asked_s, began_s = time.monotonic(), 0.0

        def on_begun() -> None:
            nonlocal began_s
            began_s = time.monotonic()
            self._nodes.begun(node, began_s - asked_s)

        try:
            child = self._check_alive()
            text = await child.call(
                node.node_id,
                self._asked(request, node).to_json(),
                begin_s=begin_s,
                timeout_s=timeout_s,
                on_begun=on_begun,
            )
            result = _result_of(text, request.request_id)
        except ThrottledError as error:
            self._nodes.late(node)
            msg = f"{node.name}: {error}: other jobs have its CPUs, {node.running} of {node.slots} are ours"
            raise ThrottledError(msg) from None
        except NodeFailedError as error:
            self._lost(node, error)
            raise
        except ExecutorError as error:
            error.args = (f"{node.name}: {error}",)
            error.ran_s = error.ran_s or (time.monotonic() - began_s if began_s else 0.0)
            raise
        finally:
            self._nodes.give_back(node, begun=bool(began_s))
        node.clock.told(result.clock_s)
        return result

    def _check_alive(self) -> RayChild:
        if self._child is None or self._closing.is_set():
            raise ExecutorError(f"there is no driver for Ray now: {self._failure}")
        return self._child

    def _asked(self, request: PrefetchRequest, node: RayNode) -> PrefetchRequest:
        """The request by the node's clock, to be refused by one that is not the one that was warmed."""
        return replace(
            request,
            expires_at=max(0.0, request.expires_at + node.clock.ahead_s),
            golden=self._preflight.fingerprint,
            function_version=installed_version(),
        )

    async def _keep_one(self) -> bool:
        """Have one driver until it ends; whether it served for long."""
        began_s = time.monotonic()
        await self._drive()
        if not self._closing.is_set():
            if self._preflight.fingerprint and str(self._failure) != self._told:
                self._told = str(self._failure)
                _log.warning("Ray's driver is started again: %s", self._told)
            self._preflight.settled.set()  # start() need not wait any longer
        return time.monotonic() - began_s > _LASTED_S

    async def _drive(self) -> None:
        """Start a driver and wait for its end."""
        child = None
        try:
            child = await RayChild.start(
                address=self._address, function=self._function, cpus=self._cpus, on_nodes=self._on_nodes
            )
            self._child = child
            version = await child.ready(_CONNECT_TIMEOUT_S)
            _log.info("Ray %s: connected to the cluster at %s", version, self._address)
            self._failure = ExecutorError(f"Ray's driver ended: {await child.ended()}")
        except ExecutorError as error:
            self._failure = error
        finally:
            self._child = None
            self._nodes.clear(str(self._failure))
            await self._preflight.stop()
            if child is not None:
                await child.kill()

    def _on_nodes(self, told: list[dict[str, Any]]) -> None:
        """The cluster's nodes have changed."""
        come, gone = self._nodes.update(told)
        for node in gone:
            _log.warning("Ray: the node %s is gone", node.name)
            self._preflight.gone(node)
            if self._child is not None:
                self._child.lose(node.node_id, f"the node {node.name} is gone", begun_too=True)
        self._preflight.come(come)

    def _why_not(self) -> ExecutorError:
        """Why nothing could be started."""
        if self._child is None:
            return self._failure
        if len(self._nodes):
            why = self._preflight.failure or f"none has answered within {_START_TIMEOUT_S:.0f} s"
            return ExecutorError(f"no node of the Ray cluster at {self._address} is fit: {why}")
        return ExecutorError(self._nobody())

    def _nobody(self) -> str:
        """Why there is no node."""
        passed = self._nodes.passed_over
        if not passed:
            return f"the Ray cluster at {self._address} has no nodes"
        kind = "" if self._kind == "all" else " without accelerators"
        remedy = "" if self._kind == "all" else ", or set ray_nodes=all, which takes the others' CPUs too"
        return (
            f"none of the {passed} nodes of the Ray cluster at {self._address} is one{kind} with "
            f"{self._cpus:g} CPUs for a function: add one{remedy}"
        )

    async def _warm(self, node: RayNode) -> str:
        """Let a node's function open what it needs; the fingerprint of its decoder."""
        if self._cache_is_local and not node.here:
            raise ExecutorError(
                f"the cache's address, {self._cache}, is the coordinator's machine by a name that means "
                "another there: give it one that all nodes reach it by (rediss://host:port)"
            )
        child = self._check_alive()
        answer = await child.call(
            node.node_id,
            json.dumps(warm_event(self._cache)),
            begin_s=_WARM_TIMEOUT_S,
            timeout_s=_WARM_TIMEOUT_S,
            on_begun=lambda: None,
        )
        warmed = read_warmed(result_in(read_object(answer, "it"), "it"), "it", "install SUPER there")
        version = warmed.function_version
        if version != installed_version():
            raise ExecutorError(
                f"SUPER {version[:80]} is installed there, the coordinator is SUPER {installed_version()}: "
                f"install {installed_version()} there, and restart its Ray workers"
            )
        node.clock.told(warmed.clock_s)
        return warmed.fingerprint

    def _lost(self, node: RayNode, error: NodeFailedError) -> None:
        """A call found out that a node is gone, or cannot run the function: seconds before Ray says so."""
        if not node.fit:
            return
        self._preflight.lost(node, str(error))
        if self._child is not None:
            self._child.lose(node.node_id, str(error), begun_too=False)


def _check_address(address: str) -> None:
    """A driver is a process on a node of the cluster; Ray's client, which is none, streams no answers."""
    if "://" in address or address == "local" or not address:
        raise ConfigError(
            "ray_address is auto, or HEAD:6379 of a cluster that this machine has joined as a node (with no "
            f"CPUs to give, if you like: ray start --address=HEAD:6379 --num-cpus=0); not {address!r}"
        )


def _crashed(error: NodeFailedError) -> FunctionCrashedError:
    crashed = FunctionCrashedError(str(error))
    crashed.ran_s = error.ran_s
    return crashed


def _result_of(text: str, request_id: str) -> PrefetchResult:
    """The result in a node's answer; its words of others in one line each, of bounded length."""
    result = read_result(result_in(read_object(text, "it"), "it"), request_id, "it")
    samples, messages = len(result.outcomes), result.messages
    if len(messages) > samples:
        raise FunctionRaisedError(f"it answered {len(messages)} messages for {samples} samples")
    return replace(result, messages={place: one_line(words, _MAX_WORDS) for place, words in messages.items()})
