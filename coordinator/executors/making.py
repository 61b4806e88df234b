"""Makes the executor that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.executors.base import Executor
    from coordinator.settings import Settings

__all__ = ["make_executor"]

_READ_MARGIN_S = 30.0  # the engine gives up a function's answer earlier than its connection does


def make_executor(settings: Settings) -> Executor:
    """An executor, not started yet.

    Raises:
        ConfigError: a setting of it is wrong.
    """
    if settings.executor == "lambda":
        from coordinator.executors.aws_lambda import LambdaExecutor

        return LambdaExecutor(
            settings.lambda_function,
            cache=settings.cache,
            region=settings.lambda_region,
            endpoint_url=settings.lambda_endpoint_url,
            invocation=settings.lambda_invocation,
            concurrency=settings.lambda_concurrency,
            warm=settings.lambda_warm,
            read_timeout_s=settings.request_timeout_s + _READ_MARGIN_S,
        )
    from coordinator.executors.local import LocalExecutor

    # Its processes are of this side, so what is allowed here is allowed there.
    environment = {"SUPER_INSECURE": "1"} if settings.insecure else None
    return LocalExecutor(workers=settings.workers, function=settings.function, environment=environment)
