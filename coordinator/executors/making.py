"""Makes the executor that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.executors.base import Executor
    from coordinator.settings import Settings

__all__ = ["make_executor"]


def make_executor(settings: Settings) -> Executor:
    """An executor, not started yet.

    Raises:
        ConfigError: a setting of it is wrong.
    """
    from coordinator.executors.local import LocalExecutor

    return LocalExecutor(workers=settings.workers, function=settings.function)
