"""Finds out which nodes of a Ray cluster are fit to run the function, and goes on trying those that are not.

At the start they agree on how golden images are decoded: as most do, by the functions that fit there. From
then on all are held to that. How a node is tried is :mod:`superdl.coordinator.executors.ray_executor`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from superdl.coordinator.cancelling import cancel_and_wait
from superdl.coordinator.executors.base import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from superdl.coordinator.executors.ray_nodes import RayNode, RayNodes

__all__ = ["RayFitness"]

_log = logging.getLogger(__name__)

_PATIENCE_S = 10.0
"""A node that hangs holds the others up no longer than this once one has answered."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class RayFitness:
    """Trials of nodes; those that pass are admitted.

    Args:
        nodes: where they are admitted.
        warm: tries one, and tells its golden digest or raises :class:`ExecutorError`.

    Attributes:
        golden: what nodes are held to; empty until they have agreed.
        settled: set once a node was admitted, or all were tried in vain.
        failure: why a node was not fit, the last one of which that was found; empty if none was.
    """

    def __init__(self, nodes: RayNodes, warm: Callable[[RayNode], Awaitable[str]]) -> None:
        self.golden = ""
        self.settled = asyncio.Event()
        self.failure = ""
        self._nodes = nodes
        self._warm = warm
        self._agreed = asyncio.Event()
        self._trials: dict[str, asyncio.Task[None]] = {}
        self._undecided: set[str] = set()
        self._votes: Counter[str] = Counter()

    def come(self, nodes: Iterable[RayNode]) -> None:
        """Try new nodes."""
        for node in nodes:
            if not self.golden:
                self._undecided.add(node.node_id)
            self._try(node)
        self._decide()

    def gone(self, node: RayNode) -> None:
        """Try a node no more."""
        if (trial := self._trials.pop(node.node_id, None)) is not None:
            trial.cancel()
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
        await cancel_and_wait(*self._trials.values())
        self._trials.clear()

    def _try(self, node: RayNode, pause_s: float = 0.0) -> None:
        self._trials[node.node_id] = asyncio.create_task(
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
                self._trials.pop(node.node_id, None)
                self._nodes.admit(node)
                self.settled.set()
                return
            self._undecided.discard(node.node_id)
            self._decide()
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)

    async def _agree(self, node: RayNode, golden: str) -> None:
        """See that it decodes as the others do."""
        if not self.golden:
            if not self._votes:
                asyncio.get_running_loop().call_later(_PATIENCE_S, self._decide_anyway)
            self._votes[golden] += node.slots
            self._undecided.discard(node.node_id)
            self._decide()
        await self._agreed.wait()
        if golden != self.golden:
            raise ExecutorError(
                f"it decodes the golden images to {golden}, the others to {self.golden}: install the same "
                "SUPER and Pillow there"
            )

    def _decide(self) -> None:
        """Once all were tried: what the others are held to, or that there is none."""
        if self.golden or self._undecided:
            return
        if self._votes:
            self.golden = self._votes.most_common(1)[0][0]
            self._agreed.set()
        else:
            self.settled.set()

    def _decide_anyway(self) -> None:
        if self._votes:
            self._undecided.clear()
            self._decide()
