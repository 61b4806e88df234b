"""SUPER's wire format: everything that crosses a process boundary. Never imports torch or siblings."""

from __future__ import annotations

from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.recipe import Recipe

__all__ = ["BatchRef", "Recipe"]
