"""Nodes of a Ray cluster: the places that functions have on them, and which nodes are fit to run any.

A node has a place for each function that fits into its CPUs. Ray keeps a task waiting while others have them,
without saying so: a node where a call was not begun in time is crowded, has only as many places as functions
do run there, and gets one back with each call that begins at once. Crowded nodes are taken last.

Each node passes a preflight before it gets requests, and one that fails is tried again and again. At the
start they agree on how images are decoded: as most do, by the functions that fit there. From then on all are
held to that. How a node is tried is :mod:`superdl.coordinator.executors.ray_executor`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import ExecutorError
from superdl.coordinator.executors.cancelling import cancel_and_wait
from superdl.coordinator.executors.messages import FunctionClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

__all__ = ["NodePreflight", "RayNode", "RayNodes"]

_log = logging.getLogger(__name__)

_AT_ONCE_S = 2.0
_ROUNDING = 1e-9

_AGREE_S = 10.0
"""A node that hangs holds the others up no longer than this once one has answered."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


@dataclass(slots=True, eq=False)
class RayNode:
    """A node and what is known of it.

    Attributes:
        node_id: Ray's.
        name: host name and address, for people.
        slots: how many functions fit into its CPUs.
        here: whether it is this machine.
        places: how many calls it gets at once; fewer than ``slots`` while it is crowded.
        calls: how many it has now, ``running`` of which have begun.
        fit: whether it may be called.
        clock: how far it is ahead of this machine's.
    """

    node_id: str
    name: str
    slots: int
    here: bool
    places: int = 0
    calls: int = 0
    running: int = 0
    fit: bool = False
    clock: FunctionClock = field(default_factory=FunctionClock)

    @property
    def crowded(self) -> bool:
        """Whether others have some of its CPUs."""
        return self.places < self.slots


class RayNodes:
    """The nodes that are eligible, and who waits for a place on one.

    Args:
        cpus: how many CPUs a function takes.
        everywhere: whether nodes with accelerators are eligible too.
    """

    def __init__(self, *, cpus: float, everywhere: bool) -> None:
        self._cpus = cpus
        self._everywhere = everywhere
        self._nodes: dict[str, RayNode] = {}
        self._waiting: deque[asyncio.Future[RayNode]] = deque()
        self._reason = "none has been seen yet"
        self.passed_over = 0

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def capacity(self) -> int:
        """How many calls all nodes that are fit take at once."""
        return sum(node.places for node in self._nodes.values() if node.fit)

    def update(self, told: list[dict[str, Any]]) -> tuple[list[RayNode], list[RayNode]]:
        """Those that have come and those that have gone, by what the driver tells of all that live.

        Of those that have gone none is fit any more.
        """
        alive = {}
        self.passed_over = 0
        for entry in told:
            slots = int(entry["cpus"] / self._cpus + _ROUNDING)
            if slots < 1 or (entry["accelerated"] and not self._everywhere):
                self.passed_over += 1
                continue
            alive[entry["id"]] = RayNode(entry["id"], entry["name"], slots, entry["here"], places=slots)
        gone = [node for node in self._nodes.values() if node.node_id not in alive]
        come = [node for node in alive.values() if node.node_id not in self._nodes]
        for node in gone:
            del self._nodes[node.node_id]
            self.dismiss(node, f"the node {node.name} is gone")
        self._nodes.update((node.node_id, node) for node in come)
        return come, gone

    def admit(self, node: RayNode) -> None:
        """It is fit to be called."""
        node.fit = True
        self._serve()

    def dismiss(self, node: RayNode, reason: str) -> None:
        """It is not fit to be called (any more). If none is, nobody waits any longer."""
        node.fit = False
        if not self.capacity:
            self._fail_waiting(reason)

    def clear(self, reason: str) -> None:
        """Forget all nodes, and let nobody wait."""
        self.update([])
        self._fail_waiting(reason)

    async def take(self, timeout_s: float) -> RayNode | None:
        """A place on some node, in the order of asking; ``None`` if there is none in time.

        Whoever has one gives it back by :meth:`give_back`.

        Raises:
            ExecutorError: no node is fit, or the last one was lost while this waited.
        """
        if not self.capacity:
            raise ExecutorError(f"no node of the Ray cluster can be called now: {self._reason}")
        if not self._waiting and (node := self._best()) is not None:
            node.calls += 1
            return node
        future: asyncio.Future[RayNode] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(future)
        except TimeoutError:
            return self._served_after_all(future)
        except BaseException:
            if (node := self._served_after_all(future)) is not None:
                self.give_back(node, begun=False)
            raise

    def begun(self, node: RayNode, waited_s: float) -> None:
        """A call that has a place there has begun, after so long."""
        node.running += 1
        if node.crowded and waited_s < _AT_ONCE_S:
            node.places += 1
            self._serve()

    def late(self, node: RayNode) -> None:
        """A call that has a place there was not begun in time: others have the CPUs."""
        node.places = max(1, min(node.places, node.running))

    def give_back(self, node: RayNode, *, begun: bool) -> None:
        """A call there is over."""
        node.calls -= 1
        node.running -= begun
        self._serve()

    def _best(self) -> RayNode | None:
        """The node with the largest share of its places free; a crowded one only if no other has any."""
        free = [node for node in self._nodes.values() if node.fit and node.calls < node.places]
        return max(
            free, key=lambda node: (not node.crowded, (node.places - node.calls) / node.places), default=None
        )

    def _serve(self) -> None:
        while self._waiting and (node := self._best()) is not None:
            future = self._waiting.popleft()
            if not future.done():
                node.calls += 1
                future.set_result(node)

    def _fail_waiting(self, reason: str) -> None:
        self._reason = reason
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(
                    ExecutorError(f"no node of the Ray cluster can be called any more: {reason}")
                )

    def _served_after_all(self, future: asyncio.Future[RayNode]) -> RayNode | None:
        if future.done() and not future.cancelled() and future.exception() is None:
            return future.result()
        future.cancel()
        return None


class NodePreflight:
    """Tries nodes; those that pass are admitted.

    Args:
        nodes: where they are admitted.
        warm: tries one, and tells its fingerprint or raises :class:`ExecutorError`.

    Attributes:
        fingerprint: what nodes are held to; empty until they have agreed.
        settled: set once a node was admitted, or all were tried in vain.
        failure: why a node was not fit, the last one of which that was found; empty if none was.
    """

    def __init__(self, nodes: RayNodes, warm: Callable[[RayNode], Awaitable[str]]) -> None:
        self.fingerprint = ""
        self.settled = asyncio.Event()
        self.failure = ""
        self._nodes = nodes
        self._warm = warm
        self._agreed = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._undecided: set[str] = set()
        self._votes: Counter[str] = Counter()

    def come(self, nodes: Iterable[RayNode]) -> None:
        """Try new nodes."""
        for node in nodes:
            if not self.fingerprint:
                self._undecided.add(node.node_id)
            self._try(node)
        self._decide()

    def gone(self, node: RayNode) -> None:
        """Try a node no more."""
        if (task := self._tasks.pop(node.node_id, None)) is not None:
            task.cancel()
        self._undecided.discard(node.node_id)
        self._decide()

    def lost(self, node: RayNode, reason: str) -> None:
        """A call found out that a node is not fit any more: leave it out, and try it again."""
        _log.warning("Ray: the node %s is left out: %s", node.name, reason)
        self._nodes.dismiss(node, reason)
        self._try(node, _FIRST_PAUSE_S)

    async def stop(self) -> None:
        """Try none any more; what they have agreed on stays."""
        self._undecided.clear()
        self._votes.clear()
        await cancel_and_wait(*self._tasks.values())
        self._tasks.clear()

    def _try(self, node: RayNode, pause_s: float = 0.0) -> None:
        self._tasks[node.node_id] = asyncio.create_task(
            self._until_fit(node, pause_s), name=f"ray node {node.name}"
        )

    async def _until_fit(self, node: RayNode, pause_s: float) -> None:
        told = ""
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._agree(node, await self._warm(node))
            except ExecutorError as error:
                if str(error) != told:
                    _log.warning("Ray: the node %s is left out: %s", node.name, error)
                told = str(error)
                self.failure = f"{node.name}: {error}"
            else:
                self._tasks.pop(node.node_id, None)
                self._nodes.admit(node)
                self.settled.set()
                return
            self._undecided.discard(node.node_id)
            self._decide()
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)

    async def _agree(self, node: RayNode, fingerprint: str) -> None:
        """See that it decodes as the others do."""
        if not self.fingerprint:
            if not self._votes:
                asyncio.get_running_loop().call_later(_AGREE_S, self._decide_anyway)
            self._votes[fingerprint] += node.slots
            self._undecided.discard(node.node_id)
            self._decide()
        await self._agreed.wait()
        if fingerprint != self.fingerprint:
            raise ExecutorError(
                f"its decoder has the fingerprint {fingerprint}, the others' {self.fingerprint}: install the "
                "same SUPER and Pillow there"
            )

    def _decide(self) -> None:
        """Once all were tried: what the others are held to, or that there is none."""
        if self.fingerprint or self._undecided:
            return
        if self._votes:
            self.fingerprint = self._votes.most_common(1)[0][0]
            self._agreed.set()
        else:
            self.settled.set()

    def _decide_anyway(self) -> None:
        if self._votes:
            self._undecided.clear()
            self._decide()
