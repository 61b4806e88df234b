"""What crosses a process boundary in SUPER: ids, recipe, record, cache keys, requests, reports, errors.

Everything here is pure and light: no torch, no sibling package. The gRPC stubs lie beside and are imported
only by those who speak gRPC.
"""

from __future__ import annotations

from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.ids import batch_id, sample_id
from superdl.super_wire.read_report import ReadReport
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Limits, Outcome, PrefetchRequest, PrefetchResult

__all__ = [
    "BatchRef",
    "Limits",
    "Outcome",
    "PrefetchRequest",
    "PrefetchResult",
    "ReadReport",
    "Recipe",
    "batch_id",
    "sample_id",
]
