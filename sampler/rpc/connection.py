"""One connection per process to each coordinator, closed around forks."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from superdl.sampler.rpc.forking import GrpcThreads
from superdl.super_wire.credentials import CoordinatorCredentials, is_loopback
from superdl.super_wire.display import without_credentials
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import ERROR_METADATA_KEY, TOKEN_METADATA_KEY, host_and_port, socket_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    import grpc

_LOG = logging.getLogger(__name__)

# Replies stay below 1 MiB unless one batch alone is larger.
MAX_MESSAGE_BYTES = 8 * 2**20

_PARK_WAIT_S = 5.0  # a cancelled call returns within milliseconds
_SHUTDOWN_WAIT_S = 1.0
_SHUTDOWN_WAIT_AGAIN_S = 0.05
_PARKED_WAIT_S = 60.0  # a fork of a large process takes far less


class CallCutError(Exception):
    """The channel was closed during the call, by a fork or the last holder. Retry the call."""


class CallFailedError(Exception):
    """A call failed, as reported by grpc. ``error_name`` is the coordinator's error class, if any."""

    def __init__(self, code: str, details: str, error_name: str) -> None:
        # Keep no grpc objects, which would keep the channel alive.
        super().__init__(f"{code}: {details}")
        self.code, self.details, self.error_name = code, details, error_name


class Connection:
    """A channel to one address, open while it is held or in use. Thread-safe."""

    def __init__(self, address: str, credentials: CoordinatorCredentials, threads: GrpcThreads) -> None:
        self.address = address
        self._credentials = credentials
        self._host = host_and_port(address)[0]
        self._token = ""
        self._threads = threads
        self._state = threading.Condition()
        self._channel: grpc.Channel | None = None
        self._stub: Any = None
        self._era = 0  # number of channels closed so far
        self._calls = 0
        self._holders = 0
        self._warned = False
        self._forks = 0  # threads about to fork

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the channel open between calls, until the last holder leaves."""
        with self._state:
            self._holders += 1
        try:
            yield
        finally:
            with self._state:
                self._holders -= 1
                self._close_if_idle()

    def call(self, method: str, request: Any, timeout_s: float) -> Any:
        """Make a unary call. Raises :class:`CallFailedError` or :class:`CallCutError`."""
        with self._state:
            if not self._state.wait_for(lambda: not self._forks, timeout=_PARKED_WAIT_S):
                raise CallCutError
            metadata = self._metadata()
            stub = self._open()
            self._calls += 1
            era = self._era
        try:
            answer, failure = _invoke(stub, method, request, timeout_s, metadata)
        finally:
            stub = None  # drop grpc objects before a fork continues
            with self._state:
                self._calls -= 1
                self._close_if_idle()
                self._state.notify_all()
                cut = era != self._era
        if failure is None:
            return answer
        raise CallCutError if cut and failure.code == "CANCELLED" else failure

    def cut(self) -> None:
        """Close the channel. Pending calls raise :class:`CallCutError`, and the next call reopens it."""
        with self._state:
            self._close()

    def _open(self) -> Any:
        if self._stub is None:
            import grpc

            from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub

            if self._credentials.encrypts(self._host):
                credentials = grpc.ssl_channel_credentials(*self._credentials.for_grpc())
                named = self._credentials.name
                options = (("grpc.ssl_target_name_override", named),) if named else ()
                self._threads.expect()
                self._channel = grpc.secure_channel(
                    self.address, credentials, options=(*_CHANNEL_OPTIONS, *options)
                )
            else:
                self._warn_if_insecure()
                self._threads.expect()
                self._channel = grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
            self._stub = CoordinatorStub(self._channel)
        return self._stub

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the token as metadata. It is reloaded if its file changed, and kept if reloading fails."""
        try:
            self._token = self._credentials.current_token()
        except ConfigError as error:
            if not self._token:
                raise
            _LOG.warning("keeping the previous token: %s", error)
        return ((TOKEN_METADATA_KEY, f"Bearer {self._token}"),) if self._token else ()

    def _warn_if_insecure(self) -> None:
        if self._host and not is_loopback(self._host) and not self._warned:
            self._warned = True
            _LOG.warning(
                "INSECURE: traffic to the coordinator at %s is not encrypted%s, as SUPER_INSECURE=1 allows",
                self.address,
                ", including its token" if self._credentials.current_token() else "",
            )

    def _close(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            self._era += 1
            channel.close()  # pending calls are cancelled at once

    def _close_if_idle(self) -> None:
        if not self._holders and not self._calls:
            self._close()

    def park(self) -> None:
        """Block new calls, close the channel, and wait up to 5 s until no thread is inside grpc."""
        with self._state:
            self._forks += 1
            self._close()
            if not self._state.wait_for(lambda: not self._calls, timeout=_PARK_WAIT_S):
                _LOG.warning("a call to %s did not end within %g s before a fork", self.address, _PARK_WAIT_S)

    def unpark(self) -> None:
        """Allow calls again. The next one opens a channel."""
        with self._state:
            self._forks -= 1
            self._state.notify_all()


def _invoke(
    stub: Any, method: str, request: Any, timeout_s: float, metadata: tuple[tuple[str, str], ...]
) -> tuple[Any, CallFailedError | None]:
    """Make a call and return its answer or its failure. Neither refers to grpc objects."""
    import grpc

    try:
        answer = getattr(stub, method)(request, timeout=timeout_s, metadata=metadata)
        if answer is None:  # an OK whose message was lost in transit
            return None, CallFailedError("INTERNAL", "the answer arrived without its message", "")
        return answer, None
    except grpc.RpcError as error:
        trailing: Any = error.trailing_metadata() or ()  # pairs
        name = next((value for key, value in trailing if key == ERROR_METADATA_KEY), "")
        return None, CallFailedError(error.code().name, error.details() or "no details", name)
    except ValueError as error:  # "Cannot invoke RPC on closed channel!", "... Channel closed!"
        if "closed" not in str(error):
            raise
        return None, CallFailedError("CANCELLED", str(error), "")


_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # the client retries by itself
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # also limits each attempt to connect
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Detect a peer that vanished silently, even between calls. Servers allow a ping every five minutes.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class _Connections:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = GrpcThreads()
        self._known: dict[tuple[str, CoordinatorCredentials], Connection] = {}
        self._inherited: list[Connection] = []
        self._shutdown_wait_s = _SHUTDOWN_WAIT_S
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._in_parent, after_in_child=self._in_child
        )

    def to(self, address: str, credentials: CoordinatorCredentials) -> Connection:
        with self._lock:
            connection = Connection(address, credentials, self._threads)
            return self._known.setdefault((address, credentials), connection)

    def _before_fork(self) -> None:
        """Close all channels and wait until grpc has shut down, which takes about ten milliseconds."""
        self._lock.acquire()
        for connection in self._known.values():
            connection.park()
        # Forking too early is worse than forking with an open channel, because grpc's own fork handlers
        # would deadlock with its threads (grpcio 1.85).
        if self._known:
            gone = self._threads.wait_until_gone(self._shutdown_wait_s)
            # If threads remain, other code in this process uses grpc too, so wait less next time.
            self._shutdown_wait_s = _SHUTDOWN_WAIT_S if gone else _SHUTDOWN_WAIT_AGAIN_S

    def _in_parent(self) -> None:
        for connection in self._known.values():
            connection.unpark()
        self._lock.release()

    def _in_child(self) -> None:
        # Keep the parent's objects, so that no grpc destructor runs here.
        self._inherited += self._known.values()
        self._known = {}
        self._threads = GrpcThreads()
        self._lock = threading.Lock()


_CONNECTIONS = _Connections()


_PLAIN = CoordinatorCredentials()


def connection_to(address: str, credentials: CoordinatorCredentials = _PLAIN) -> Connection:
    """Return this process's connection to ``address``, opened on first use."""
    return _CONNECTIONS.to(address, credentials)


def checked_address(address: object, origin: str) -> str:
    """Return an address in gRPC's form, ``unix:/path`` or ``host:port``. Errors name its ``origin``."""
    if not isinstance(address, str):
        raise ConfigError(f"{origin} must be a string such as 'host:50051', not {address!r}")
    shown = repr(without_credentials(address))
    path = socket_path(address)  # also of unix:///path
    if path is not None:
        if not path.startswith("/") or path.startswith("//") or path == "/":
            raise ConfigError(
                f"{origin} must be an absolute socket path, such as unix:/path/to.sock, not {shown}"
            )
        return f"unix:{path}"
    if not host_and_port(address)[1]:
        raise ConfigError(f"{origin} must be 'host:port' or 'unix:/path/to.sock', not {shown}")
    return address
