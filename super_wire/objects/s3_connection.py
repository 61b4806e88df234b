"""Requests to an S3 bucket: GETs over lean persistent connections, and others through urllib3."""

from __future__ import annotations

import re
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from superdl.super_wire.objects.base import ATTEMPTS, Fault, ObjectError, check_range, check_version
from superdl.super_wire.objects.s3_account import NO_BODY, Signer, object_path, request_bytes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    import urllib3

    from superdl.super_wire.objects.base import Span
    from superdl.super_wire.objects.s3_account import Endpoint


_MIN_BYTES_PER_S = 256 * 1024  # abandon a body whose average rate is lower
_FIRST_RECEIVE_BYTES = 16 * 1024  # holds the headers, and a small object completely
_MAX_HEAD_BYTES = 64 * 1024
_END_OF_HEAD = b"\r\n\r\n"
# After any other response, the connection is closed.
_ORDINARY, _PARTIAL = b"HTTP/1.1 200 ", b"HTTP/1.1 206 "
# Field names may have any case. The value ends with its line.
_FIELD = re.compile(
    rb"\r\n(content-length|content-range|etag|transfer-encoding|connection):[ \t]*([^\r\n]*)",
    re.IGNORECASE,
)


class Patience(NamedTuple):
    """Timeouts in seconds, and the number of attempts for each request."""

    connect_s: float = 8.0  # for all addresses of a server together
    address_s: float = 2.0  # the minimum for each address, while time is left
    silence_s: float = 20.0  # for each receive
    attempts: int = ATTEMPTS
    pause_s: float = 0.2  # before the second attempt; doubles with each further one


class UnreachableError(OSError):
    """No address of the server accepted a connection in time."""


class UnusualResponseError(Exception):
    """The response is not an object with a known size. A retry through urllib3 reveals the reason."""


@dataclass(slots=True)
class Head:
    """The headers of an ordinary response. ``begun`` is the part of the body received with them."""

    size_bytes: int
    etag: str
    keeps_alive: bool
    begun: bytes
    content_range: str


class S3Connection:
    """A connected socket, used by one thread at a time.

    Raises ``OSError`` on failure, and ``UnusualResponseError`` for a response that urllib3 has to read.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        patience: Patience = Patience(),  # noqa: B008  # frozen
    ) -> None:
        self.used = False
        self._silence_s = patience.silence_s
        connected = _connect(host, port, patience)
        try:
            connected.settimeout(patience.connect_s)  # applies to the TLS handshake
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connected if tls is None else tls.wrap_socket(connected, server_hostname=host)
            self._socket.settimeout(patience.silence_s)
        except BaseException:
            connected.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, which becomes readable when a response begins."""
        return self._socket.fileno()

    def send(self, request: bytes) -> None:
        """Send a request."""
        self._socket.sendall(request)

    def head(self, *, partial: bool = False) -> Head:
        """Read the headers of the response for an object, or for a span of it if ``partial``."""
        received = self._socket.recv(_FIRST_RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        self.used = True
        while (end := received.find(_END_OF_HEAD)) < 0:
            piece = self._socket.recv(_FIRST_RECEIVE_BYTES)
            if not piece or len(received) > _MAX_HEAD_BYTES:
                raise UnusualResponseError("the response headers are too long or cut off")
            received += piece
        return _parse(received, end, _PARTIAL if partial else _ORDINARY)

    def body(self, head: Head) -> bytes | bytearray:
        """Read the body of the response with these headers. Raises ``TimeoutError`` if it is too slow."""
        filled, size = len(head.begun), head.size_bytes
        if filled == size:
            return head.begun
        deadline_s = time.monotonic() + self._silence_s + size / _MIN_BYTES_PER_S
        data = bytearray(size)
        data[:filled] = head.begun
        with memoryview(data) as view:
            while filled < size:
                received = self._socket.recv_into(view[filled:])
                if not received:
                    raise ConnectionResetError(
                        f"the server closed the connection after {filled} of {size} bytes"
                    )
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"only {filled} of {size} bytes arrived in time")
                filled += received
        return data


def _connect(host: str, port: int, patience: Patience) -> socket.socket:
    until_s, error = time.monotonic() + patience.connect_s, OSError(f"{host} has no address")
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            break
        connecting = socket.socket(family, kind, protocol)
        try:
            # S3 has eight addresses. If there is no route to one of them, there is no route to any.
            share_s = max(patience.address_s, left_s / (len(addresses) - number))
            connecting.settimeout(min(left_s, share_s))
            connecting.connect(address)
        except OSError as failed:
            connecting.close()
            error = failed
        else:
            return connecting
    if isinstance(error, TimeoutError):
        raise UnreachableError(
            f"none of the {len(addresses)} addresses of {host} accepted a connection within "
            f"{patience.connect_s:.0f} s"
        ) from error
    raise error


def _parse(received: bytes, end: int, ordinary: bytes) -> Head:
    if not received.startswith(ordinary):
        raise UnusualResponseError(f"the response begins with {received[:40]!r}")
    fields = {name.lower(): value for name, value in _FIELD.findall(received, 0, end)}
    size, begun = fields.get(b"content-length", b""), received[end + len(_END_OF_HEAD) :]
    if not size.isdigit() or b"transfer-encoding" in fields or len(begun) > int(size):
        raise UnusualResponseError("the response has no Content-Length, or a wrong one")
    etag = fields.get(b"etag", b"").decode("latin-1").strip('" ')
    keeps_alive = fields.get(b"connection", b"").lower() != b"close"
    content_range = fields.get(b"content-range", b"").decode("latin-1")
    return Head(int(size), etag, keeps_alive, begun, content_range)


_MAX_IDLE = 64
_DOTS = re.compile(r"(?<=/)\.{1,2}(?=[/?]|$)")


def headers_of(etag: str, span: Span | None) -> list[str]:
    """Return the header lines that request a version of an object, or a span of it."""
    if not (etag.isascii() and etag.isprintable()):
        # A line break in it would start another header.
        raise ObjectError(Fault.FAILED, "the version is not an ETag")
    lines = [f'if-match:"{etag}"'] if etag else []
    return lines if span is None else [*lines, f"range:{span.header}"]


@dataclass(slots=True, repr=False)  # the request contains a session token
class PendingGet:
    """A GET request in flight, on a connection of its own."""

    route: Route
    connection: S3Connection
    request: bytes
    etag: str
    span: Span | None

    def fileno(self) -> int:
        """Return the connection's descriptor, which becomes readable when the response begins."""
        return self.connection.fileno()

    def close(self) -> None:
        """Abandon the request, without reading the response."""
        self.connection.close()


@dataclass(frozen=True, slots=True)
class Request:
    """A request for an object, or for the bucket itself if ``key`` is ``None``."""

    method: str
    key: str | None
    query: str = ""  # of query_of()
    first: Sequence[str] = ()  # header lines that sort before "host"
    headers: Sequence[str] = ()  # and those that sort after it
    body: bytes | BinaryIO | None = None
    digest: str = NO_BODY  # SHA-256 of the body


@dataclass(slots=True, eq=False, weakref_slot=True)
class Route:
    """A server and the means to reach it, shared by threads. Each GET has its own connection."""

    endpoint: Endpoint
    signer: Signer
    pool: urllib3.PoolManager
    proxied: bool
    patience: Patience
    idle: deque[S3Connection] = field(default_factory=deque)  # append() and pop() are atomic
    closed: bool = False

    def request(self, key: str, etag: str, span: Span | None) -> PendingGet:
        """Request a version of an object, or a span of it. Use :meth:`finish` to read the response."""
        # A GET costs some 15 microseconds of CPU, or 60 with a body of 110 KB. boto3 needs 700 to 900.
        path = object_path(self.endpoint.path_prefix, key)
        lines = self.signer.lines("GET", path, headers=headers_of(etag, span))
        request = request_bytes("GET", path, lines)
        try:
            connection = self.idle.pop()  # the most recently used one is the least likely to be closed
        except IndexError:
            return self._request_on_new_connection(request, etag, span)
        try:
            connection.send(request)
        except OSError:
            connection.close()
            return self._request_on_new_connection(request, etag, span)
        return PendingGet(self, connection, request, etag, span)

    def _request_on_new_connection(self, request: bytes, etag: str, span: Span | None) -> PendingGet:
        connection = S3Connection(self.endpoint.host, self.endpoint.port, self.endpoint.tls, self.patience)
        try:
            connection.send(request)
        except BaseException:
            connection.close()
            raise
        return PendingGet(self, connection, request, etag, span)

    def finish(self, pending: PendingGet, before: Callable[[int], None]) -> bytes | bytearray:
        """Return the bytes of a requested object. Calls ``before`` as ``Bucket.read`` does."""
        keeps_alive = False
        try:
            try:
                head = pending.connection.head(partial=pending.span is not None)
            except ConnectionError:
                # The server may have closed an idle connection at any time.
                if not pending.connection.used:
                    raise
                pending.connection.close()
                pending = self._request_on_new_connection(pending.request, pending.etag, pending.span)
                head = pending.connection.head(partial=pending.span is not None)
            if pending.etag:
                check_version(head.etag, pending.etag)  # some servers ignore If-Match
            if pending.span is not None:
                check_range(head.content_range, head.size_bytes, pending.span)
            before(head.size_bytes)
            data = pending.connection.body(head)
            keeps_alive = head.keeps_alive and len(self.idle) < _MAX_IDLE
        finally:
            if keeps_alive:
                self.idle.append(pending.connection)
            else:
                pending.connection.close()
            if self.closed:  # another thread may have closed it meanwhile
                self.close()
        return data

    def send(self, request: Request) -> Any:
        """Send a request through urllib3, and return the response with its body still unread."""
        prefix = self.endpoint.path_prefix
        path = prefix or "/" if request.key is None else object_path(prefix, request.key)
        lines = self.signer.lines(
            request.method,
            path,
            request.query,
            before_host=request.first,
            headers=request.headers,
            digest=request.digest,
        )
        target = f"{path}?{request.query}" if request.query else path
        if self.proxied and self.endpoint.scheme == "http":
            # An HTTP proxy needs absolute URLs, in which urllib3 would resolve dot segments of a key.
            target = (
                f"http://{self.endpoint.netloc}{_DOTS.sub(lambda dots: dots[0].replace('.', '%2E'), target)}"
            )
        if request.body is not None and not isinstance(request.body, bytes):
            request.body.seek(0)
        endpoint = self.endpoint
        pool = self.pool.connection_from_host(endpoint.host, endpoint.port, endpoint.scheme)
        return pool.urlopen(
            request.method,
            target,
            body=request.body,
            headers={"user-agent": "superdl", **dict(line.split(":", 1) for line in lines)},
            retries=False,
            redirect=False,
            assert_same_host=False,
            preload_content=False,
            decode_content=False,
        )

    def close(self) -> None:
        """Close the idle connections."""
        self.closed = True
        while self.idle:
            self.idle.pop().close()
        self.pool.clear()
