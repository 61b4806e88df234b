"""Access to S3: settings, credentials, endpoints and signed requests."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit

from superdl.super_wire.display import without_credentials
from superdl.super_wire.objects.base import Fault, ObjectError, fault_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from botocore.credentials import ReadOnlyCredentials


_DEFAULT_REGION = "us-east-1"  # boto3's default; redirects report the right one
_SUFFIXES = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "us-isof-": "csp.hci.ic.gov",
    "eu-isoe-": "cloud.adc-e.uk",
}
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_DIRECTORY_BUCKET = "--x-s3"
_PORTS = {"http": 80, "https": 443}
_ON = frozenset({"1", "true", "yes"})
_SEARCH_AGAIN_S = 10.0  # pause before another search for credentials
_REMEDY = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role; for "
    "public buckets, set SUPER_S3_ANONYMOUS=1"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An S3 server, and the path that precedes an object's key in its URLs."""

    scheme: str
    host: str
    port: int
    region: str
    path_prefix: str
    tls: ssl.SSLContext | None

    @property
    def netloc(self) -> str:
        """The host, and the port unless it is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def settings_of_s3() -> frozenset[tuple[str, str]]:
    """Return the environment variables that an S3 client depends on."""
    return frozenset(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(("AWS_", "SUPER_S3_", "REQUESTS_CA_BUNDLE")) or name.upper().endswith("_PROXY")
    )


@lru_cache(maxsize=4)
def account_of(_process: int, _settings: frozenset[tuple[str, str]]) -> Account:
    """Return the account of a process with these settings."""
    return Account()


class Account:
    """Settings and credentials, read from the environment on construction. Thread-safe."""

    def __init__(self) -> None:
        # All other settings come from boto3's own variables and profiles.
        self.endpoint_url = os.environ.get("SUPER_S3_ENDPOINT_URL", "")
        self.anonymous = os.environ.get("SUPER_S3_ANONYMOUS", "").lower() in _ON
        self.requester_pays = os.environ.get("SUPER_S3_REQUESTER_PAYS", "").lower() in _ON
        self._lock = threading.Lock()
        self._session: Any = None
        self._credentials: Any = None
        self._search_again_s = 0.0

    @property
    def credentials(self) -> Callable[[], ReadOnlyCredentials] | None:
        """A function that returns valid credentials or raises ``ObjectError``, or ``None`` if anonymous."""
        return None if self.anonymous else self._valid_credentials

    def endpoint(self, bucket: str, region: str = "") -> Endpoint:
        """Return the endpoint for a bucket, in ``region`` if S3 has reported one."""
        with self._lock, _failures():
            session = self._open_session()
            region = region or session.get_config_variable("region") or os.environ.get("AWS_REGION", "")
            region = _DEFAULT_REGION if region in {"", "aws-global"} else region
            if not _REGION.fullmatch(region):
                raise ObjectError(
                    Fault.FAILED, f"the region must be a name such as {_DEFAULT_REGION}, not {region!r}"
                )
            options = session.get_scoped_config().get("s3")
            options = options if isinstance(options, dict) else {}
            url, prefix = self._location(session, bucket, region, options)
            parts = urlsplit(url)
            tls = _tls(session) if parts.scheme == "https" else None
        port = parts.port or _PORTS[parts.scheme]
        return Endpoint(parts.scheme, parts.hostname or "", port, region, prefix, tls)

    def _location(self, session: Any, bucket: str, region: str, options: dict[str, str]) -> tuple[str, str]:
        """Return the URL of a bucket's server, and the bucket's path on it."""
        if bucket.endswith(_DIRECTORY_BUCKET):
            raise ObjectError(Fault.FAILED, "a directory bucket (S3 Express) is not supported")
        style = options.get("addressing_style", "auto")
        is_label = _HOST_LABEL.fullmatch(bucket) is not None  # with a dot, no certificate would match
        if url := self.endpoint_url or _configured_url(session):
            parts = _checked_url(url)
            if style == "virtual" and is_label:
                return f"{parts.scheme}://{bucket}.{parts.netloc}", parts.path.rstrip("/")
            return url, f"{parts.path.rstrip('/')}/{quote(bucket)}"
        suffix = next(
            (suffix for start, suffix in _SUFFIXES.items() if region.startswith(start)), "amazonaws.com"
        )
        fips = "-fips" if session.get_config_variable("use_fips_endpoint") else ""
        dual = ".dualstack" if session.get_config_variable("use_dualstack_endpoint") else ""
        if str(options.get("use_accelerate_endpoint", "")).lower() == "true" and is_label:
            return f"https://{bucket}.s3-accelerate{dual}.{suffix}", ""
        server = f"s3{fips}{dual}.{region}.{suffix}"
        if is_label and style != "path":
            return f"https://{bucket}.{server}", ""
        return f"https://{server}", f"/{quote(bucket)}"

    def _open_session(self) -> Any:
        if self._session is None:
            from botocore.session import Session

            self._session = Session()
        return self._session

    def _valid_credentials(self) -> ReadOnlyCredentials:
        with _failures():
            if self._credentials is None:
                with self._lock:
                    if self._credentials is None and time.monotonic() >= self._search_again_s:
                        self._credentials = self._open_session().get_credentials()
                        self._search_again_s = time.monotonic() + _SEARCH_AGAIN_S
            if self._credentials is None:
                raise ObjectError(Fault.REFUSED, f"there are no usable AWS credentials: {_REMEDY}")
            # boto3's chain refreshes them before they expire.
            frozen: ReadOnlyCredentials = self._credentials.get_frozen_credentials()
            return frozen


@contextmanager
def _failures() -> Iterator[None]:
    from botocore import exceptions

    try:
        yield
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        raise ObjectError(
            Fault.UNAVAILABLE, f"the service for AWS credentials is not available: {error}"
        ) from error
    except exceptions.ClientError as error:  # from STS, which exchanges them for a role's
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        temporary = fault_of(status) is Fault.UNAVAILABLE or "Throttl" in str(error.response["Error"])
        fault = Fault.UNAVAILABLE if temporary else Fault.REFUSED
        raise ObjectError(fault, f"there are no usable AWS credentials ({error}): {_REMEDY}") from error
    except (exceptions.BotoCoreError, RuntimeError, OSError, ValueError) as error:
        # RuntimeError: still expired after a refresh. OSError and ValueError: a bad program or file.
        raise ObjectError(
            Fault.REFUSED, f"there are no usable AWS credentials ({error}): {_REMEDY}"
        ) from error


def _configured_url(session: Any) -> str:
    """Return the endpoint in boto3's own settings, if any."""
    from botocore.configprovider import ConfiguredEndpointProvider

    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return ""
    scoped = session.get_scoped_config()
    return ConfiguredEndpointProvider(session.full_config, scoped, "s3").provide() or ""


def _checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_usable = parts.port != 0 and parts.scheme in _PORTS and parts.hostname
        (parts.hostname or "").encode("idna")  # as the resolver will do
    except ValueError:
        parts, is_usable = urlsplit(""), False
    if not is_usable or parts.username or parts.query:
        raise ObjectError(
            Fault.FAILED,
            "the object store's endpoint (SUPER_S3_ENDPOINT_URL, AWS_ENDPOINT_URL_S3) must be a URL "
            f"such as http://127.0.0.1:9000, not {without_credentials(url)!r}",
        )
    return parts


def _tls(session: Any) -> ssl.SSLContext:
    import ssl

    from botocore.httpsession import get_cert_path

    bundle = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    try:
        context = ssl.create_default_context(cafile=bundle or get_cert_path(verify=True))
    except OSError as error:
        raise ObjectError(
            Fault.FAILED, f"the CA bundle {bundle} cannot be read ({error}): set AWS_CA_BUNDLE to a PEM file"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


# The digest of a request without a body.
NO_BODY = hashlib.sha256(b"").hexdigest()
_PATH_SAFE = "/~"  # S3 encodes neither these in a key, nor letters, digits and _.-
_SURROGATES = "surrogateescape"  # stand for bytes of a key that are not UTF-8


def object_path(prefix: str, key: str) -> str:
    """Return an object's URL path, percent-encoded except for slashes, as S3 signs it."""
    return f"{prefix}/{quote(key, safe=_PATH_SAFE, errors=_SURROGATES)}"


def query_of(fields: Mapping[str, str]) -> str:
    """Return the query string with these fields, in signing order."""
    return "&".join(
        f"{name}={quote(fields[name], safe='-_.~', errors=_SURROGATES)}" for name in sorted(fields)
    )


def request_bytes(method: str, path: str, lines: Sequence[str]) -> bytes:
    """Return a complete request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


@dataclass(frozen=True, slots=True, repr=False)  # contains a secret
class _Moment:
    """The part of a signature that stays constant for a second."""

    second: int
    date_line: str
    scope: str
    key: bytes
    access_key: str
    more_lines: tuple[str, ...]


class Signer:
    """A thread-safe signer of requests with AWS Signature Version 4.

    ``credentials`` is called at most once a second and returns valid credentials. If ``None``, requests
    are not signed. ``host`` is the value of the Host header, with the port if it is not the default.
    """

    def __init__(
        self,
        credentials: Callable[[], ReadOnlyCredentials] | None,
        *,
        region: str,
        host: str,
        requester_pays: bool = False,
    ) -> None:
        self._credentials = credentials
        self._region = region
        self._host_line = f"host:{host}"
        self._payer = ("x-amz-request-payer:requester",) if requester_pays else ()
        self._moment: _Moment | None = None

    def lines(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        headers: Sequence[str] = (),
        before_host: Sequence[str] = (),
        digest: str = NO_BODY,
    ) -> list[str]:
        """Return a request's header lines, including the signature.

        ``path`` and ``query`` come from :func:`object_path` and :func:`query_of`. ``headers`` are other
        lines such as ``range:bytes=0-9``, sorted, with names between ``host`` and ``x-amz``. The names in
        ``before_host`` sort before ``host``. ``digest`` is the SHA-256 of the body. Raises ``ObjectError``
        if there are no credentials.
        """
        if self._credentials is None:
            return [*before_host, self._host_line, *headers, *self._payer]
        now = self._moment_now(self._credentials)
        lines = [*before_host, self._host_line, *headers, f"x-amz-content-sha256:{digest}", now.date_line]
        lines += now.more_lines
        names = ";".join([line[: line.index(":")] for line in lines])
        signed = "\n".join(lines)
        canonical = f"{method}\n{path}\n{query}\n{signed}\n\n{names}\n{digest}"
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{now.date_line[11:]}\n{now.scope}\n{hashed}"
        signature = hmac.digest(now.key, to_sign.encode(), "sha256").hex()
        lines.append(
            f"authorization:AWS4-HMAC-SHA256 Credential={now.access_key}/{now.scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return lines

    def _moment_now(self, credentials: Callable[[], ReadOnlyCredentials]) -> _Moment:
        second, moment = int(time.time()), self._moment
        if moment is not None and moment.second == second:
            return moment
        frozen = credentials()
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = date[:8]
        key = f"AWS4{frozen.secret_key}".encode()
        for word in (day, self._region, "s3", "aws4_request"):
            key = hmac.digest(key, word.encode(), "sha256")
        scope = f"{day}/{self._region}/s3/aws4_request"
        token = (f"x-amz-security-token:{frozen.token}",) if frozen.token else ()
        headers = (*self._payer, *token)
        moment = _Moment(second, f"x-amz-date:{date}", scope, key, frozen.access_key or "", headers)
        self._moment = moment  # if two threads compute it, the results are equal
        return moment
