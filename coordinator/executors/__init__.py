"""Executors, which run functions. Each one in :mod:`superdl.super_wire.executors` has a module here.

The function is given as ``module:attribute``. No executor imports it.
"""

from __future__ import annotations

from superdl.coordinator.executors.base import ExecutorError, executor_class

__all__ = ["ExecutorError", "executor_class"]
