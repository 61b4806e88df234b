"""Ways to run functions. :mod:`superdl.super_wire.executors` lists them; each has a module here.

Text names the function (``module:attribute``): no executor imports it.
"""

from __future__ import annotations

from superdl.coordinator.executors.base import ExecutorError, executor_class, executor_classes

__all__ = ["ExecutorError", "executor_class", "executor_classes"]
