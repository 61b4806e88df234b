"""SUPER's wire format: everything that crosses a process boundary. It imports neither torch nor siblings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.recipe import Recipe

__all__ = ["BatchRef", "Recipe"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'superdl.super_wire' has no attribute {name!r}")
    # Import on first use: processes that only start others do not need numpy.
    from superdl.super_wire import batch_ref, recipe

    return {"BatchRef": batch_ref.BatchRef, "Recipe": recipe.Recipe}[name]
