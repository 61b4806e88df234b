"""Custom steps that come with the experiments, allowed to what a run starts itself.

A function imports a step's module only if its own setting ``SUPER_STEP_MODULES`` lists it. What a run starts,
the embedded default's functions and the workers of plain loaders, has the run's variables: so the run is
their operator, and adds to that list what its recipe names of `experiments.augmentations`, and nothing else.
Functions that somebody else runs are told by their own operator.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from superdl.super_wire.steps import split_custom_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.experiments.spec import RecipeSpec

__all__ = ["shipped_steps_allowed"]

_VARIABLE = "SUPER_STEP_MODULES"
_SHIPPED = "experiments.augmentations."


@contextlib.contextmanager
def shipped_steps_allowed(recipe: RecipeSpec) -> Iterator[None]:
    """Have what is started within import the steps of `experiments.augmentations` that ``recipe`` names.

    Raises:
        RecipeError: a custom step is not named ``module:function@version``.
    """
    before = os.environ.get(_VARIABLE)
    names = [str(step.get("name")) for step in recipe.steps or () if step.get("op") == "custom"]
    modules = {split_custom_name(name)[0] for name in names}
    shipped = sorted(module for module in modules if module.startswith(_SHIPPED))
    if shipped:
        os.environ[_VARIABLE] = ",".join(filter(None, [before, *shipped]))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before
