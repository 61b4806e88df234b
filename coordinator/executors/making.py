"""Makes the executors that the settings name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superdl.coordinator.cache.outcomes import OutcomeReader
    from superdl.coordinator.executors.base import Executor
    from superdl.coordinator.server.settings import Settings

__all__ = ["make_executor"]

_READ_MARGIN_S = 30.0  # the engine gives up a function's answer earlier than its connection does


def make_executor(name: str, settings: Settings, outcomes: OutcomeReader | None = None) -> Executor:
    """An executor, not started yet.

    Args:
        name: which one.
        settings: its own.
        outcomes: brings what functions answer through the cache; for ``lambda_invocation`` Event.

    Raises:
        ConfigError: a setting of it is wrong.
    """
    if name == "lambda":
        return _lambda_executor(settings, outcomes)
    if name == "ray":
        return _ray_executor(settings)
    from superdl.coordinator.executors.local import LocalExecutor
    from superdl.coordinator.server.trust import allowed_to_listings

    # Its processes are of this side, so what is allowed here is allowed there.
    environment = {"SUPER_INSECURE": "1"} if settings.insecure else {}
    roots = allowed_to_listings(settings).link_roots
    environment |= {"SUPER_FILE_ROOTS": os.pathsep.join(roots)} if roots else {}
    return LocalExecutor(workers=settings.workers, function=settings.function, environment=environment)


def _lambda_executor(settings: Settings, outcomes: OutcomeReader | None) -> Executor:
    from superdl.coordinator.executors.aws_lambda import LambdaExecutor
    from superdl.coordinator.executors.lambda_events import LambdaEventExecutor

    options: dict[str, Any] = {
        "cache": settings.cache,
        "region": settings.lambda_region,
        "endpoint_url": settings.lambda_endpoint_url,
        "concurrency": settings.lambda_concurrency,
        "warm": settings.lambda_warm,
        "read_timeout_s": settings.request_timeout_s + _READ_MARGIN_S,
    }
    if outcomes is None:
        return LambdaExecutor(settings.lambda_function, **options)
    return LambdaEventExecutor(settings.lambda_function, outcomes=outcomes, **options)


def _ray_executor(settings: Settings) -> Executor:
    from superdl.coordinator.executors.ray_executor import RayExecutor

    return RayExecutor(
        cache=settings.cache,
        address=settings.ray_address,
        nodes=settings.ray_nodes,
        cpus=settings.ray_cpus_per_function,
        function=settings.function,
        shared_files=settings.ray_shared_files,
    )
