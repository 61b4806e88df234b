"""Access objects in S3 and compatible servers over persistent connections.

A GET is first sent over a lightweight connection. If that fails, it is sent again through urllib3, which
retries, follows a bucket to its region and turns error responses into :class:`ObjectError`. All other
requests, and all requests behind a proxy, use urllib3 from the start.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import ssl
import threading
import time
import weakref
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import urllib3

from superdl.super_wire.objects.base import (
    Bucket,
    Fault,
    ObjectError,
    Page,
    Span,
    check_range,
    check_version,
)
from superdl.super_wire.objects.s3_account import Account, Signer, account_of, query_of, settings_of_s3
from superdl.super_wire.objects.s3_connection import (
    Patience,
    PendingGet,
    Request,
    Route,
    UnreachableError,
    UnusualResponseError,
    headers_of,
)
from superdl.super_wire.objects.s3_responses import parse_page, refusal, region_in
from superdl.super_wire.objects.web import pool_manager, proxy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.super_wire.objects.base import Pending

# A GET from S3 takes about 20 ms, decoding a small image at most 1 ms.
_LEAN_THREADS, _LEAN_IN_FLIGHT = 2, 16
_PAGE_BYTES = 2**24  # a page lists 1,000 keys of at most 1,024 bytes each, or three times that when encoded
_REFUSAL_BYTES = 2**16
_WHOLE = 200

T = TypeVar("T")


def open_s3(name: str, patience: Patience = Patience()) -> S3Bucket:  # noqa: B008  # frozen
    """Return this process's client for a bucket, configured by the process's environment."""
    return _cached_client(name, patience, os.getpid(), settings_of_s3())


@lru_cache(maxsize=64)
def _cached_client(
    name: str, patience: Patience, process: int, settings: frozenset[tuple[str, str]]
) -> S3Bucket:
    return S3Bucket(name, account_of(process, settings), patience)


def close_connections() -> None:
    """Close the idle connections of all clients."""
    for client in list(_clients):
        client.close()


class S3Bucket(Bucket):
    """A client for a bucket. After a fork, the child opens new connections."""

    def __init__(self, bucket: str, account: Account, patience: Patience = Patience()) -> None:  # noqa: B008
        self.name = f"s3://{bucket}"
        self._bucket = bucket
        self._account = account
        self._patience = patience
        self._current: Route | None = None
        self._close_route: Callable[[], object] = lambda: None
        self._region = ""  # of the last redirect
        self._reported_region = ""
        self._lock, self.page_lock = threading.Lock(), threading.Lock()
        _clients.add(self)

    @property
    def threads(self) -> int:  # type: ignore[override]
        """The best number of threads for reading."""
        return super().threads if self._is_proxied else _LEAN_THREADS

    @property
    def in_flight(self) -> int:  # type: ignore[override]
        """The number of objects that each thread should request at once."""
        return 1 if self._is_proxied else _LEAN_IN_FLIGHT

    def begin(self, key: str, version: str, span: Span | None = None) -> Pending | None:
        """Request an object, or a span of it, for a later :meth:`read`. Returns ``None`` behind a proxy."""
        route = self._route()
        if route.proxied:
            return None
        try:
            return route.request(key, version, span)
        except OSError as error:
            raise self._no_response(error) from error

    def read(
        self,
        key: str,
        *,
        version: str = "",
        span: Span | None = None,
        before: Callable[[int], None] = lambda _: None,
        begun: Pending | None = None,
    ) -> bytes | bytearray:
        """Return the bytes of an object, or of a span of it. See ``Bucket.read``."""
        sizes: list[int] = []

        def before_once(size_bytes: int) -> None:
            if not sizes:  # the same version has the same size
                sizes.append(size_bytes)
                before(size_bytes)

        route = self._route()
        if route.proxied:
            return self._fetch(key, version, span, before_once)
        try:
            pending = begun if isinstance(begun, PendingGet) else route.request(key, version, span)
            return pending.route.finish(pending, before_once)
        except UnreachableError as error:
            raise self._no_response(error) from error
        except (OSError, UnusualResponseError):
            pass  # the general path finds out what is wrong
        # Retry outside the handler, because the exception keeps the partly received body in memory.
        return self._fetch(key, version, span, before_once, self._patience.attempts - 1)

    def head(self, key: str) -> tuple[str, int]:
        """Return the version and size of an object."""
        return self._send(Request("HEAD", key), lambda response: (_etag(response), _size(response)))

    def put(self, key: str, body: bytes | BinaryIO, *, content_type: str = "", md5: str = "") -> None:
        """Write an object."""
        if isinstance(body, bytes):
            size, digest = len(body), hashlib.sha256(body)
        else:
            body.seek(0)
            # The signature needs the digest first, so the file is read twice.
            digest = hashlib.file_digest(body, "sha256")  # type: ignore[arg-type]  # files have readinto()
            size = body.tell()
        lines = [f"content-length:{size}"]
        lines += [f"content-md5:{md5}"] if md5 else []
        lines.append(f"content-type:{content_type or 'application/octet-stream'}")
        request = Request("PUT", key, first=lines, body=body, digest=digest.hexdigest())
        self._send(request, lambda _: None)

    def delete(self, key: str) -> None:
        """Remove an object. A missing object is not an error."""
        try:
            self._send(Request("DELETE", key), lambda _: None)
        except ObjectError as error:
            if error.fault is not Fault.MISSING:
                raise

    def pages(self, prefix: str, *, folders: bool = False) -> Iterator[Page]:
        """Yield all objects below a prefix or, with ``folders``, those directly below it and its folders."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
        query |= {"delimiter": "/"} if folders else {}

        def receive(response: urllib3.BaseHTTPResponse) -> bytes:
            content = response.read(_PAGE_BYTES + 1)
            if len(content) > _PAGE_BYTES:
                raise ObjectError(Fault.FAILED, f"a page of the listing is larger than {_PAGE_BYTES:,} bytes")
            return content

        remembered = ""
        for number in itertools.count(1):
            content = self._send(Request("GET", None, query=query_of(query)), receive)
            with self.page_lock:
                page, following = parse_page(content)
            yield page
            if not following:
                return
            if following == remembered:
                raise ObjectError(Fault.FAILED, "the object store's listing repeats pages, so it never ends")
            if number.bit_count() == 1:  # at increasing intervals, to detect cycles of any length
                remembered = following
            query["continuation-token"] = following

    def region(self) -> str:
        """Return the bucket's region, or an empty string. S3 reports it even when it refuses a request."""
        request = Request("HEAD", None)
        try:
            return self._send(request, lambda response: response.headers.get("x-amz-bucket-region", ""))
        except ObjectError:
            if not self._reported_region:
                raise
        return self._reported_region

    def close(self) -> None:
        """Close the idle connections. The next request opens new ones."""
        with self._lock:
            self._current = None
            self._close_route()

    def forget(self) -> None:
        """In a forked child, drop the connections, locks and credentials, which belong to the parent."""
        self._lock, self.page_lock = threading.Lock(), threading.Lock()
        self._current, self._account = None, account_of(os.getpid(), settings_of_s3())

    def _fetch(
        self, key: str, version: str, span: Span | None, before: Callable[[int], None], attempts: int = 0
    ) -> bytes:
        def receive(response: urllib3.BaseHTTPResponse) -> bytes:
            if version:
                check_version(_etag(response), version)
            size = _size(response)
            if span is not None:
                check_range(response.headers.get("Content-Range", ""), size, span)
            elif response.status != _WHOLE:
                raise ObjectError(
                    Fault.FAILED,
                    f"the object store returned only part of the object (status {response.status})",
                )
            before(size)
            return response.read()

        request = Request("GET", key, headers=headers_of(version, span))
        return self._send(request, receive, attempts)

    def _send(
        self, request: Request, receive: Callable[[urllib3.BaseHTTPResponse], T], attempts: int = 0
    ) -> T:
        """Send a request, call ``receive`` with the response before reading its body, and return the result.

        Errors of ``receive`` are propagated. If ``attempts`` is 0, the default number applies.
        """
        attempts = attempts_left = attempts or self._patience.attempts
        followed = False
        while True:
            route = self._route()
            attempts_left -= 1
            try:
                with closing(route.send(request)) as response:
                    if response.status in {_WHOLE, 204, 206}:
                        result = receive(response)
                        response.drain_conn()
                        return result
                    content = response.read(_REFUSAL_BYTES)
                region = region_in(response.status, response.headers, content)
                self._reported_region = response.headers.get("x-amz-bucket-region") or self._reported_region
                # A redirect does not count as an attempt, but is followed only once.
                if region not in {"", route.endpoint.region} and not followed:
                    followed, attempts_left, self._region = True, attempts_left + 1, region
                    self._follow(route)
                    continue
                failed = refusal(response.status, content, self._bucket, region, request.method)
            except urllib3.exceptions.HTTPError as error:
                failed = self._no_response(error)
                failed.__cause__ = error
            if failed.fault is not Fault.UNAVAILABLE or failed.unreachable or attempts_left <= 0:
                raise failed
            time.sleep(self._patience.pause_s * 2.0 ** (attempts - attempts_left - 1))

    def _route(self) -> Route:
        route = self._current
        if route is not None:
            return route
        with self._lock:
            if self._current is None:
                self._current = self._new_route()
            return self._current

    def _new_route(self) -> Route:
        endpoint = self._account.endpoint(self._bucket, self._region)
        signer = Signer(
            self._account.credentials,
            region=endpoint.region,
            host=endpoint.netloc,
            requester_pays=self._account.requester_pays,
        )
        proxy = proxy_of(f"{endpoint.scheme}://{endpoint.netloc}")
        timeout = urllib3.Timeout(connect=self._patience.address_s, read=self._patience.silence_s)
        pool = pool_manager(proxy, endpoint.tls, timeout)
        route = Route(endpoint, signer, pool, bool(proxy), self._patience)
        self._close_route = finalizer = weakref.finalize(self, route.close)
        # The system closes the sockets at exit.
        finalizer.atexit = False
        return route

    def _follow(self, route: Route) -> None:
        """Switch to the region that S3 reported, unless another thread has already done so."""
        with self._lock:
            if self._current is route:
                close_route = self._close_route
                self._current = self._new_route()
                close_route()

    @property
    def _is_proxied(self) -> bool:
        return self._current is not None and self._current.proxied

    def _no_response(self, error: Exception) -> ObjectError:
        route = self._current
        server = route.endpoint.netloc if route else self.name
        reason = f"no object store answered at {server} ({type(error).__name__}: {error})"
        remedy = (
            "check the network (in a VPC, use a gateway endpoint for S3 in the bucket's region, or NAT), "
            "and SUPER_S3_ENDPOINT_URL or AWS_ENDPOINT_URL_S3 if the store is not AWS"
        )
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in (error, *error.args)):
            remedy = "set AWS_CA_BUNDLE to a file with the authorities to trust"
            return ObjectError(Fault.FAILED, f"{reason}: {remedy}")
        timed_out = isinstance(error, urllib3.exceptions.ConnectTimeoutError)
        refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # a subclass of the above
        unreachable = isinstance(error, UnreachableError) or (timed_out and not refused)
        return ObjectError(Fault.UNAVAILABLE, f"{reason}: {remedy}", unreachable=unreachable)


def _etag(response: urllib3.BaseHTTPResponse) -> str:
    return response.headers.get("ETag", "").strip('" ')


def _size(response: urllib3.BaseHTTPResponse) -> int:
    size = response.headers.get("Content-Length", "")
    if not size.isdigit() or "Transfer-Encoding" in response.headers:  # HTTP then ignores the length
        raise ObjectError(Fault.FAILED, "the object store did not return the object's size")
    return int(size)


_clients: weakref.WeakSet[S3Bucket] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.forget()


# A child that uses its parent's sockets would mix up their responses.
os.register_at_fork(after_in_child=_after_fork)
