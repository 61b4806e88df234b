"""Random augmentations, written as custom steps, for measuring where their CPU time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.super_wire.recipe_steps import split_custom_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# These modules import only NumPy, Pillow and lambda_prefetch, because a function has nothing else.
# Processes that a run starts may import them; others need SUPER_STEP_MODULES.
__all__ = ["shipped_modules"]


def shipped_modules(steps: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """Return the names of this package's modules that a recipe's custom steps use, sorted."""
    names = [str(step.get("name")) for step in steps or () if step.get("op") == "custom"]
    modules = {split_custom_name(name)[0] for name in names}
    return sorted(module for module in modules if module.startswith("experiments.augmentations."))
