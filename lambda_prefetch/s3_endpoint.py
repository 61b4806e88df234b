"""Where a bucket's objects are asked for by the lean client, and whether it may ask at all.

The lean client knows the usual two: a bucket of AWS's ordinary regions by its virtual host, and a server that
the operator named by the bucket's path. Whatever else botocore's configuration can mean (proxies, access
points, acceleration, FIPS, dual stack, ...) is botocore's own to follow, so :func:`lean_endpoint` refuses it
and :mod:`superdl.lambda_prefetch.s3_boto3` reads that bucket.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

__all__ = ["Endpoint", "NotLeanError", "lean_endpoint"]

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
    """The endpoint for a bucket.

    Args:
        session: a ``botocore.session.Session``.
        bucket: the bucket's name.
        endpoint_url: the server that the operator named, or empty for AWS.

    Raises:
        NotLeanError: the configuration asks for something that is botocore's to do.
        BotoCoreError: botocore's configuration cannot be read.
    """
    _check_configuration(session, endpoint_url)
    region = session.get_config_variable("region") or _DEFAULT_REGION
    url, prefix = _named_server(endpoint_url, bucket) if endpoint_url else _aws(region, bucket)
    _check_proxies(url)
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


def _check_proxies(url: str) -> None:
    from botocore.utils import get_environ_proxies

    if get_environ_proxies(url):
        raise NotLeanError("a proxy is set")


def _named_server(endpoint_url: str, bucket: str) -> tuple[str, str]:
    parts = urlsplit(endpoint_url)
    strange = parts.scheme not in _PORTS or not parts.hostname or parts.username or parts.query
    if (
        strange
        or parts.path not in {"", "/"}
        or str(parts.hostname).endswith((".amazonaws.com", ".amazonaws.com.cn"))
    ):
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
