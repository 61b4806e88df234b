"""One raw socket to the cache: connecting, authenticating, sending, receiving into given memory.

A socket of our own, since a client library's objects and copies cost more than the transfer. Which process
may use it, and when it is opened anew, is :mod:`super_dataset.reader`'s. Foreign errors are mapped here:
whatever the network does becomes :class:`~super_wire.errors.CacheUnreachableError`, whatever the cache
refuses :class:`~super_wire.errors.CacheError`.
"""

from __future__ import annotations

import socket
import struct
import weakref
from typing import TYPE_CHECKING

from super_dataset.resp import CRLF, MAX_LINE_BYTES, ProtocolDoubtError, encode_command, parse_line
from super_wire.errors import CacheError, CacheUnreachableError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from super_wire.address import CacheAddress, Credentials

__all__ = ["IO_TIMEOUT_S", "CacheConnection", "is_passing", "refusal"]

IO_TIMEOUT_S = 10.0
"""How long a connection waits for a connect, or for the next byte, at most."""

_TIMEVAL = struct.Struct("ll")
_MIN_TIMEOUT_S = 0.001  # a zero would mean no limit at all
_PASSING = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "ERR max number of clients")
_CREDENTIALS = ("NOAUTH", "WRONGPASS", "ERR AUTH", "ERR Client sent AUTH")


def is_passing(text: str) -> bool:
    """Whether an error reply tells of a state of the cache that ends by itself."""
    return text.startswith(_PASSING)


def refusal(address: CacheAddress | str, text: str) -> CacheError:
    """The error for an error reply of the cache, with the remedy where one is known."""
    remedy = ""
    if text.startswith(_CREDENTIALS):
        remedy = (
            " (set SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD for the trainer as the cache wants them)"
        )
    elif text.startswith("NOPERM"):
        remedy = " (a reader needs GET on super:r1:* and XADD on super:n1:*)"
    elif text.startswith(("MOVED", "ASK")):
        remedy = " (this is a node of a Redis Cluster; name a single node's address)"
    return CacheError(f"the cache at {address} refused: {text}{remedy}")


class CacheConnection:
    """An open, authenticated connection.

    ``owed`` counts replies to commands whose answer nobody waited for; whoever reads next must first let them
    pass. Any exception out of :meth:`send` or :meth:`receive` leaves the stream in an unknown state: close
    the connection.

    Args:
        address: where the cache is.
        credentials: sent by AUTH if there is a password.
        timeout_s: bound of the connect and, until :meth:`limit_wait` says otherwise, of each wait for bytes,
            in seconds.

    Raises:
        CacheUnreachableError: nobody answered, or not in time.
        CacheError: the cache refused credentials or database.
    """

    def __init__(
        self, address: CacheAddress, credentials: Credentials, *, timeout_s: float = IO_TIMEOUT_S
    ) -> None:
        if address.tls:
            msg = f"the cache at {address} is reached by TLS, which this reader lacks"
            raise ConfigError(msg)
        self.address = address
        self.owed = 0
        self._limit_s = 0.0
        try:
            self._socket = _connect(address, max(timeout_s, _MIN_TIMEOUT_S))
        except OSError as error:
            raise self._lost(error) from error
        # A dataset need not be closed: its connection goes with it.
        weakref.finalize(self, self._socket.close).atexit = False
        try:
            self.limit_wait(timeout_s)
            self._greet(credentials)
        except BaseException:
            self.close()
            raise

    def limit_wait(self, timeout_s: float) -> None:
        """Bound each further wait for bytes, to at most :data:`IO_TIMEOUT_S`.

        A kernel timeout on a blocking socket: Python's own would cost a ``poll`` before every receive.
        """
        limit_s = min(max(timeout_s, _MIN_TIMEOUT_S), IO_TIMEOUT_S)
        if limit_s == self._limit_s:
            return
        timeval = _TIMEVAL.pack(int(limit_s), int(limit_s % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._limit_s = limit_s

    def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Receive what is there, at least one byte, into ``buffers`` in order; how many bytes came."""
        try:
            count = self._socket.recvmsg_into(buffers)[0]
        except OSError as error:
            raise self._lost(error) from error
        if not count:
            msg = f"the cache at {self.address} closed the connection"
            raise CacheUnreachableError(msg)
        return count

    def ask(self, *words: bytes) -> str:
        """One command with a one-line answer, and the answer's text; only while nothing is owed.

        Raises:
            CacheError: the cache answered with an error.
        """
        self.send(encode_command(*words))
        answer = bytearray()
        scratch = memoryview(bytearray(4096))
        while not answer.endswith(CRLF):
            if len(answer) > MAX_LINE_BYTES:
                raise self._lost(ProtocolDoubtError("an endless line"))
            answer += scratch[: self.receive([scratch])]
        try:
            kind, _, text = parse_line(bytes(answer[:-2]))
        except ProtocolDoubtError as error:
            msg = f"what answers at {self.address} does not speak the Redis protocol: {error}"
            raise CacheError(msg) from error
        if kind == "error":
            if is_passing(text):
                msg = f"the cache at {self.address} is not ready: {text}"
                raise CacheUnreachableError(msg)
            raise refusal(self.address, text)
        return text

    def close(self) -> None:
        """Close this process's end; a copy that a fork left in another process is not disturbed."""
        self._socket.close()

    def _greet(self, credentials: Credentials) -> None:
        if credentials.password:
            words = [word.encode() for word in (credentials.username, credentials.password) if word]
            self.ask(b"AUTH", *words)
        if self.address.db:
            self.ask(b"SELECT", b"%d" % self.address.db)

    def _lost(self, error: Exception) -> CacheUnreachableError:
        reason: object = error
        if isinstance(error, BlockingIOError | TimeoutError):
            reason = f"nothing came for {self._limit_s or IO_TIMEOUT_S:.3g} s"
        return CacheUnreachableError(f"the cache at {self.address} is not to be reached: {reason}")


def _connect(address: CacheAddress, timeout_s: float) -> socket.socket:
    if address.path:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.settimeout(timeout_s)
            opened.connect(address.path)
        except BaseException:
            opened.close()
            raise
    else:
        opened = socket.create_connection((address.host, address.port), timeout=timeout_s)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.settimeout(None)
    return opened
