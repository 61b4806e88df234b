"""The standard health service's Check: whether this coordinator serves, said to anybody.

The answer does not depend on the message, so none is read: who sends its beginning alone, or a large one,
holds nothing. There is no Watch, which stays open for as long as somebody likes.
"""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2

__all__ = ["CHECK", "Health"]

_SERVICE = "grpc.health.v1.Health"

CHECK = f"/{_SERVICE}/Check"
"""The method's path."""


class Health:
    """What is said, of whichever service a probe names: there is one."""

    def __init__(self) -> None:
        self._serving = True

    def end(self) -> None:
        """Say from now on that it does not serve."""
        self._serving = False

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """For a grpc.aio server."""
        check = grpc.stream_unary_rpc_method_handler(
            self._check, response_serializer=health_pb2.HealthCheckResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(_SERVICE, {"Check": check})

    async def _check(self, _: Any, __: grpc.aio.ServicerContext[Any, Any]) -> health_pb2.HealthCheckResponse:
        said = health_pb2.HealthCheckResponse
        return said(status=said.SERVING if self._serving else said.NOT_SERVING)
