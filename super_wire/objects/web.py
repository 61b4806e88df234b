"""Web servers as ``https://host`` buckets, and the HTTP requests and proxies of all clients."""

from __future__ import annotations

import os
import re
import ssl
import time
from contextlib import closing, contextmanager
from functools import lru_cache
from http.client import responses
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import urllib3

from superdl.super_wire.credentials import is_loopback
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.objects.base import (
    ATTEMPTS,
    CONTENT_RANGE,
    Bucket,
    Fault,
    ObjectError,
    check_range,
    check_version,
    fault_of,
)
from superdl.super_wire.source_url import WEB_BUCKET, split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import NoReturn

    from superdl.super_wire.objects.base import Span

_OK, _PARTIAL = 200, 206
_TIMEOUT = urllib3.Timeout(connect=5.0, read=20.0)
_PAUSE_S = 0.1  # doubled for each attempt
_REDIRECTS = 5
_CONNECTIONS = 32
_DRAINED_BYTES = 2**16  # read from an unused body, to keep the connection
_VERSION_BYTES = 200
_SHOWN = 200


def may_read(server: str, hosts: tuple[str, ...] | None) -> bool:
    """Return whether ``https://host`` is in ``hosts`` or, if that is ``None``, may be read by default."""
    # Internal services, such as a cloud's metadata, have no certificate for their name. So require
    # TLS, except on this machine.
    if hosts is not None:
        return server in hosts
    match = WEB_BUCKET.fullmatch(server)
    return match is not None and (match[1] == "https" or is_loopback(match[2]))


class Site(Bucket):
    """A web server. Versions are ETags, or else the size and the modification time in whole seconds."""

    def __init__(self, bucket: str, hosts: tuple[str, ...] | None) -> None:
        self.name, self._hosts = bucket, hosts
        self._check(bucket, "")

    def _fetch(self, key: str, version: str, span: Span | None, before: Callable[[int], None]) -> bytes:
        with self._send("GET", key, range_header(span)) as response:
            if version:
                check_version(_version(response), version)
            return response.content(span, before)

    def head(self, key: str) -> tuple[str, int]:
        """Return the version and size of an object."""
        with self._send("HEAD", key, {}) as response:
            return _version(response), response.size

    def pages(self, prefix: str, *, folders: bool = False) -> NoReturn:  # noqa: ARG002
        """Raise ``ConfigError``, because web servers have no listings."""
        raise ConfigError(
            f"{self.name}/{prefix}: web servers cannot be listed. Name the samples in a key_list, and pass "
            "shards to superdl index one by one"
        )

    @contextmanager
    def _send(self, method: str, key: str, headers: Mapping[str, str]) -> Iterator[Response]:
        url = f"{self.name}/{checked_path(key)}"
        with send(method, url, headers, self._may_follow) as response:
            if not response.good:
                raise response.failure()
            yield response

    def _may_follow(self, url: str) -> bool:
        server = server_of(url)
        if self.name.startswith("https:") and not server.startswith("https:"):
            raise ObjectError(Fault.REFUSED, f"redirected to {server}, which does not use TLS")
        self._check(server, "redirected to ")
        return True

    def _check(self, server: str, prefix: str) -> None:
        if not may_read(server, self._hosts):
            reason = "does not use TLS and is not one" if self._hosts is None else "is not one"
            raise ObjectError(
                Fault.REFUSED,
                f"{prefix}{server}, which {reason} of the servers in http_hosts (SUPER_HTTP_HOSTS)",
            )


class Response(NamedTuple):
    """A server's response. ``target`` is the URL of a redirect that was not followed, otherwise empty."""

    url: str
    status: int
    headers: Mapping[str, str]
    read: Callable[..., bytes]
    target: str

    @property
    def good(self) -> bool:
        """Whether the response contains an object, or a span of one."""
        return self.status in {_OK, _PARTIAL}

    @property
    def size(self) -> int:
        """The size of the whole object."""
        match = CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
        return int(match[3]) if match else self.number("Content-Length")

    def number(self, header: str) -> int:
        """Return the size in a header. Raises ``ObjectError`` if it is missing or invalid."""
        text = self.headers.get(header, "")
        if not re.fullmatch("[0-9]{1,18}", text):
            raise ObjectError(Fault.FAILED, f"the server sent an invalid {header} header: {text[:_SHOWN]!r}")
        return int(text)

    def etag(self, header: str = "ETag") -> str:
        """Return the ETag without its quotes. A weak ETag is treated as a strong one."""
        return self.headers.get(header, "").removeprefix("W/").strip('"')

    def failure(self, remedy: str = "") -> ObjectError:
        """Return the error for a response without an object."""
        reason = f"{urlsplit(self.url).netloc} answered {self.status} {responses.get(self.status, '')}"
        return ObjectError(fault_of(self.status), reason + remedy)

    def content(self, span: Span | None, before: Callable[[int], None]) -> bytes:
        """Return the body, which must be the requested span. Calls ``before`` as ``Bucket.read`` does."""
        size = self.number("Content-Length")
        if "Transfer-Encoding" in self.headers:  # the length is invalid then
            raise ObjectError(Fault.FAILED, "the server sends both Transfer-Encoding and Content-Length")
        if (packed := self.headers.get("Content-Encoding", "identity")) != "identity":
            raise ObjectError(
                Fault.FAILED, f"the response is compressed ({packed[:_SHOWN]}), which the request forbids"
            )
        if (span is not None) is not (self.status == _PARTIAL):
            raise ObjectError(Fault.FAILED, "the server does not support range requests, and ignores Range")
        if span is not None:
            check_range(self.headers.get("Content-Range", ""), size, span)
        before(size)
        if len(data := self.read()) != size:
            raise ObjectError(Fault.FAILED, f"received only {len(data)} of {size} bytes")
        return data


def server_of(url: str) -> str:
    """Return the server in a URL, as ``https://host``. Raises ``ObjectError`` if the URL is invalid."""
    try:
        parts = urlsplit(url)
        return split_url(f"{parts.scheme}://{parts.netloc}", "a redirect")[0]
    except (ValueError, ConfigError) as error:
        raise ObjectError(Fault.FAILED, f"redirected to an invalid URL: {error}") from error


def checked_path(key: str) -> str:
    """Return a key as a URL path. Raises ``ObjectError`` if it could resolve to another path."""
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise ObjectError(Fault.REFUSED, "the key is not a path, because it has an empty part, '.' or '..'")
    return quote(key)


def range_header(span: Span | None) -> dict[str, str]:
    """Return the Range header for a span, or no headers if ``span`` is None."""
    return {} if span is None else {"Range": span.header}


@contextmanager
def send(
    method: str, url: str, headers: Mapping[str, str], follow: Callable[[str], bool]
) -> Iterator[Response]:
    """Send a request and yield the response with its body still unread.

    ``follow`` is called with a redirect's URL and returns whether to follow it with the same headers. If not,
    the redirect is the response. Connection failures become ``ObjectError``, even within the block.
    """
    # Refuse compression, because ranges and lengths must count the stored bytes.
    sent = {**headers, "Accept-Encoding": "identity", "User-Agent": "superdl"}
    try:
        for _ in range(_REDIRECTS + 1):
            with closing(_send_with_retries(method, url, sent)) as raw:
                location = raw.get_redirect_location()
                target = urljoin(url, location) if location else ""
                response = Response(url, raw.status, raw.headers, raw.read, target)
                if method == "HEAD" or not response.good:
                    raw.read(_DRAINED_BYTES)
                if not target or not follow(target):
                    yield response
                    return
            url = target
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:  # ValueError: not a URL
        reason = re.sub(r"[?]\S*", "?***", str(error))[:_SHOWN]  # the query may contain a signature
        is_permanent = isinstance(error, (ValueError, urllib3.exceptions.SSLError))
        fault = Fault.FAILED if is_permanent else Fault.UNAVAILABLE
        raise ObjectError(fault, f"{urlsplit(url).netloc}: {type(error).__name__}: {reason}") from None
    raise ObjectError(Fault.FAILED, f"redirected more than {_REDIRECTS} times")


def _send_with_retries(method: str, url: str, headers: Mapping[str, str]) -> Any:
    # urllib3's own retries would read the whole body of a refusal.
    options: dict[str, Any] = {"redirect": False, "retries": False, "preload_content": False}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            response = _pool(os.getpid(), proxy_of(url)).request(
                method, url, headers=headers, decode_content=False, **options
            )
            if fault_of(response.status) is not Fault.UNAVAILABLE or attempt == ATTEMPTS:
                return response
            response.close()
        except urllib3.exceptions.HTTPError:
            if attempt == ATTEMPTS:
                raise
        time.sleep(_PAUSE_S * 2.0**attempt)
    raise AssertionError  # the last attempt returns or raises


def proxy_of(url: str) -> str:
    """Return the URL of the proxy for a server, or an empty string for a direct connection."""
    parts = urlsplit(url)
    if is_loopback(parts.hostname or "") or proxy_bypass_environment(parts.netloc):
        return ""
    return str(getproxies_environment().get(parts.scheme, ""))


def pool_manager(proxy: str, tls: ssl.SSLContext | None, timeout: urllib3.Timeout) -> urllib3.PoolManager:
    """Return a new thread-safe connection pool."""
    options: dict[str, Any] = {"ssl_context": tls, "timeout": timeout}
    options |= {"num_pools": _CONNECTIONS, "maxsize": _CONNECTIONS}
    if not proxy:
        return urllib3.PoolManager(**options)
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=login)
    return urllib3.ProxyManager(parts.geturl(), **options)


@lru_cache(maxsize=4)
def _pool(_process: int, proxy: str) -> urllib3.PoolManager:
    return pool_manager(proxy, ssl.create_default_context(), _TIMEOUT)


def _version(response: Response) -> str:
    etag, changed = response.etag(), response.headers.get("Last-Modified", "")
    if not 0 < len(etag or changed) <= _VERSION_BYTES:
        reason = "the server sends neither ETag nor Last-Modified, so versions cannot be distinguished"
        raise ObjectError(Fault.FAILED, reason)
    return etag or f"{response.size} bytes, {changed}"
