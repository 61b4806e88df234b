"""Opens what a run trains on: its images, its loaders, and the functions that they start.

What a run starts itself, the embedded default and the workers of plain loaders, reads the run's variables. So
the run tells them by variables what its spec says of functions. What the embedded default then needs, and
says where it is missing, is :mod:`superdl.sampler.embedded.supervisor_settings`'s.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from superdl.experiments.data import prepare_data
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.steps import split_custom_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.experiments.data import PreparedData, Source
    from superdl.experiments.loaders import Loader
    from superdl.experiments.spec import RecipeSpec, Spec
    from superdl.experiments.training.ranks import Ranks

__all__ = ["embedded_executor", "executor_of", "images_of", "opened_loader", "shipped_steps_allowed"]

_EXECUTOR = "SUPER_EXECUTOR"
_STEP_MODULES = "SUPER_STEP_MODULES"
_SHIPPED = "experiments.augmentations."


def images_of(spec: Spec, ranks: Ranks, tell: Callable[[str], None]) -> PreparedData:
    """Find the images of a run, or draw them: one rank of each host, which the others wait for."""
    with ranks.one_of_each_host_first():
        return prepare_data(spec.data, tell)


def opened_loader(
    spec: Spec,
    source: Source,
    ranks: Ranks,
    tell: Callable[[str], None],
    *,
    training: bool,
    pin_memory: bool = False,
) -> Loader:
    """Open one split with the loader that the spec names."""
    request = LoaderRequest(
        source=source,
        recipe=spec.recipe,
        loader=spec.loader,
        training=training,
        seed=spec.seed,
        pin_memory=pin_memory,
        rank=ranks.process.rank,
        replicas=ranks.process.replicas,
        tell=tell,
    )
    with embedded_executor(spec):
        return open_loader(spec.loader.kind, request)


def executor_of(spec: Spec) -> str | None:
    """What runs the functions of a run, in a word or two; ``None`` where there are none.

    Raises:
        ConfigError: the spec names an executor, and the environment a coordinator, whose affair it is.
    """
    if not spec.loader.runs_functions:
        return None
    coordinator = spec.loader.coordinator or os.environ.get("SUPER_COORDINATOR")
    if not coordinator:
        return os.environ.get(_EXECUTOR) or "local" if spec.executor == "auto" else spec.executor
    if spec.executor != "auto":
        raise ConfigError(
            f"executor={spec.executor}, but SUPER_COORDINATOR names a coordinator, and how functions run is "
            "its own setting (superdl coordinator --executor): leave one of the two out"
        )
    return f"as the coordinator at {coordinator} decides"


@contextlib.contextmanager
def embedded_executor(spec: Spec) -> Iterator[None]:
    """Have the embedded default, if it is started within, run functions as the spec says."""
    with _variable(_EXECUTOR, None if spec.executor == "auto" else spec.executor):
        yield


@contextlib.contextmanager
def shipped_steps_allowed(recipe: RecipeSpec) -> Iterator[None]:
    """Have what is started within import the steps of `experiments.augmentations` that ``recipe`` names.

    A function imports a step's module only if its own setting lists it. Of what a run starts, the run is the
    operator. Functions that somebody else runs have an operator of their own, who lists what they may import.

    Raises:
        RecipeError: a custom step is not named ``module:function@version``.
    """
    names = [str(step.get("name")) for step in recipe.steps or () if step.get("op") == "custom"]
    modules = {split_custom_name(name)[0] for name in names}
    shipped = sorted(module for module in modules if module.startswith(_SHIPPED))
    listed = [os.environ.get(_STEP_MODULES), *shipped]
    with _variable(_STEP_MODULES, ",".join(filter(None, listed)) if shipped else None):
        yield


@contextlib.contextmanager
def _variable(name: str, value: str | None) -> Iterator[None]:
    """Set a variable of the environment for what is within; None leaves it as it is."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
