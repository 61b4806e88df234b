"""A connection to a cache node that receives into the caller's memory."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
import weakref
from typing import TYPE_CHECKING

from superdl.super_wire.cache.resp import (
    ErrorReply,
    MalformedReplyError,
    encode_command,
    no_redis,
    parse_reply,
    refusal,
    silence_hint,
    tls_failure,
)
from superdl.super_wire.cache.tls import TlsStream
from superdl.super_wire.errors import CacheUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from superdl.super_wire.cache.address import CacheAddress, Credentials
    from superdl.super_wire.cache.resp import Reply
    from superdl.super_wire.errors import CacheError

# The maximum wait for a connection or the next byte.
IO_TIMEOUT_S = 10.0
_MIN_TIMEOUT_S = 0.001  # zero would mean no limit
_MAX_REPLY_BYTES = 16 * 2**20
_PIECE_BYTES = 65536
_BUFFERS_PER_SEND = 512  # below IOV_MAX, 1024
_JOINED_BYTES = 65536  # four TLS records


class ProtocolDoubtError(CacheUnreachableError):
    """The received bytes are not the expected replies. Close the connection."""


class CacheConnection:
    """An open, authenticated connection. Close it after any exception, because its stream is then undefined.

    ``owed`` counts unread replies. The next read skips them and appends their errors to ``late_errors``.
    ``timeout_s`` limits connecting, the handshake and, until :meth:`limit_wait`, each wait for bytes.

    Raises:
        CacheUnreachableError: the cache does not respond in time.
        CacheError: the credentials, a certificate or the database is refused.
        ConfigError: TLS files cannot be used, or a remote node does not use TLS.
    """

    def __init__(
        self,
        address: CacheAddress,
        credentials: Credentials,
        *,
        timeout_s: float = IO_TIMEOUT_S,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self.owed = 0
        self.late_errors: list[str] = []
        self._tls: TlsStream | None = None
        self._limit_s = 0.0
        self._has_received = False  # whether the peer has ever sent a byte
        credentials.admit(address)
        if address.tls and context is None:
            context = credentials.tls_context()
        try:
            # A client library's objects and copies would cost more than the transfer.
            self._socket = _connect(address, max(timeout_s, _MIN_TIMEOUT_S))
        except OSError as error:
            raise self._failure(error) from error
        # Datasets are never closed explicitly, so close the connection with its owner.
        weakref.finalize(self, self._socket.close).atexit = False
        try:
            self.limit_wait(timeout_s)
            if context is not None:
                self._tls = TlsStream(self._socket, context, address.host, timeout_s=self._limit_s)
            self._greet(credentials)
        except (OSError, EOFError) as error:
            self.close()
            raise self._failure(error) from error
        except BaseException:
            self.close()
            raise

    def limit_wait(self, timeout_s: float) -> None:
        """Limit each subsequent wait for bytes to ``timeout_s``, but at most :data:`IO_TIMEOUT_S`."""
        limit_s = min(max(timeout_s, _MIN_TIMEOUT_S), IO_TIMEOUT_S)
        if limit_s == self._limit_s:
            return
        # Use the kernel's timeout, because Python's costs a poll() before each receive.
        timeval = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._limit_s = limit_s

    def fileno(self) -> int:
        """Return the socket's descriptor, which becomes readable when bytes arrive."""
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether received bytes may be buffered here, even if the socket is not readable."""
        return self._tls is not None and self._tls.pending

    def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        self.send_gathered([data], time.monotonic() + self._limit_s)

    def send_gathered(self, buffers: Sequence[bytes | memoryview], until_s: float) -> None:
        """Send all buffers before the monotonic time ``until_s``, without copying large ones."""
        try:
            if self._tls is None:
                self._send_views([memoryview(buffer) for buffer in buffers], until_s)
                return
            for joined in _join(buffers):  # TLS encrypts one buffer at a time
                self._send_views([memoryview(self._tls.encrypted(joined))], until_s)
        except OSError as error:
            raise self._failure(error) from error

    def receive(self, buffers: Sequence[memoryview], *, once: bool = False) -> int:
        """Receive at least one byte into ``buffers``, in order, and return the number of bytes.

        With ``once``, wait for the socket only once. The number may then be 0 for encrypted data.
        """
        try:
            if self._tls is None:
                count = self._socket.recvmsg_into(buffers)[0]
            else:
                count = self._tls.receive_some(buffers)
                while not (count or once):
                    count = self._tls.receive_some(buffers)
        except (OSError, EOFError) as error:
            raise self._failure(error) from error
        if not count and self._tls is None:
            raise self._failure(EOFError())
        self._has_received = True
        return count

    def ask(self, *words: bytes) -> Reply:
        """Send a command and return its reply. An error reply raises the exception from :func:`refusal`."""
        (reply,) = self.converse(words)
        if isinstance(reply, ErrorReply):
            raise refusal(self.address, reply.text)
        return reply

    def converse(self, *commands: Sequence[bytes], timeout_s: float | None = None) -> list[Reply]:
        """Send commands and return their replies, including errors.

        ``timeout_s`` limits the total wait. Its default is the limit set by :meth:`limit_wait`.
        """
        if commands:
            self.send(b"".join([encode_command(*words) for words in commands]))
        return self.replies(len(commands), time.monotonic() + (timeout_s or self._limit_s))

    def replies(self, count: int, until_s: float) -> list[Reply]:
        """Receive and return ``count`` replies, including errors, before the monotonic time ``until_s``."""
        began_s = time.monotonic()
        received, at = b"", 0
        replies: list[Reply] = []
        while len(replies) < self.owed + count:
            try:
                parsed = parse_reply(received, at)
            except MalformedReplyError as error:
                raise no_redis(self.address, received[at:], error) from error
            if parsed is None:
                received, at = self._longer(received[at:], began_s, until_s), 0
                if len(received) > _MAX_REPLY_BYTES:
                    raise self._failure(ProtocolDoubtError(f"a reply exceeds {_MAX_REPLY_BYTES} bytes"))
                continue
            reply, at = parsed
            replies.append(reply)
        late, replies = replies[: self.owed], replies[self.owed :]
        self.late_errors += [reply.text for reply in late if isinstance(reply, ErrorReply)]
        self.owed = 0
        if at < len(received):
            raise self._failure(ProtocolDoubtError(f"unexpected reply {received[at : at + 40]!r}"))
        return replies

    def close(self) -> None:
        """Close the socket in this process. A forked process keeps its copy."""
        self._socket.close()

    def _longer(self, received: bytes, began_s: float, until_s: float) -> bytes:
        """Receive one or more pieces and return them appended to ``received``."""
        pieces = [received, self._next_piece(began_s, until_s)]
        size = len(pieces[1])
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        # Incomplete replies are parsed from their start again, so first double the number of bytes.
        while size < len(received) and (self.pending or poll.poll(0)):
            pieces.append(self._next_piece(began_s, until_s))
            size += len(pieces[-1])
        return b"".join(pieces)

    def _next_piece(self, began_s: float, until_s: float) -> bytes:
        """Receive some bytes, or none if an encrypted record is still incomplete."""
        if not self.pending:
            self._wait(select.POLLIN, began_s, until_s)
        piece = memoryview(bytearray(_PIECE_BYTES))
        return bytes(piece[: self.receive([piece], once=True)])

    def _send_views(self, views: list[memoryview], until_s: float) -> None:
        began_s, at = time.monotonic(), 0
        while at < len(views):
            end = min(at + _BUFFERS_PER_SEND, len(views))
            try:
                # Do not block: _wait() respects until_s.
                sent = self._socket.sendmsg(views[at:end], [], socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            while at < end and sent >= views[at].nbytes:
                sent -= views[at].nbytes
                at += 1
            if sent:
                views[at] = views[at][sent:]
            if at < end:  # the socket is full
                self._wait(select.POLLOUT, began_s, until_s)

    def _wait(self, event: int, began_s: float, until_s: float) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise self._failure(TimeoutError(), waited_s=until_s - began_s)

    def _greet(self, credentials: Credentials) -> None:
        commands: list[tuple[bytes, ...]] = []
        if credentials.password:
            words = [word.encode() for word in (credentials.username, credentials.password) if word]
            commands.append((b"AUTH", *words))
        if self.address.db:
            commands.append((b"SELECT", b"%d" % self.address.db))
        for reply in self.converse(*commands) if commands else ():
            if isinstance(reply, ErrorReply):
                raise refusal(self.address, reply.text)

    def _failure(self, error: Exception, *, waited_s: float | None = None) -> CacheError:
        if isinstance(error, ssl.SSLError):
            return tls_failure(self.address, error)
        is_closed = isinstance(error, EOFError | ConnectionResetError)
        is_silent = isinstance(error, BlockingIOError | TimeoutError)
        reason = "connection closed" if isinstance(error, EOFError) else str(error)
        if is_silent:
            reason = f"no response for {waited_s or self._limit_s or IO_TIMEOUT_S:.3g} s"
        hint = ""
        # If only the peer uses TLS, it hangs up. If only this side does, the peer waits for more bytes.
        if not self._has_received and (is_closed or (is_silent and self.address.tls)):
            hint = silence_hint(self.address, encrypted=self._tls is not None)
        kind = ProtocolDoubtError if isinstance(error, ProtocolDoubtError) else CacheUnreachableError
        return kind(f"the cache at {self.address} cannot be reached: {reason}{hint}")


def _connect(address: CacheAddress, timeout_s: float) -> socket.socket:
    if address.path:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            connection.connect(address.path)
        except OSError:
            connection.close()
            raise
    else:
        connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Blocking, because limit_wait() sets the kernel's timeouts.
    connection.settimeout(None)
    return connection


def _join(buffers: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    """Join buffers into pieces of at least 64 KiB (except the last) without splitting a buffer."""
    pending: list[bytes | memoryview] = []
    pending_bytes = 0
    for buffer in buffers:
        pending.append(buffer)
        pending_bytes += memoryview(buffer).nbytes
        if pending_bytes >= _JOINED_BYTES:
            yield b"".join(pending)
            pending, pending_bytes = [], 0
    if pending_bytes:
        yield b"".join(pending)
