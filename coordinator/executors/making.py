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

    # Its processes are of this side, so what is allowed here is allowed there.
    environment = {"SUPER_INSECURE": "1"} if settings.insecure else None
    return LocalExecutor(workers=settings.workers, function=settings.function, environment=environment)
