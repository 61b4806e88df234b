"""Opening the door: a grpc.aio server on a port or a unix socket, with
:mod:`superdl.coordinator.server.health`.

What is answered there is :mod:`superdl.coordinator.server.service`'s, who is let in
:mod:`superdl.coordinator.server.tls`'s and :mod:`superdl.coordinator.server.tokens`'s. A second door may tell
of health alone.
"""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from superdl.coordinator.server.health import Health
from superdl.coordinator.server.message_deadline import MessageDeadline
from superdl.coordinator.server.open_files import connections_that_fit
from superdl.coordinator.server.tokens import TokenInterceptor
from superdl.coordinator.server.trust import socket_path
from superdl.super_wire import coordinator_pb2_grpc as pb_grpc
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.coordinator.server.service import CoordinatorService
    from superdl.coordinator.server.tls import ServerTls
    from superdl.coordinator.server.tokens import Tokens

__all__ = ["listen", "listen_for_health"]

_REQUEST_BYTES_MAX = 4 * 2**20
_REPLY_BYTES_MAX = 8 * 2**20
_CALLS_MAX = 10_000
_CALLS_PER_CONNECTION_MAX = 256  # a process has one connection, and a call for each of its samplers
_CONNECTIONS_MAX = 4096  # silent ones were measured at 45 KB each: 190 MB
_HANDSHAKE_TIMEOUT_MS = 20_000  # who says nothing keeps no connection
_IDLE_MS = 60_000  # without a call; a sampler has one each two seconds, and others connect anew unawares
_MESSAGE_TIMEOUT_S = 10.0  # as long as our clients wait for an answer
_HEALTH_REQUEST_BYTES_MAX = 4096
_HEALTH_CALLS_MAX = 100
_PROBE_TIMEOUT_S = 1.0


async def listen(
    address: str, service: CoordinatorService, *, tls: ServerTls | None = None, tokens: Tokens | None = None
) -> tuple[grpc.aio.Server, Health]:
    """Serve on ``address`` from now on, and say so to whoever asks for health.

    Args:
        address: ``host:port`` or ``unix:/path``.
        service: what answers.
        tls: what the port is encrypted with, if it is.
        tokens: of which a caller must know one, if any.

    Raises:
        ConfigError: the address is taken or cannot be listened on.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", _REQUEST_BYTES_MAX),
            ("grpc.max_send_message_length", _REPLY_BYTES_MAX),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION_MAX),
            ("grpc.max_allowed_incoming_connections", connections_that_fit(_CONNECTIONS_MAX)),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
        ],
        interceptors=[
            *([TokenInterceptor(tokens)] if tokens is not None else []),
            MessageDeadline(_MESSAGE_TIMEOUT_S),
        ],
        maximum_concurrent_rpcs=_CALLS_MAX,
    )
    health = Health()
    pb_grpc.add_CoordinatorServicer_to_server(service, server)
    server.add_generic_rpc_handlers((health.handler(),))
    _add_port(server, address, tls)
    await server.start()
    return server, health


async def listen_for_health(address: str, health: Health) -> grpc.aio.Server:
    """Tell ``health``, and nothing else, on an address of this machine, in plain text and without a token.

    Raises:
        ConfigError: the address is taken or cannot be listened on.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", _HEALTH_REQUEST_BYTES_MAX),
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", _HEALTH_CALLS_MAX),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
        ],
        maximum_concurrent_rpcs=_HEALTH_CALLS_MAX,
    )
    server.add_generic_rpc_handlers((health.handler(),))
    _add_port(server, address, None)
    await server.start()
    return server


def _add_port(server: grpc.aio.Server, address: str, tls: ServerTls | None) -> None:
    path = socket_path(address)
    try:
        if path is not None:
            _clear(Path(path))
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, tls.credentials())
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"cannot listen on {address}: {error}; is something else listening there?"
        ) from error


def _clear(path: Path) -> None:
    """Remove the socket that a killed predecessor left, and nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError("there is a file of that name, which is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise FileExistsError("somebody answers there")
