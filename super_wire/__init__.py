"""What crosses a process boundary in SUPER: ids, recipe, record, cache keys, requests, reports, errors.

Everything here is pure and light: no torch, no sibling package. The gRPC stubs lie beside and are imported
only by those who speak gRPC.
"""

from __future__ import annotations

from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.recipe import Recipe

__all__ = ["BatchRef", "Recipe"]
