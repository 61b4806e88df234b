"""Random augmentation as custom steps of recipes, for studies of where its CPU time is spent.

One module has one step; it imports NumPy, Pillow and the function's own package, as a function has no more. A
run allows them to what it starts itself; others import them only if ``SUPER_STEP_MODULES`` names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.super_wire.recipe_steps import split_custom_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["shipped_modules"]


def shipped_modules(steps: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """The modules of this package that a recipe's custom steps name, sorted.

    Raises:
        RecipeError: a custom step is not named ``module:function@version``.
    """
    names = [str(step.get("name")) for step in steps or () if step.get("op") == "custom"]
    modules = {split_custom_name(name)[0] for name in names}
    return sorted(module for module in modules if module.startswith("experiments.augmentations."))
