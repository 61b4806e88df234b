"""The pure core: plans, residency, prefetch decisions. Events in, actions out; no I/O, no clock."""

from __future__ import annotations

from coordinator.core.core import Core
from coordinator.core.plan import Plan
from coordinator.core.samples import EVERY_EPOCH, SampleState, SetKey
from coordinator.core.settings import CoreSettings

__all__ = ["EVERY_EPOCH", "Core", "CoreSettings", "Plan", "SampleState", "SetKey"]
