"""Reads objects of one bucket over kept connections, signed with botocore's credentials.

It does what is usual and nothing else: one GET, once more on a fresh connection where a kept one turned out
to be closed. What else happens is raised as :class:`LeanFailedError`, and boto3 is asked. It knows a bucket
of AWS's ordinary regions by its virtual host, and a server that the operator named by the bucket's path. What
else botocore's configuration can mean (proxies, access points, FIPS, ...), :func:`lean_endpoint` refuses.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from superdl.lambda_prefetch.s3_connection import (
    S3Connection,
    Signer,
    UnreachableError,
    UnusualAnswerError,
    check_range,
    object_path,
)
from superdl.lambda_prefetch.sources import check_size, check_version
from superdl.super_wire.clouds import Fault, fault_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from botocore.credentials import Credentials

    from superdl.lambda_prefetch.sources import Span

__all__ = [
    "Asked",
    "LeanClient",
    "LeanFailedError",
    "NotLeanError",
    "close_lean_clients",
    "give_up",
    "lean_client",
    "lean_endpoint",
]

_MAX_IDLE = 64

# Per process, endpoint and bucket; None where boto3 is to read.
_clients: dict[tuple[int, str, str], LeanClient | None] = {}
_lock = threading.Lock()

_PLAIN_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_DOTTED_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Access point aliases, directory buckets and the like have suffixes of their own, and rules of their own.
_SPECIAL_BUCKET = re.compile(r".*(-s3alias|--[a-z0-9-]+-s3)")
_DIRECTION = "(?:central|north|south|east|west|northeast|northwest|southeast|southwest)"
_ORDINARY_REGION = re.compile(rf"(?:us|eu|ap|ca|sa|me|af|il|mx)-{_DIRECTION}-[0-9]")
_DEFAULT_REGION = "us-east-1"  # botocore's, where none is set; a redirect tells the right one
_PORTS = {"http": 80, "https": 443}
_REDIRECTING_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_REDIRECTING_OPTIONS = ("s3", "services", "endpoint_url")


class LeanFailedError(Exception):
    """It was not read. It may be a moment later (``passing``), or no way leads there (``unreachable``)."""

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
    span: Span | None

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

    def begin(self, key: str, etag: str, span: Span | None = None) -> Asked:
        """Ask for an object, or a span of it, whose answer :meth:`finish` reads; or raise
        :class:`LeanFailedError`.
        """
        if not (etag.isascii() and etag.isprintable()):
            # It would end a header's line.
            raise LeanFailedError("the version is no ETag", passing=True)
        try:
            request = self._signer.get(object_path(self._endpoint.path_prefix, key), etag, span)
            try:
                connection = self._idle.pop()  # the one used last is the least likely to have been closed
            except IndexError:
                return self._ask_anew(request, etag, span)
            try:
                connection.send(request)
            except OSError:
                connection.close()
                return self._ask_anew(request, etag, span)
        except OSError as error:
            raise _failed(error) from error
        except self._refresh_error as error:
            raise LeanFailedError(str(error), passing=True) from error
        return Asked(self, connection, request, etag, span)

    def finish(self, asked: Asked, *, limit_bytes: int, reserve: Callable[[int], None]) -> bytes | bytearray:
        """The bytes of an object that was asked for.

        Raises:
            SampleFailedError: it has another version, is too large, or another span came.
            LeanFailedError: anything else. ``reserve`` may have been called.
        """
        kept = False
        try:
            try:
                head = asked.connection.head(partial=asked.span is not None)
            except ConnectionError:
                # The server may have closed a kept connection at any time before.
                if not asked.connection.used:
                    raise
                asked.connection.close()
                asked = self._ask_anew(asked.request, asked.etag, asked.span)
                head = asked.connection.head(partial=asked.span is not None)
            check_version(head.etag, asked.etag)
            if asked.span is not None:
                check_range(head.content_range, head.size_bytes, asked.span)
            check_size(head.size_bytes, limit_bytes)
            reserve(head.size_bytes)
            data = asked.connection.body(head)
            kept = head.keeps and len(self._idle) < _MAX_IDLE
        except UnusualAnswerError as answer:
            passing = not answer.status or fault_of(answer.status) is Fault.UNAVAILABLE
            raise LeanFailedError(f"S3 answered {answer.status}: {answer}", passing=passing) from answer
        except OSError as error:
            raise _failed(error) from error
        finally:
            if kept:
                self._idle.append(asked.connection)
            else:
                asked.connection.close()
        return data

    def close(self) -> None:
        """Close the connections that wait for the next GET."""
        while self._idle:
            self._idle.pop().close()

    def _ask_anew(self, request: bytes, etag: str, span: Span | None) -> Asked:
        connection = S3Connection(self._endpoint.host, self._endpoint.port, self._endpoint.tls)
        try:
            connection.send(request)
        except BaseException:
            connection.close()
            raise
        return Asked(self, connection, request, etag, span)


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
    place = (os.getpid(), endpoint_url, bucket)
    with _lock:
        client, _clients[place] = _clients.get(place), None
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


class NotLeanError(Exception):
    """The reason why the lean client leaves a bucket to boto3."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, how it is reached, and what precedes a key in the path of an object's URL."""

    host: str
    port: int
    host_header: str
    region: str
    path_prefix: str
    tls: ssl.SSLContext | None


def lean_endpoint(session: Any, bucket: str, endpoint_url: str) -> Endpoint:
    """The endpoint for a bucket, in a ``botocore.session.Session``; ``endpoint_url`` is empty for AWS.

    Raises:
        NotLeanError: the configuration asks for something that is botocore's to do.
        BotoCoreError: botocore's configuration cannot be read.
    """
    from botocore.utils import get_environ_proxies

    _check_configuration(session, endpoint_url)
    region = session.get_config_variable("region") or os.environ.get("AWS_REGION") or _DEFAULT_REGION
    url, prefix = _named_server(endpoint_url, bucket) if endpoint_url else _aws(region, bucket)
    if get_environ_proxies(url):
        raise NotLeanError("a proxy is set")
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    shown = f"[{host}]" if ":" in host else host
    header = shown if port == _PORTS[parts.scheme] else f"{shown}:{port}"
    tls = _tls(session) if parts.scheme == "https" else None
    return Endpoint(host, port, header, region, prefix, tls)


def _check_configuration(session: Any, endpoint_url: str) -> None:
    profile = session.get_scoped_config()
    for option in _REDIRECTING_OPTIONS:
        if profile.get(option):
            raise NotLeanError(f"the AWS profile sets {option}")
    for option in ("use_fips_endpoint", "use_dualstack_endpoint"):
        if session.get_config_variable(option):
            raise NotLeanError(f"{option} is set")
    for variable in _REDIRECTING_VARIABLES:
        if os.environ.get(variable) and not endpoint_url:
            raise NotLeanError(f"{variable} is set")


def _named_server(endpoint_url: str, bucket: str) -> tuple[str, str]:
    parts = urlsplit(endpoint_url)
    plain = parts.scheme in _PORTS and parts.hostname and parts.path in {"", "/"}
    of_aws = str(parts.hostname).endswith((".amazonaws.com", ".amazonaws.com.cn"))
    if not plain or parts.username or parts.query or of_aws:
        raise NotLeanError(f"{endpoint_url} is no plain address of a server")
    if not _DOTTED_BUCKET.fullmatch(bucket):
        raise NotLeanError(f"{bucket!r} is no plain name of a bucket")
    return endpoint_url, f"/{bucket}"


def _aws(region: str, bucket: str) -> tuple[str, str]:
    if not _ORDINARY_REGION.fullmatch(region):
        raise NotLeanError(f"the region {region} is not one of AWS's ordinary ones")
    # A dot in the bucket's name would not fit the certificate.
    if not _PLAIN_BUCKET.fullmatch(bucket) or _SPECIAL_BUCKET.fullmatch(bucket):
        raise NotLeanError(f"{bucket!r} is no plain name of a bucket")
    return f"https://{bucket}.s3.{region}.amazonaws.com", ""


def _tls(session: Any) -> ssl.SSLContext:
    """Trusts whom botocore trusts."""
    import ssl

    from botocore.httpsession import get_cert_path

    bundle = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    try:
        context = ssl.create_default_context(cafile=bundle or get_cert_path(verify=True))
    except OSError as error:
        raise NotLeanError(f"the CA bundle cannot be read: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
