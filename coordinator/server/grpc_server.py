"""A grpc.aio server on a port or Unix socket. It limits the resources that unknown clients can use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import stat
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from superdl.super_wire import coordinator_pb2_grpc as pb_grpc
from superdl.super_wire.cancelling import HeldTasks
from superdl.super_wire.errors import (
    CacheError,
    ConfigError,
    CoordinatorTrustError,
    ProtocolMismatchError,
    SourceError,
    SuperError,
    UnknownJobError,
)
from superdl.super_wire.protocol import ERROR_METADATA_KEY, socket_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from superdl.coordinator.server.tokens import Tokens
    from superdl.coordinator.server.trust import ServerTls

_log = logging.getLogger(__name__)

_HEALTH_SERVICE = "grpc.health.v1.Health"
_REQUEST_BYTES_MAX = 4 * 2**20
_REPLY_BYTES_MAX = 8 * 2**20
_CALLS_MAX = 10_000
_CALLS_PER_CONNECTION_MAX = 256  # a process has one connection, and a call for each sampler
_CONNECTIONS_MAX = 4096  # idle ones take 190 MB: 45 KB each
_OWN_FILES_MAX = 1024  # for cache nodes, functions, S3, workers' pipes and listings
_HANDSHAKE_TIMEOUT_MS = 20_000
_IDLE_MS = 60_000  # samplers call every two seconds, and others reconnect
_MESSAGE_TIMEOUT_S = 10.0  # as long as SUPER's clients wait for a reply
_HEALTH_REQUEST_BYTES_MAX = 4096
_HEALTH_CALLS_MAX = 100
_PROBE_TIMEOUT_S = 1.0
_ERROR_BYTES_MAX = 2000  # headers must be short

_CODES: tuple[tuple[type[SuperError], grpc.StatusCode], ...] = (
    (CoordinatorTrustError, grpc.StatusCode.UNAUTHENTICATED),
    (ProtocolMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnknownJobError, grpc.StatusCode.NOT_FOUND),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (SourceError, grpc.StatusCode.FAILED_PRECONDITION),
    (CacheError, grpc.StatusCode.FAILED_PRECONDITION),
    (SuperError, grpc.StatusCode.INTERNAL),
)


class Health:
    """The standard health service's ``Check`` method. It accepts any service name."""

    def __init__(self) -> None:
        self.serves = True

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler for a grpc.aio server."""
        # As a stream's handler it reads no message, which could be large or incomplete. There is no Watch,
        # which a client could keep open.
        check = grpc.stream_unary_rpc_method_handler(
            self._check, response_serializer=health_pb2.HealthCheckResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(_HEALTH_SERVICE, {"Check": check})

    async def _check(self, _: Any, __: grpc.aio.ServicerContext[Any, Any]) -> health_pb2.HealthCheckResponse:
        response = health_pb2.HealthCheckResponse
        return response(status=response.SERVING if self.serves else response.NOT_SERVING)


class _Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """Refuses calls without a token or a valid, timely message, and maps errors to status codes."""

    def __init__(
        self, tokens: Tokens | None, timeout_s: float, called: Callable[[str, float], None] | None
    ) -> None:
        self._tokens = tokens
        self._timeout_s = timeout_s
        self._called = called
        self._ending = HeldTasks("port")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        name = str(handler_call_details.method)
        # A probe needs no token: it only learns whether the service is running.
        tokens = None if name == f"/{_HEALTH_SERVICE}/Check" else self._tokens
        metadata = handler_call_details.invocation_metadata
        if tokens is not None and (refusal := tokens.refusal(metadata)):
            # Before a unary handler, grpc.aio waits for the call's message, so strangers could hold calls
            # open or use memory. A stream's handler runs at once, and this one reads nothing.
            return grpc.stream_unary_rpc_method_handler(partial(_refuse, CoordinatorTrustError(refusal)))
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler  # type: ignore[no-any-return]  # the type is correct
        # grpc.aio would wait for the message without a limit, and log a traceback for malformed bytes. So
        # treat the call as a stream of bytes, and read one message.
        return grpc.stream_unary_rpc_method_handler(
            partial(self._handle, handler, name), None, handler.response_serializer
        )

    async def _handle(
        self, handler: Any, name: str, _: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Any:
        # Abort the call, which ends the read: cancelling a read leaves gRPC writing to freed memory.
        limit = asyncio.get_running_loop().call_later(
            self._timeout_s, lambda: self._ending.start(self._abort(context))
        )
        try:
            message = await context.read()
        finally:
            limit.cancel()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # unknown to the stubs
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without its message")
        try:
            request = (handler.request_deserializer or bytes)(message)
        except DecodeError as error:
            about = {"cause": "malformed call"}
            _log.warning("received a malformed message of %d bytes: %s", len(message), error, extra=about)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the call's message is malformed: {error}")
        begun_s = time.perf_counter()
        try:
            return await handler.unary_unary(request, context)
        except SuperError as error:
            await _refuse(error, None, context)
        finally:
            if self._called is not None:
                self._called(name, time.perf_counter() - begun_s)

    async def _abort(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        with contextlib.suppress(grpc.aio.AbortError):  # raised in the handler too
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the call's message did not arrive within {self._timeout_s:g} s",
            )


async def _refuse(error: SuperError, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    # The trailing metadata has the error's class.
    message = str(error).encode(errors="replace")[:_ERROR_BYTES_MAX].decode(errors="ignore")
    await context.abort(code, message, ((ERROR_METADATA_KEY, type(error).__name__),))


async def listen(
    address: str,
    service: pb_grpc.CoordinatorServicer,
    *,
    tls: ServerTls | None = None,
    tokens: Tokens | None = None,
    called: Callable[[str, float], None] | None = None,
    health: Health | None = None,
) -> grpc.aio.Server:
    """Start a server on ``host:port`` or ``unix:/path``.

    Clients need one of the ``tokens`` if they are given. ``called`` receives the method and the duration in
    seconds of each call. Raises ``ConfigError`` if the address is in use or unusable.
    """
    server = grpc.aio.server(
        options=_options(
            _REQUEST_BYTES_MAX,
            connections_that_fit(_CONNECTIONS_MAX),
            ("grpc.max_send_message_length", _REPLY_BYTES_MAX),
            ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION_MAX),
        ),
        interceptors=[_Guard(tokens, _MESSAGE_TIMEOUT_S, called)],
        maximum_concurrent_rpcs=_CALLS_MAX,
    )
    pb_grpc.add_CoordinatorServicer_to_server(service, server)
    server.add_generic_rpc_handlers(((health or Health()).handler(),))
    _add_port(server, address, tls)
    await server.start()
    return server


async def listen_for_health(address: str, health: Health) -> grpc.aio.Server:
    """Start a server for health checks only, without TLS or tokens. Raises the errors of :func:`listen`."""
    server = grpc.aio.server(
        options=_options(_HEALTH_REQUEST_BYTES_MAX, _HEALTH_CALLS_MAX),
        maximum_concurrent_rpcs=_HEALTH_CALLS_MAX,
    )
    server.add_generic_rpc_handlers((health.handler(),))
    _add_port(server, address, None)
    await server.start()
    return server


def _options(request_bytes: int, connections: int, *more: tuple[str, int]) -> Sequence[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", request_bytes),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.so_reuseport", 0),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
        *more,
    ]


def raise_limit_of_open_files() -> None:
    """Raise the open file limit to its maximum. The usual 1024 is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_that_fit(most: int) -> int:
    """Return the number of connections that the open file limit allows, at most ``most``."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return most
    # Reserve half of them, or 1024, for other uses.
    return max(1, min(most, limit - min(limit // 2, _OWN_FILES_MAX)))


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
        raise ConfigError(f"cannot listen on {address}: {error}. Check whether it is in use") from error


def _clear(path: Path) -> None:
    """Remove a socket that a killed process left. Raises ``FileExistsError`` if the path is anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError("the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise FileExistsError("another process is listening there")
