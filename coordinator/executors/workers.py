"""The ``workers`` executor: functions in processes that call in (``superdl worker``), anywhere.

Its capacity is the sum of their slots, and changes as workers come and go.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from superdl.coordinator.executors.base import Executor, FunctionRaisedError, Scaling, one_line, setting
from superdl.coordinator.executors.messages import read_object, read_result
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import RequestKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.coordinator.executors.base import ExecutorContext
    from superdl.coordinator.executors.called_in import Workers
    from superdl.super_wire import coordinator_pb2 as pb
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = ["StoreWorkersExecutor", "WorkersExecutor", "WorkersSettings"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkersSettings:
    """Settings of the workers executor."""

    shared_files: bool = setting(
        default=False, what="workers see this machine's files at the same place, for file:// sources"
    )


class WorkersExecutor(Executor):
    """Runs functions in the workers that call in."""

    name = "workers"
    region = ""
    files_by_others = True
    files_remedy = (
        "set SUPER_SHARED_FILES=1 (--shared-files) if all workers see it at the same place, else "
        f"{Executor.files_remedy}"
    )

    def __init__(self, settings: WorkersSettings, context: ExecutorContext) -> None:
        if context.workers is None:
            raise ConfigError("workers call in at a coordinator; there is none here")
        self.remote = not settings.shared_files
        self._workers: Workers = context.workers

    @property
    def scaling(self) -> Scaling:  # type: ignore[override]  # it changes
        """One request for each slot, and one more waiting."""
        slots = self._workers.slots
        return Scaling(slots, burst=slots, per_s=math.inf, backlog=slots)

    @property
    def connected(self) -> list[pb.WorkerStats]:  # type: ignore[override]  # they come and go
        """The workers that are connected now."""
        return self._workers.stats

    @property
    def slot_failures(self) -> Mapping[str, int]:  # type: ignore[override]  # they grow
        """Failures of their slots, by kind."""
        return self._workers.failures

    @property
    def fingerprint(self) -> str:  # type: ignore[override]  # it is the first worker's
        """Decoder fingerprint of the workers."""
        return self._workers.fingerprint

    async def start(self) -> None:
        """Wait for the first worker."""
        _log.info("waiting for the first worker to call in")
        await self._workers.first()

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Run one request in a free slot; see :class:`.base.Executor`."""
        of_store = not request.kind.decodes

        def made(ahead_s: float, sees_store: bool) -> bytes:  # noqa: FBT001  # as it is called
            theirs = replace(request, expires_at=request.expires_at + ahead_s)
            # Without the store, a worker can only decode.
            if not (sees_store or of_store):
                theirs = replace(theirs, kind=RequestKind.DECODE, store="")
            return theirs.to_json().encode()

        answer = await self._workers.run(made, timeout_s, of_store=of_store)
        result = read_result(read_object(answer, "a worker"), request.request_id, "a worker")
        messages, samples = result.messages, len(result.outcomes)
        if len(messages) > samples:
            raise FunctionRaisedError(f"a worker answered {len(messages)} messages for {samples} samples")
        return replace(result, messages={place: one_line(words) for place, words in messages.items()})

    async def close(self) -> None:
        """End the workers' streams. They wait for the next coordinator, or exit."""
        self._workers.close()


class StoreWorkersExecutor(WorkersExecutor):
    """Restores and saves in workers that call in only for that. There may be none."""

    def __init__(self, settings: WorkersSettings, context: ExecutorContext) -> None:
        super().__init__(settings, replace(context, workers=context.savers))

    async def start(self) -> None:
        """Return at once: no worker is required."""
