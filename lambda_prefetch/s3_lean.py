"""Reads objects of one bucket over kept connections, signed with botocore's credentials.

It does what is usual and nothing else: one GET, once more on a fresh connection where a kept one turned out
to be closed. Whatever else happens is raised as :class:`LeanFailedError` and is
:mod:`superdl.lambda_prefetch.s3_source`'s to ask boto3 about, which knows retries, redirects and S3's words.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.s3_connection import S3Connection, UnreachableError, UnusualAnswerError
from superdl.lambda_prefetch.s3_endpoint import NotLeanError, lean_endpoint
from superdl.lambda_prefetch.s3_signing import Signer, object_path
from superdl.lambda_prefetch.sources import check_size, check_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.credentials import Credentials

    from superdl.lambda_prefetch.s3_endpoint import Endpoint

__all__ = ["Asked", "LeanClient", "LeanFailedError", "close_lean_clients", "give_up", "lean_client"]

_MAX_IDLE = 64
_PASSING = frozenset({0, 408, 429})  # no answer; said to a connection that idled; too many requests

# Per process, endpoint and bucket; None where boto3 is to read.
_clients: dict[tuple[int, str, str], LeanClient | None] = {}
_lock = threading.Lock()


class LeanFailedError(Exception):
    """The object was not read. ``passing`` says that the same request may well succeed a moment later,
    ``unreachable`` that no way leads to the server.
    """

    def __init__(self, what: str, *, passing: bool, unreachable: bool = False) -> None:
        super().__init__(what)
        self.passing = passing
        self.unreachable = unreachable


@dataclass(slots=True)
class Asked:
    """One GET that was sent, on a connection of its own."""

    client: LeanClient
    connection: S3Connection
    request: bytes
    etag: str

    def fileno(self) -> int:
        """The connection's descriptor, which gets readable once the answer begins."""
        return self.connection.fileno()

    def close(self) -> None:
        """Give up; the answer is read by nobody."""
        self.connection.close()


class LeanClient:
    """One bucket's objects; threads share it, each GET has a connection to itself."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials) -> None:
        from botocore.exceptions import BotoCoreError

        self._refresh_error = BotoCoreError  # what credentials raise that cannot be refreshed
        self._endpoint = endpoint
        self._signer = Signer(credentials, region=endpoint.region, host=endpoint.host_header)
        self._idle: deque[S3Connection] = deque()  # appending and popping are atomic

    def begin(self, key: str, etag: str) -> Asked:
        """Ask for an object; :meth:`finish` reads the answer.

        Raises:
            LeanFailedError: it cannot be asked for.
        """
        if not (etag.isascii() and etag.isprintable()):
            # It would end a header's line.
            raise LeanFailedError("the version is no ETag", passing=True)
        try:
            request = self._signer.get(object_path(self._endpoint.path_prefix, key), etag)
            try:
                connection = self._idle.pop()  # the one used last is the least likely to have been closed
            except IndexError:
                return self._ask_anew(request, etag)
            try:
                connection.send(request)
            except OSError:
                connection.close()
                return self._ask_anew(request, etag)
        except OSError as error:
            raise _failed(error) from error
        except self._refresh_error as error:
            raise LeanFailedError(str(error), passing=True) from error
        return Asked(self, connection, request, etag)

    def finish(self, asked: Asked, *, limit_bytes: int, reserve: Callable[[int], None]) -> bytes | bytearray:
        """The bytes of an object that was asked for; arguments as
        :class:`superdl.lambda_prefetch.sources.ObjectSource`'s.

        Raises:
            SampleFailedError: it has another version, or is too large.
            LeanFailedError: anything else. ``reserve`` may have been called.
        """
        try:
            try:
                head = asked.connection.head()
            except ConnectionError:
                # The server may have closed a kept connection at any time before.
                if not asked.connection.used:
                    raise
                asked.connection.close()
                asked = self._ask_anew(asked.request, asked.etag)
                head = asked.connection.head()
            check_version(head.etag, asked.etag)
            check_size(head.size_bytes, limit_bytes)
            reserve(head.size_bytes)
            data = asked.connection.body(head)
        except UnusualAnswerError as answer:
            asked.connection.close()
            passing = answer.status in _PASSING or answer.status >= 500  # noqa: PLR2004  # HTTP's server errors
            raise LeanFailedError(f"S3 answered {answer.status}: {answer}", passing=passing) from answer
        except OSError as error:
            asked.connection.close()
            raise _failed(error) from error
        except BaseException:
            asked.connection.close()
            raise
        if head.keeps and len(self._idle) < _MAX_IDLE:
            self._idle.append(asked.connection)
        else:
            asked.connection.close()
        return data

    def close(self) -> None:
        """Close the connections that wait for the next GET."""
        while self._idle:
            self._idle.pop().close()

    def _ask_anew(self, request: bytes, etag: str) -> Asked:
        connection = S3Connection(self._endpoint.host, self._endpoint.port, self._endpoint.tls)
        try:
            connection.send(request)
        except BaseException:
            connection.close()
            raise
        return Asked(self, connection, request, etag)


def _failed(error: OSError) -> LeanFailedError:
    unreachable = isinstance(error, UnreachableError)
    return LeanFailedError(f"the connection failed: {error}", passing=True, unreachable=unreachable)


def lean_client(bucket: str, endpoint_url: str) -> LeanClient | None:
    """This process's client for a bucket, made when it is first asked for; ``None``: boto3 is to read it."""
    place = (os.getpid(), endpoint_url, bucket)
    with _lock:
        if place not in _clients:
            _clients[place] = _make(bucket, endpoint_url)
        return _clients[place]


def give_up(bucket: str, endpoint_url: str) -> None:
    """Leave a bucket to boto3 for as long as this process lives."""
    with _lock:
        client = _clients.get((os.getpid(), endpoint_url, bucket))
        _clients[os.getpid(), endpoint_url, bucket] = None
    if client is not None:
        client.close()


def close_lean_clients() -> None:
    """Close all connections, and forget which buckets were left to boto3."""
    with _lock:
        while _clients:
            _, client = _clients.popitem()
            if client is not None:
                client.close()


def _make(bucket: str, endpoint_url: str) -> LeanClient | None:
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    try:
        session = Session()
        endpoint = lean_endpoint(session, bucket, endpoint_url)
        credentials = session.get_credentials()
    except (NotLeanError, BotoCoreError):
        return None  # boto3 does it, or says what is wrong
    return None if credentials is None else LeanClient(endpoint, credentials)
