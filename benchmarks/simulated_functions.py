"""A coordinator whose functions only take time: ``python -m benchmarks.simulated_functions``."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from superdl.coordinator.__main__ import main
from superdl.coordinator.core import ExecutorResized
from superdl.coordinator.executors.base import Executor
from superdl.super_wire.executors import EXECUTORS
from superdl.super_wire.request import Outcome, PrefetchResult

if TYPE_CHECKING:
    from superdl.super_wire.request import PrefetchRequest

_RECORD_BYTES = 64 + 224 * 224 * 3
_FUNCTIONS = 3000
_INVOCATION_S = 0.02
_SAMPLE_S = 0.002


class SimulatedExecutor(Executor):
    """An executor without functions. It waits as long as they would, and reports all samples as cached."""

    name = "local"  # the registry entry that it replaces
    remote = False
    region = ""
    fingerprint = "00" * 16
    scaling = ExecutorResized(_FUNCTIONS)

    async def start(self) -> None:
        """Do nothing; there is nothing to start."""

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Report all samples as cached, after a delay."""
        count = len(request.keys)
        duration_s = _INVOCATION_S + count * _SAMPLE_S
        await asyncio.sleep(min(duration_s, timeout_s))
        return PrefetchResult(
            request_id=request.request_id,
            function_version="bench",
            cold_start=False,
            outcomes=(Outcome.CACHED,) * count,
            record_bytes=(_RECORD_BYTES,) * count,
            fetch_us=10_000 * count,
            decode_us=2000 * count,
            push_us=100 * count,
            source_requests=count,
            source_bytes=110_000 * count,
            duration_us=int(1e6 * duration_s),
        )

    async def close(self) -> None:
        """Do nothing; there is nothing to stop."""


if __name__ == "__main__":
    # Not a setting, because only this benchmark needs it.
    simulated = f"{SimulatedExecutor.__module__}:{SimulatedExecutor.__name__}"
    EXECUTORS["local"] = replace(EXECUTORS["local"], implementation=simulated)
    sys.exit(main())
