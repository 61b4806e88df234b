"""Nodes of a Ray cluster: the places that functions have on them, and which nodes are fit to run any.

A node gets a warm event before requests; one that fails is left out, and tried again and again. At the
start nodes agree on how images are decoded: as most do, by the functions that fit there. From then on all are
held to that. A node where a call was not begun in time has other jobs: it gets one call at a time, and after
all others, until one begins at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import ExecutorError, ThrottledError
from superdl.coordinator.executors.messages import FunctionClock
from superdl.super_wire.encryption import is_loopback
from superdl.super_wire.sizes import some_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

__all__ = ["DriverSettings", "RayNode", "RayNodes"]

_log = logging.getLogger(__name__)

_AGREE_S = 10.0
"""A node that hangs holds the others up no longer than this once one has answered."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_ROUNDING = 1e-9
_ACCELERATORS = frozenset({"GPU", "TPU", "HPU", "NPU", "neuron_cores"})
_ACCELERATOR_TYPE = "accelerator_type:"


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """What a driver is started with; ``fingerprint`` is what nodes are held to, empty before they agreed."""

    address: str
    nodes: str
    cpus: float
    function: str
    cache: str
    fingerprint: str = ""


@dataclass(slots=True, eq=False)
class RayNode:
    """A node: ``slots`` functions fit into its CPUs; ``said`` is its digest, empty where it failed."""

    node_id: str
    name: str
    slots: int
    here: bool
    calls: int = 0
    said: str | None = None
    is_fit: bool = False
    is_crowded: bool = False
    trying: asyncio.Task[None] | None = None
    clock: FunctionClock = field(default_factory=FunctionClock)

    @property
    def places(self) -> int:
        """How many calls it gets at once."""
        return (1 if self.is_crowded else self.slots) if self.is_fit else 0


class RayNodes:
    """The nodes that may be called, and those that are tried.

    Args:
        settings: the driver's.
        warm: tries a node; gives its fingerprint, or raises ``ExecutorError``.
        tell_state: is told :attr:`state` when it has changed.
    """

    def __init__(
        self,
        settings: DriverSettings,
        warm: Callable[[RayNode], Awaitable[str]],
        tell_state: Callable[[dict[str, Any]], None],
    ) -> None:
        self._settings = settings
        self._warm = warm
        self._tell_state = tell_state
        self._told: dict[str, Any] = {}
        self._nodes: dict[str, RayNode] = {}
        self._passed_over = 0
        self._failure = ""
        self._fingerprint = settings.fingerprint
        self._agreed = asyncio.Event()
        if settings.fingerprint:
            self._agreed.set()
        self._changed = asyncio.Event()

    @property
    def state(self) -> dict[str, Any]:
        """What the coordinator is told; ``settled``: a node is fit, or all were tried in vain."""
        capacity = self._capacity
        return {
            "capacity": capacity,
            "fingerprint": self._fingerprint,
            "settled": bool(capacity) or all(node.said == "" for node in self._nodes.values()),
            "why": "" if capacity else self._why_not(),
        }

    @property
    def _capacity(self) -> int:
        return sum(node.places for node in self._nodes.values())

    def update(self, entries: Iterable[dict[str, Any]], here: str) -> None:
        """The nodes of the cluster, as Ray describes them, and the address of this machine."""
        described = [self._described(entry, here) for entry in entries if entry["Alive"]]
        alive = {node.node_id: node for node in described if node is not None}
        self._passed_over = len(described) - len(alive)
        lost = [self._nodes.pop(node_id) for node_id in self._nodes.keys() - alive.keys()]
        if lost:
            _log.warning("Ray: nodes are gone: %s", some_of([node.name for node in lost]))
        for gone in lost:
            gone.is_fit = False
            if gone.trying is not None:
                gone.trying.cancel()
        for node_id, node in alive.items():
            if node_id not in self._nodes:
                self._nodes[node_id] = node
                self._try(node)
        self.look_again()

    def _described(self, entry: dict[str, Any], here: str) -> RayNode | None:
        resources: dict[str, float] = entry["Resources"]
        address = str(entry["NodeManagerAddress"])
        is_accelerated = any(
            amount and (name in _ACCELERATORS or name.startswith(_ACCELERATOR_TYPE))
            for name, amount in resources.items()
        )
        slots = int(resources.get("CPU", 0.0) / self._settings.cpus + _ROUNDING)
        if not slots or (is_accelerated and self._settings.nodes != "all"):
            return None
        name = f"{entry['NodeManagerHostname']} ({address})"
        return RayNode(entry["NodeID"], name, slots, here=address == here or is_loopback(address))

    async def take(self, until_s: float) -> RayNode:
        """A place where the largest share is free; :meth:`give_back` returns it.

        Raises:
            ThrottledError: none became free until then, by the event loop's clock.
            ExecutorError: no node may be called now.
        """
        try:
            async with asyncio.timeout_at(until_s):
                while self._capacity:
                    free = [node for node in self._nodes.values() if node.calls < node.places]
                    if free:
                        node = max(free, key=lambda one: (not one.is_crowded, 1 - one.calls / one.places))
                        node.calls += 1
                        return node
                    await self._changed.wait()
        except TimeoutError:
            raise ThrottledError(
                f"none of {self._capacity} places on {len(self._nodes)} nodes of the Ray cluster became free "
                "in time"
            ) from None
        raise ExecutorError(f"no node of the Ray cluster can be called now: {self._why_not()}")

    def give_back(self, node: RayNode) -> None:
        """A call there is over."""
        node.calls -= 1
        self.look_again()

    def lost(self, node: RayNode, words: str) -> None:
        """A call found out that a node is not fit any more: leave it out, and try it again."""
        if node.is_fit:
            _log.warning("Ray: a node is left out: %s: %s", node.name, words)
            node.is_fit = False
            self._try(node, _FIRST_PAUSE_S)
            self.look_again()

    def _try(self, node: RayNode, pause_s: float = 0.0) -> None:
        node.trying = asyncio.create_task(self._until_fit(node, pause_s), name=f"ray node {node.name}")

    async def _until_fit(self, node: RayNode, pause_s: float) -> None:
        """Try a node until it may be called; each reason why it may not is told once."""
        told = ""
        while not node.is_fit:
            await asyncio.sleep(pause_s)
            try:
                await self._agree(node, await self._warm(node))
                node.is_fit = True
            except ExecutorError as error:
                if str(error) != told:
                    _log.warning("Ray: a node is left out: %s: %s", node.name, error)
                told, node.said = str(error), ""
                self._failure = f"{node.name}: {error}"
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self.look_again()

    async def _agree(self, node: RayNode, digest: str) -> None:
        """See that it decodes as the others do."""
        if not any(other.said for other in self._nodes.values()):
            asyncio.get_running_loop().call_later(_AGREE_S, lambda: self.look_again(in_any_case=True))
        node.said = digest
        self.look_again()
        await self._agreed.wait()
        if digest != self._fingerprint:
            raise ExecutorError(
                f"its decoder has the fingerprint {digest}, the others' {self._fingerprint}: install the "
                "same SUPER and Pillow there"
            )

    def look_again(self, *, in_any_case: bool = False) -> None:
        """Something has changed: whoever waits for a place looks again, and what is new is told.

        Once all nodes were tried, or ``in_any_case``, it is decided what they are held to.
        """
        votes: Counter[str] = Counter()
        for node in self._nodes.values():
            if node.said:
                votes[node.said] += node.slots
        all_tried = all(node.said is not None for node in self._nodes.values())
        if votes and not self._agreed.is_set() and (all_tried or in_any_case):
            self._fingerprint = votes.most_common(1)[0][0]
            self._agreed.set()
        self._changed.set()
        self._changed.clear()
        if (state := self.state) != self._told:
            self._told = state
            self._tell_state(state)

    def _why_not(self) -> str:
        """Why no node can be called."""
        cluster = f"the Ray cluster at {self._settings.address}"
        if self._nodes:
            return f"no node of {cluster} is fit: {self._failure or 'none has answered yet'}"
        if not self._passed_over:
            return f"{cluster} has no nodes"
        kind = remedy = ""
        if self._settings.nodes != "all":
            kind, remedy = " without accelerators", ", or set ray_nodes=all, which takes the others' CPUs too"
        return (
            f"none of the {self._passed_over} nodes of {cluster} is one{kind} with {self._settings.cpus:g} "
            f"CPUs for a function: add one{remedy}"
        )
