"""Executors, which run functions. :mod:`superdl.super_wire.executors` lists them; each has a module here.

No executor imports the function, which is given as ``module:attribute``.
"""

from __future__ import annotations

from superdl.coordinator.executors.base import ExecutorError, executor_class

__all__ = ["ExecutorError", "executor_class"]
