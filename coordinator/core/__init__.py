"""The pure core: plans, residency, prefetch decisions. Events in, actions out; no I/O, no clock.

To follow a rank, read ``ranks`` and ``lookahead``. To follow a request, read ``dispatching``,
``requests`` and ``retrying``. To follow a sample, read ``samples`` and ``cache``.
"""

from __future__ import annotations

from superdl.coordinator.core import events
from superdl.coordinator.core.core import Core
from superdl.coordinator.core.events import *  # noqa: F403  # the events and actions
from superdl.coordinator.core.fleet import ExecutorState
from superdl.coordinator.core.jobs import ClosedJobs, Job
from superdl.coordinator.core.journal import Cause
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.lookahead import exceeding_text, headroom_bytes, maxmemory_for, runs_of
from superdl.coordinator.core.plan import Plan
from superdl.coordinator.core.queues import BatchPlace
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState, SetKey, footprint
from superdl.coordinator.core.settings import NO_TEAM, CoreSettings, DatasetFacts, ExecutorFacts, Prices, Team

__all__ = [
    "EVERY_EPOCH",
    "NO_TEAM",
    "BatchPlace",
    "Cause",
    "ClosedJobs",
    "Core",
    "CoreSettings",
    "DatasetFacts",
    "ExecutorFacts",
    "ExecutorState",
    "Job",
    "Plan",
    "Prices",
    "SampleState",
    "SetKey",
    "Spending",
    "Team",
    "exceeding_text",
    "footprint",
    "headroom_bytes",
    "maxmemory_for",
    "runs_of",
]
__all__ += events.__all__
