"""One connection to a node of the cache that stores records, several at a time, without copying payloads.

Speaks the Redis protocol itself, over TCP, TLS or a unix socket: a SET through a plain socket, header and
payload gathered by ``sendmsg``, was measured at 3 microseconds of CPU for a 12 KB record and 18 for a 150 KB
one, where redis-py takes 19 and 126 since it joins and copies first. TLS takes one buffer at a time, so small
ones are joined there: 7 microseconds, and 70 for the large one, most of them for the cipher. Every exchange
has a deadline. What to do when one fails is :mod:`superdl.lambda_prefetch.push`'s; which node has a record,
:mod:`superdl.lambda_prefetch.cache_nodes`'s.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING, TypeAlias

from superdl.super_wire.address import Credentials
from superdl.super_wire.errors import CacheError, CacheUnreachableError
from superdl.super_wire.resp import ErrorReply, MalformedReplyError, encode_command, parse_reply

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from superdl.super_wire.address import CacheAddress
    from superdl.super_wire.resp import Reply

__all__ = ["EXCHANGE_TIMEOUT_S", "CacheConnection", "CacheRecord", "WrongPasswordError"]

CacheRecord: TypeAlias = "tuple[bytes, bytes, memoryview]"
"""Cache key, header and payload."""

EXCHANGE_TIMEOUT_S = 15.0
"""How long an exchange may take if nothing else is said."""

_CONNECT_TIMEOUT_S = 5.0
_MAX_LINE_BYTES = 65536
_MAX_ANSWER_BYTES = 2**24
_BUFFERS_PER_SEND = 512  # below IOV_MAX, 1024 on Linux and macOS
_JOINED_BYTES = 65536  # four TLS records
_ASKING = encode_command(b"ASKING")
_RESP3 = 3
_NO_RESP3 = ("ERR unknown command", "NOPROTO", "NOPERM")
_WRONG_PASSWORD = ("WRONGPASS", "NOAUTH", "ERR invalid password")  # the last one is Redis 5's


class WrongPasswordError(CacheError):
    """The cache knows no such user and password."""


class CacheConnection:
    """A connection, open and authenticated.

    After an exception out of anything but the constructor nothing is known of what is on its way: close it.

    Args:
        address: the node.
        credentials: what the cache lets in; sent only if there is a password.
        tls: for a ``rediss://`` address, made by :meth:`Credentials.tls_context`.

    Raises:
        CacheUnreachableError: nobody answers there.
        WrongPasswordError: the cache refuses the credentials.
        CacheError: the cache refuses for another reason, or we its certificate.
        ConfigError: the node is beyond loopback without TLS.
    """

    def __init__(
        self,
        address: CacheAddress,
        credentials: Credentials = Credentials(),  # noqa: B008  # frozen
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self._unread = b""
        self._encrypted = address.tls
        credentials.admit(address)
        self._socket = _connect(address, credentials, tls)
        try:
            self._greet(credentials)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def store(self, records: Sequence[CacheRecord]) -> list[str]:
        """SET every record and wait for all acknowledgements.

        Returns:
            For each record the empty text if it was acknowledged, else the cache's own words.

        Raises:
            CacheUnreachableError: the connection broke or the deadline passed; nothing is known of any
                record.
            CacheError: the cache answered something that is no answer to a SET.
        """
        deadline = time.monotonic() + EXCHANGE_TIMEOUT_S
        self.send(records, deadline)
        return self.answers(len(records), deadline)

    def send(self, records: Sequence[CacheRecord], deadline: float, *, asking: bool = False) -> None:
        """The first half of :meth:`store`, so that several nodes can be sent to before one is waited for.

        Args:
            records: what to store.
            deadline: on the monotonic clock.
            asking: whether each record's slot is only on its way to this node, so that it must be ASKed to
                take it.
        """
        buffers: list[bytes | memoryview] = []
        end, asked = b"", _ASKING if asking else b""
        for key, header, payload in records:
            size_bytes = len(header) + payload.nbytes
            command = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, size_bytes)
            buffers += (end + asked + command + header, payload)
            end = b"\r\n"
        buffers.append(end)
        try:
            self._send(buffers, deadline)
        except OSError as error:
            raise self._broke(error) from error

    def answers(self, records: int, deadline: float, *, asking: bool = False) -> list[str]:
        """The second half of :meth:`store`: what became of that many records that were sent."""
        try:
            lines = list(self._lines(2 * records if asking else records, deadline))
        except OSError as error:
            raise self._broke(error) from error
        return [self._refusal(line) for line in (lines[1::2] if asking else lines)]

    def ask(self, *words: bytes, timeout_s: float = EXCHANGE_TIMEOUT_S) -> Reply:
        """Any command's answer; an error that it answers is returned.

        Raises:
            CacheUnreachableError: the connection broke or the deadline passed.
            CacheError: the answer is not of the Redis protocol.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._send([encode_command(*words)], deadline)
            while (found := parse_reply(self._unread)) is None:
                if len(self._unread) > _MAX_ANSWER_BYTES:
                    raise self._no_redis()
                self._receive(deadline)
        except OSError as error:
            raise self._broke(error) from error
        except MalformedReplyError as error:
            raise self._no_redis() from error
        reply, end = found
        self._unread = self._unread[end:]
        return reply

    def _greet(self, credentials: Credentials) -> None:
        user, password = credentials.username.encode(), credentials.password.encode()
        greeted = self.address.protocol == _RESP3 and self._says_hello(user, password)
        if password and not greeted:
            self._demand(b"AUTH", *([user] if user else []), password)
        if self.address.db:
            self._demand(b"SELECT", b"%d" % self.address.db)
        self._demand(b"PING")

    def _says_hello(self, user: bytes, password: bytes) -> bool:
        """Ask for RESP3; whether the server knows of it. All that we need is said in RESP2 as well."""
        reply = self.ask(b"HELLO", b"3", *((b"AUTH", user or b"default", password) if password else ()))
        if isinstance(reply, ErrorReply) and not reply.text.startswith(_NO_RESP3):
            raise self._refused(b"HELLO", reply)
        return isinstance(reply, dict)

    def _demand(self, *words: bytes) -> None:
        reply = self.ask(*words)
        if isinstance(reply, ErrorReply):
            raise self._refused(words[0], reply)
        if not isinstance(reply, bytes):
            raise self._no_redis()

    def _send(self, buffers: list[bytes | memoryview], deadline: float) -> None:
        if self._encrypted:
            for joined in _joined(buffers):
                self._wait_until(deadline)
                self._socket.sendall(joined)
            return
        views = [memoryview(buffer) for buffer in buffers]
        at = 0
        while at < len(views):
            self._wait_until(deadline)
            sent = self._socket.sendmsg(views[at : at + _BUFFERS_PER_SEND])
            while at < len(views) and sent >= views[at].nbytes:
                sent -= views[at].nbytes
                at += 1
            if sent:
                views[at] = views[at][sent:]

    def _lines(self, count: int, deadline: float) -> Iterator[bytes]:
        """The next ``count`` lines, without their ends."""
        for _ in range(count):
            while b"\r\n" not in self._unread:
                self._receive(deadline)
                if len(self._unread) > _MAX_LINE_BYTES and b"\r\n" not in self._unread:
                    raise self._no_redis()
            line, _, self._unread = self._unread.partition(b"\r\n")
            yield line

    def _receive(self, deadline: float) -> None:
        self._wait_until(deadline)
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionResetError("the cache closed it")
        self._unread += received

    def _wait_until(self, deadline: float) -> None:
        """Let the next operation of the socket end by ``deadline``."""
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)

    def _refusal(self, line: bytes) -> str:
        if line[:1] == b"+":
            return ""
        if line[:1] == b"-":
            return line[1:].decode(errors="replace")
        msg = f"the cache at {self.address} answered {line[:40]!r}, which is neither yes nor no"
        raise CacheError(msg)

    def _refused(self, command: bytes, reply: ErrorReply) -> CacheError:
        msg = f"the cache at {self.address} refuses {command.decode()}: {reply.text}"
        if not reply.text.startswith(_WRONG_PASSWORD):
            return CacheError(msg)
        return WrongPasswordError(
            f"{msg} (set SUPER_CACHE_SECRET, or SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD, in the "
            "function's environment; functions of the local executor have the coordinator's)"
        )

    def _broke(self, error: OSError) -> CacheUnreachableError:
        return CacheUnreachableError(f"the connection to the cache at {self.address} broke: {_reason(error)}")

    def _no_redis(self) -> CacheError:
        return CacheError(f"the cache at {self.address} does not speak the Redis protocol")


def _joined(buffers: list[bytes | memoryview]) -> Iterator[bytes]:
    """The buffers in pieces of at least 64 KiB, none of them cut, but for the last piece."""
    waiting: list[bytes | memoryview] = []
    waiting_bytes = 0
    for buffer in buffers:
        waiting.append(buffer)
        waiting_bytes += len(buffer) if isinstance(buffer, bytes) else buffer.nbytes
        if waiting_bytes >= _JOINED_BYTES:
            yield b"".join(waiting)
            waiting, waiting_bytes = [], 0
    if waiting_bytes:
        yield b"".join(waiting)


def _reason(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)


def _connect(address: CacheAddress, credentials: Credentials, tls: ssl.SSLContext | None) -> socket.socket:
    try:
        if address.path:
            return _connected_unix(address.path)
        connected = socket.create_connection((address.host, address.port), timeout=_CONNECT_TIMEOUT_S)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                context = tls or credentials.tls_context()
                return context.wrap_socket(connected, server_hostname=address.host)
        except BaseException:
            connected.close()
            raise
    except ssl.SSLCertVerificationError as error:
        msg = (
            f"the certificate of the cache at {address} is not to be trusted: {error.verify_message}; "
            "SUPER_CACHE_CA_FILE names the authority that it must come from"
        )
        raise CacheError(msg) from error
    except OSError as error:
        msg = f"no cache answers at {address}: {_reason(error)}"
        raise CacheUnreachableError(msg) from error
    return connected


def _connected_unix(path: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(_CONNECT_TIMEOUT_S)
        connected.connect(path)
    except BaseException:
        connected.close()
        raise
    return connected
