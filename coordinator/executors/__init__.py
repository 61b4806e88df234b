"""Executors: how functions run. The seam is :class:`Executor`; each way to run functions has its own module.

Which samples are asked for, when, and what follows from a failure is the coordinator's. No executor imports
the function: it is named by text, ``module:attribute``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import (
    ConnectionLostError,
    Executor,
    ExecutorError,
    FunctionCrashedError,
    FunctionLostError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
    Scaling,
    ThrottledError,
)

if TYPE_CHECKING:
    from superdl.coordinator.executors.local import LocalExecutor

__all__ = [
    "ConnectionLostError",
    "Executor",
    "ExecutorError",
    "FunctionCrashedError",
    "FunctionLostError",
    "FunctionRaisedError",
    "FunctionTimedOutError",
    "LocalExecutor",
    "PayloadTooLargeError",
    "Scaling",
    "ThrottledError",
]


def __getattr__(name: str) -> Any:
    # Worker processes import this package too, and shall not pay for asyncio.
    if name == "LocalExecutor":
        from superdl.coordinator.executors.local import LocalExecutor

        return LocalExecutor
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
