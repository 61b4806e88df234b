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

from superdl.super_wire.objects.base import Fault, ObjectError, fault_of
from superdl.super_wire.redaction import without_credentials

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
_LOOK_AGAIN_S = 10.0  # pause before another search for credentials
_OURS = ("AWS_", "SUPER_S3_")
_REMEDY = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role; for "
    "public buckets, set SUPER_S3_ANONYMOUS=1"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server: its scheme, host and port, and the path prefix in the URLs of its objects."""

    scheme: str
    host: str
    port: int
    region: str
    path_prefix: str
    tls: ssl.SSLContext | None

    @property
    def netloc(self) -> str:
        """The host, with its port if that is not the default of the scheme."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == _PORTS[self.scheme] else f"{shown}:{self.port}"


def settings_of_s3() -> frozenset[tuple[str, str]]:
    """Return the variables that affect reading from S3. If they change, a new client is needed."""
    return frozenset(
        item
        for item in os.environ.items()
        if item[0].startswith(_OURS) or item[0].upper().endswith("_PROXY") or item[0] == "REQUESTS_CA_BUNDLE"
    )


@lru_cache(maxsize=4)
def account_of(_process: int, _settings: frozenset[tuple[str, str]]) -> Account:
    """Return the account of a process with these settings."""
    return Account()


class Account:
    """Settings and credentials, read from the environment at construction. Thread-safe."""

    def __init__(self) -> None:
        # All other settings come from boto3's variables and profiles.
        self.endpoint_url = os.environ.get("SUPER_S3_ENDPOINT_URL", "")
        self.anonymous = os.environ.get("SUPER_S3_ANONYMOUS", "").lower() in _ON
        self.requester_pays = os.environ.get("SUPER_S3_REQUESTER_PAYS", "").lower() in _ON
        self._lock = threading.Lock()
        self._session: Any = None
        self._credentials: Any = None
        self._look_again_s = 0.0

    @property
    def credentials(self) -> Callable[[], ReadOnlyCredentials] | None:
        """A function that returns valid credentials or raises ``ObjectError``, or ``None`` for anonymous
        access.
        """
        return None if self.anonymous else self._valid_now

    def endpoint(self, bucket: str, region: str = "") -> Endpoint:
        """Return the endpoint for a bucket, in ``region`` if S3 has reported one."""
        with self._lock, _failures():
            session = self._opened()
            own = session.get_config_variable("region") or os.environ.get("AWS_REGION") or _DEFAULT_REGION
            region = region or (_DEFAULT_REGION if own == "aws-global" else own)
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
        """Return the URL of a bucket's server, and the path of the bucket on it."""
        if bucket.endswith(_DIRECTORY_BUCKET):
            raise ObjectError(Fault.FAILED, "a directory bucket (S3 Express) is not supported")
        style = options.get("addressing_style", "auto")
        fits = _HOST_LABEL.fullmatch(bucket) is not None  # a dot would not match the certificate
        if named := self.endpoint_url or _configured_url(session):
            parts = _checked_url(named)
            if style == "virtual" and fits:
                return f"{parts.scheme}://{bucket}.{parts.netloc}", parts.path.rstrip("/")
            return named, f"{parts.path.rstrip('/')}/{quote(bucket)}"
        suffix = next(
            (suffix for start, suffix in _SUFFIXES.items() if region.startswith(start)), "amazonaws.com"
        )
        fips = "-fips" if session.get_config_variable("use_fips_endpoint") else ""
        dual = ".dualstack" if session.get_config_variable("use_dualstack_endpoint") else ""
        if str(options.get("use_accelerate_endpoint", "")).lower() == "true" and fits:
            return f"https://{bucket}.s3-accelerate{dual}.{suffix}", ""
        server = f"s3{fips}{dual}.{region}.{suffix}"
        if fits and style != "path":
            return f"https://{bucket}.{server}", ""
        return f"https://{server}", f"/{quote(bucket)}"

    def _opened(self) -> Any:
        if self._session is None:
            from botocore.session import Session

            self._session = Session()
        return self._session

    def _valid_now(self) -> ReadOnlyCredentials:
        with _failures():
            if self._credentials is None:
                with self._lock:
                    if self._credentials is None and time.monotonic() >= self._look_again_s:
                        self._credentials = self._opened().get_credentials()
                        self._look_again_s = time.monotonic() + _LOOK_AGAIN_S
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
            Fault.UNAVAILABLE, f"AWS credentials are not available at the moment: {error}"
        ) from error
    except exceptions.ClientError as error:  # from STS, which exchanges them for a role's
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        temporary = fault_of(status) is Fault.UNAVAILABLE or "Throttl" in str(error.response["Error"])
        fault = Fault.UNAVAILABLE if temporary else Fault.REFUSED
        raise ObjectError(fault, f"there are no usable AWS credentials ({error}): {_REMEDY}") from error
    except (exceptions.BotoCoreError, RuntimeError, OSError, ValueError) as error:
        # RuntimeError means expired after a refresh. OSError and ValueError come from programs and files.
        why = f"there are no usable AWS credentials ({error}): {_REMEDY}"
        raise ObjectError(Fault.REFUSED, why) from error


def _configured_url(session: Any) -> str:
    """Return the endpoint in boto3's own settings, or an empty string if there is none."""
    from botocore.configprovider import ConfiguredEndpointProvider

    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return ""
    scoped = session.get_scoped_config()
    return ConfiguredEndpointProvider(session.full_config, scoped, "s3").provide() or ""


def _checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and parts.scheme in _PORTS and parts.hostname
        (parts.hostname or "").encode("idna")  # as the resolver will do
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or parts.username or parts.query:
        raise ObjectError(
            Fault.FAILED,
            "the endpoint of the object store (SUPER_S3_ENDPOINT_URL, AWS_ENDPOINT_URL_S3) must be a URL "
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
            Fault.FAILED, f"the CA bundle {bundle} cannot be read ({error}): correct AWS_CA_BUNDLE"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


# The digest of a request without a body.
NO_BODY = hashlib.sha256(b"").hexdigest()
_PATH_SAFE = "/~"  # besides letters, digits and _.-, S3 does not encode these in a key
_AS_LISTED = "surrogateescape"  # for bytes of a key that are not UTF-8


def object_path(prefix: str, key: str) -> str:
    """Return the URL path of an object, percent-encoded once as S3 signs it, with slashes kept."""
    return f"{prefix}/{quote(key, safe=_PATH_SAFE, errors=_AS_LISTED)}"


def query_of(fields: Mapping[str, str]) -> str:
    """Return the query string of a URL, with the fields in signing order."""
    return "&".join(
        f"{name}={quote(fields[name], safe='-_.~', errors=_AS_LISTED)}" for name in sorted(fields)
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
    """Builds the header lines of requests signed with AWS Signature Version 4. Thread-safe.

    ``credentials`` is called at most once a second and returns the valid credentials. ``None`` means
    no signatures. ``host`` is the value of the Host header, with the port if it is not the default.
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
        """Return the header lines of a request, including the signature.

        Raises ``ObjectError`` if there are no credentials. ``path`` and ``query`` are made by
        :func:`object_path` and :func:`query_of`. ``headers`` are further lines such as ``range:bytes=0-9``,
        sorted, whose names come after ``host`` and before ``x-amz``. Those in ``before_host`` come before
        ``host``. ``digest`` is the SHA-256 of the body.
        """
        if self._credentials is None:
            return [*before_host, self._host_line, *headers, *self._payer]
        now = self._now(self._credentials)
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

    def _now(self, credentials: Callable[[], ReadOnlyCredentials]) -> _Moment:
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
