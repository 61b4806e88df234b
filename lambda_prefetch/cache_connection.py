"""One connection to the cache that stores records, several at a time, without copying their payloads.

Speaks the Redis protocol itself, over TCP or a unix socket: a SET through a plain socket, header and payload
gathered by ``sendmsg``, was measured at 3 microseconds of CPU for a 12 KB record and 18 for a 150 KB one,
where redis-py takes 19 and 126 since it joins and copies first. Every exchange has a deadline. What to do
when one fails is :mod:`lambda_prefetch.push`'s.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from super_wire.errors import CacheError, CacheUnreachableError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CacheConnection"]

_CONNECT_TIMEOUT_S = 5.0
_EXCHANGE_TIMEOUT_S = 15.0
_MAX_LINE_BYTES = 65536
_DEFAULT_PORT = 6379
_BUFFERS_PER_SEND = 512  # below IOV_MAX, 1024 on Linux and macOS


class CacheConnection:
    """A connection, open and authenticated.

    Args:
        url: ``redis://host:port[/db]`` or ``unix:///path``; never with credentials.
        username: for ACL users; empty for the default user.
        password: empty where the cache asks for none.

    Raises:
        ConfigError: the address is none of these.
        CacheUnreachableError: nobody answers there.
        CacheError: the cache refuses, for example the credentials.
    """

    def __init__(self, url: str, *, username: str = "", password: str = "") -> None:
        self.url = url
        self._unread = b""
        database, self._socket = _connect(url)
        try:
            if password:
                self._command(b"AUTH", *([username.encode()] if username else []), password.encode())
            if database:
                self._command(b"SELECT", str(database).encode())
            self._command(b"PING")
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def store(self, records: Sequence[tuple[bytes, bytes, memoryview]]) -> list[str]:
        """SET every record, given as (cache key, header, payload), and wait for all acknowledgements.

        Returns:
            For each record the empty text if it was acknowledged, else the cache's own words.

        Raises:
            CacheUnreachableError: the connection broke or the deadline passed; nothing is known of any
                record.
            CacheError: the cache answered something that is no answer to a SET.
        """
        buffers: list[bytes | memoryview] = []
        end = b""
        for key, header, payload in records:
            size_bytes = len(header) + payload.nbytes
            command = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, size_bytes)
            buffers += (end + command + header, payload)
            end = b"\r\n"
        buffers.append(end)
        return self._exchange(buffers, len(records))

    def _command(self, *words: bytes) -> None:
        parts = [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
        (answer,) = self._exchange([b"".join(parts)], 1)
        if answer:
            msg = f"the cache at {self.url} refuses {words[0].decode()}: {answer}"
            raise CacheError(msg)

    def _exchange(self, buffers: list[bytes | memoryview], replies: int) -> list[str]:
        deadline = time.monotonic() + _EXCHANGE_TIMEOUT_S
        try:
            self._send(buffers, deadline)
            return [_refusal(line, self.url) for line in self._lines(replies, deadline)]
        except OSError as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            msg = f"the connection to the cache at {self.url} broke: {reason}"
            raise CacheUnreachableError(msg) from error

    def _send(self, buffers: list[bytes | memoryview], deadline: float) -> None:
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
                self._wait_until(deadline)
                received = self._socket.recv(65536)
                if not received:
                    raise ConnectionResetError("the cache closed it")
                self._unread += received
                if len(self._unread) > _MAX_LINE_BYTES and b"\r\n" not in self._unread:
                    msg = f"the cache at {self.url} does not speak the Redis protocol"
                    raise CacheError(msg)
            line, _, self._unread = self._unread.partition(b"\r\n")
            yield line

    def _wait_until(self, deadline: float) -> None:
        """Let the next operation of the socket end by ``deadline``."""
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)


def _refusal(line: bytes, url: str) -> str:
    if line[:1] == b"+":
        return ""
    if line[:1] == b"-":
        return line[1:].decode(errors="replace")
    msg = f"the cache at {url} answered {line[:40]!r}, which is neither yes nor no"
    raise CacheError(msg)


def _connect(url: str) -> tuple[int, socket.socket]:
    """The database that ``url`` names, and a connected socket."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        msg = (
            "a cache's address carries no credentials: "
            "set SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD instead"
        )
        raise ConfigError(msg)
    try:
        if parts.scheme == "unix" and parts.path:
            database = int(parse_qs(parts.query).get("db", ["0"])[0])
            return database, _connected_unix(parts.path)
        if parts.scheme == "redis" and parts.hostname:
            database = int(parts.path.strip("/") or 0)
            return database, _connected_tcp(parts.hostname, parts.port or _DEFAULT_PORT)
    except OSError as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        msg = f"no cache answers at {url}: {reason}"
        raise CacheUnreachableError(msg) from error
    except ValueError as error:
        msg = f"{url!r} is no address of a cache: {error}"
        raise ConfigError(msg) from error
    msg = f"a cache's address is redis://host:port or unix:///path; not {url!r}"
    raise ConfigError(msg)


def _connected_unix(path: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(_CONNECT_TIMEOUT_S)
        connected.connect(path)
    except BaseException:
        connected.close()
        raise
    return connected


def _connected_tcp(host: str, port: int) -> socket.socket:
    connected = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected
