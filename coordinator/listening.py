"""Opening the door: a grpc.aio server on a loopback port or a unix socket, with the standard health service.

What is answered there is :mod:`coordinator.service`'s.
"""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer  # health.aio is the same, and unknown to the type stubs

from coordinator.addresses import socket_path
from super_wire import coordinator_pb2_grpc as pb_grpc
from super_wire.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.service import CoordinatorService

__all__ = ["SERVICE", "listen"]

SERVICE = "super.v1.Coordinator"
"""The name under which the health service speaks of the coordinator; the empty name says the same."""

_REQUEST_BYTES_MAX = 4 * 2**20
_REPLY_BYTES_MAX = 8 * 2**20
_CALLS_MAX = 10_000
_PROBE_TIMEOUT_S = 1.0


async def listen(address: str, service: CoordinatorService) -> tuple[grpc.aio.Server, HealthServicer]:
    """Serve on ``address`` from now on, and say so to whoever asks for health.

    Raises:
        ConfigError: the address is taken or cannot be listened on.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", _REQUEST_BYTES_MAX),
            ("grpc.max_send_message_length", _REPLY_BYTES_MAX),
            ("grpc.so_reuseport", 0),
        ],
        maximum_concurrent_rpcs=_CALLS_MAX,
    )
    health = HealthServicer()
    pb_grpc.add_CoordinatorServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    path = socket_path(address)
    try:
        if path is not None:
            _clear(Path(path))
        server.add_insecure_port(address)
    except (RuntimeError, OSError) as error:
        msg = f"cannot listen on {address}: {error}; is something else listening there?"
        raise ConfigError(msg) from error
    for name in ("", SERVICE):
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    return server, health


def _clear(path: Path) -> None:
    """Remove the socket that a killed predecessor left, and nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        msg = "there is a file of that name, which is no socket"
        raise FileExistsError(msg)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    msg = "somebody answers there"
    raise FileExistsError(msg)
