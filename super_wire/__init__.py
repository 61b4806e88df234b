"""SUPER's wire format: ids, recipe, record, cache keys, requests, reports, errors.

Everything that crosses a process boundary is here. It is pure and light: no torch, no sibling package. The
gRPC stubs are here too, and only modules that speak gRPC import them.
"""

from __future__ import annotations

from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.recipe import Recipe

__all__ = ["BatchRef", "Recipe"]
