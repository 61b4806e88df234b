"""Ways to run functions. :mod:`superdl.super_wire.executors` lists them; each has a module here.

To add one, write its module, its row in that registry and, if it has settings, its line in
:mod:`superdl.coordinator.server.settings`. The core decides which samples to request and when, and handles
failures. No executor imports the function: text names it, as ``module:attribute``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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
    failure_kind,
)
from superdl.super_wire.executors import EXECUTORS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ConnectionLostError",
    "Executor",
    "ExecutorContext",
    "ExecutorError",
    "FunctionCrashedError",
    "FunctionLostError",
    "FunctionRaisedError",
    "FunctionTimedOutError",
    "PayloadTooLargeError",
    "Scaling",
    "ThrottledError",
    "executor_class",
    "executor_classes",
    "failure_kind",
]


def executor_class(name: str) -> type[Executor]:
    """Return the class of the executor that settings call ``name``."""
    module, _, attribute = EXECUTORS[name].implementation.partition(":")
    implementation: type[Executor] = getattr(importlib.import_module(module), attribute)
    return implementation


def executor_classes(names: Iterable[str]) -> list[type[Executor]]:
    """Return the classes of several executors, in their order."""
    return [executor_class(name) for name in names]
