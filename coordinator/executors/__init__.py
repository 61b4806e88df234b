"""Ways to run functions. :mod:`superdl.super_wire.executors` lists them; each has a module here.

The function is given as text (``module:attribute``), so no executor imports it.
"""

from __future__ import annotations

from superdl.coordinator.executors.base import ExecutorError, executor_class, executor_classes

__all__ = ["ExecutorError", "executor_class", "executor_classes"]
