"""Ways to run functions. :mod:`superdl.super_wire.executors` lists them; each has a module here.

To add one, write its module, its row in that registry and, if it has settings, its line in
:mod:`superdl.coordinator.server.settings`. The core decides which samples to request and when, and handles
failures. No executor imports the function: text names it, as ``module:attribute``.
"""

from __future__ import annotations

from superdl.coordinator.executors.base import ExecutorError, executor_class, executor_classes

__all__ = ["ExecutorError", "executor_class", "executor_classes"]
