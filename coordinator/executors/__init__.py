"""Executors: how functions run. :mod:`superdl.super_wire.executors` lists them; each has a module here.

To add one, write its module, its row in that registry and, if it has settings, its line in
:mod:`superdl.coordinator.server.settings`. Which samples are asked for, when, and what follows from a failure
is the core's. No executor imports the function: it is named by text, ``module:attribute``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import (
    ConnectionLostError,
    Executor,
    ExecutorContext,
    ExecutorError,
    FunctionCrashedError,
    FunctionLostError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
    Scaling,
    ThrottledError,
)
from superdl.super_wire.executors import EXECUTORS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.coordinator.executors.local import LocalExecutor

__all__ = [
    "ConnectionLostError",
    "Executor",
    "ExecutorContext",
    "ExecutorError",
    "FunctionCrashedError",
    "FunctionLostError",
    "FunctionRaisedError",
    "FunctionTimedOutError",
    "LocalExecutor",
    "PayloadTooLargeError",
    "Scaling",
    "ThrottledError",
    "executor_class",
    "executor_classes",
]


def executor_class(name: str) -> type[Executor]:
    """The class of the executor that settings call ``name``."""
    module, _, attribute = EXECUTORS[name].implementation.partition(":")
    found: type[Executor] = getattr(importlib.import_module(module), attribute)
    return found


def executor_classes(names: Iterable[str]) -> list[type[Executor]]:
    """The classes of several executors, in their order."""
    return [executor_class(name) for name in names]


def __getattr__(name: str) -> Any:
    # Worker processes import this package too, and shall not pay for asyncio.
    if name == "LocalExecutor":
        return executor_class("local")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
