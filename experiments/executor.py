"""How a run's functions are run: the spec's word for it, told to the embedded default as users tell it.

What the embedded default then needs, and says where it is missing, is
:mod:`superdl.sampler.embedded.executor_choice`'s.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.experiments.spec import Spec

__all__ = ["embedded_executor", "executor_of"]

_VARIABLE = "SUPER_EXECUTOR"


def executor_of(spec: Spec) -> str | None:
    """Who runs the functions of a run, in a word or two; ``None`` where there are none.

    Raises:
        ConfigError: the spec names an executor, and the environment a coordinator, whose affair it is.
    """
    if not spec.loader.runs_functions:
        return None
    coordinator = spec.loader.coordinator or os.environ.get("SUPER_COORDINATOR")
    if not coordinator:
        return os.environ.get(_VARIABLE) or "local" if spec.executor == "auto" else spec.executor
    if spec.executor != "auto":
        raise ConfigError(
            f"executor={spec.executor}, but SUPER_COORDINATOR names a coordinator, and how functions run is "
            "its own setting (superdl coordinator --executor): leave one of the two out"
        )
    return f"as the coordinator at {coordinator} decides"


@contextlib.contextmanager
def embedded_executor(spec: Spec) -> Iterator[None]:
    """Have the embedded default, if it is started within, run functions as the spec says."""
    before = os.environ.get(_VARIABLE)
    if spec.executor != "auto":
        os.environ[_VARIABLE] = spec.executor
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before
