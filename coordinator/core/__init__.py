"""The pure core: plans, residency, prefetch decisions. Events in, actions out; no I/O, no clock."""

from __future__ import annotations

from superdl.coordinator.core.core import Core
from superdl.coordinator.core.plan import Plan
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState, SetKey
from superdl.coordinator.core.settings import CoreSettings

__all__ = ["EVERY_EPOCH", "Core", "CoreSettings", "Plan", "SampleState", "SetKey"]
