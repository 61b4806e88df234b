"""Reads ``s3://`` sources, each object in exactly the version that the catalog listed.

The lean client is asked first, since boto3 alone takes half as much CPU as decoding. What it does not get,
boto3 is asked for: so every retry, redirect and refusal is boto3's. An object is asked for at most twice by
each, so that a throttled bucket keeps no function for long: what remains unavailable is the coordinator's to
try again.
"""

from __future__ import annotations

import os
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

from superdl.lambda_prefetch.s3_connection import check_range, range_of
from superdl.lambda_prefetch.s3_lean_client import Asked, LeanClient, LeanFailedError, give_up, lean_client
from superdl.lambda_prefetch.sources import SampleFailedError, check_size, check_version
from superdl.super_wire.clouds import fault_of
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from superdl.lambda_prefetch.sources import Pending, Span

__all__ = ["S3Source", "refused_by_s3", "s3_client"]

# A GET waits some 20 ms for S3, and a small image decodes in a twentieth of one.
_LEAN_THREADS, _LEAN_IN_FLIGHT = 2, 16
_BOTO3_THREADS = 16

_CONNECT_TIMEOUT_S = 2  # an address; S3 has eight, and each attempt tries all
_READ_TIMEOUT_S = 20
_ATTEMPTS = 2  # with a pause of a second at most
_MAX_THREADS = 64

_MOVED, _OTHER_VERSION = 301, 412
_FORBIDDEN = frozenset({401, 403})
_ELSEWHERE = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
# S3 says these with the status of a faulty request.
_UNAVAILABLE = frozenset({"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"})
_ARCHIVED = frozenset({"InvalidObjectState"})
_BAD_CREDENTIALS = frozenset({"InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed"}) | frozenset(
    {"ExpiredToken", "ExpiredTokenException", "SignatureDoesNotMatch"}
)

# Any: boto3 makes its clients' methods at run time, and their types are a package of their own.
_clients: dict[tuple[int, str, int], Any] = {}
_clients_lock = threading.Lock()


class S3Source:
    """One bucket.

    Args:
        bucket: its name.
        endpoint_url: the server, or empty for AWS or what boto3's own variables say.
        lean: whether the lean client may be used at all.
    """

    def __init__(self, bucket: str, *, endpoint_url: str = "", lean: bool = True) -> None:
        self._bucket = bucket
        self._endpoint_url = endpoint_url
        self._unreachable = ""
        self._lean: LeanClient | None = lean_client(bucket, endpoint_url) if lean else None

    @property
    def threads(self) -> int:
        """How many threads read it best."""
        return _BOTO3_THREADS if self._lean is None else _LEAN_THREADS

    @property
    def in_flight(self) -> int:
        """How many objects a thread may have begun."""
        return 1 if self._lean is None else _LEAN_IN_FLIGHT

    def begin(self, key: str, version: str, span: Span | None = None) -> Asked | None:
        """Ask for an object or a span of it; see :class:`superdl.lambda_prefetch.sources.ObjectSource`."""
        if self._lean is None or self._unreachable:
            return None
        try:
            return self._lean.begin(key, version.strip('"'), span)
        except LeanFailedError as failure:
            self._note(failure)
            return None

    def read(
        self,
        key: str,
        version: str,
        *,
        limit_bytes: int,
        reserve: Callable[[int], None],
        begun: Pending | None = None,
        span: Span | None = None,
    ) -> bytes | bytearray:
        """The object's bytes; see :class:`superdl.lambda_prefetch.sources.ObjectSource`."""
        etag = version.strip('"')
        asked = begun if isinstance(begun, Asked) else None
        lean = self._lean if asked is None else asked.client
        if asked is None and self._unreachable:
            raise _unreachable(self._unreachable)
        if lean is None:
            return self._through_boto3(key, etag, limit_bytes, reserve, span)
        reserved_bytes: list[int] = []

        def reserve_once(size_bytes: int) -> None:
            if not reserved_bytes:  # the version is the same, and so is the size
                reserved_bytes.append(size_bytes)
                reserve(size_bytes)

        try:
            asked = asked or lean.begin(key, etag, span)
            return lean.finish(asked, limit_bytes=limit_bytes, reserve=reserve_once)
        except LeanFailedError as failure:
            self._note(failure)
            if failure.unreachable:
                raise _unreachable(str(failure)) from failure
            passing = failure.passing
        # Out of the handler, so that what was received of the body is gone before it comes again.
        data = self._through_boto3(key, etag, limit_bytes, reserve_once, span)
        if not passing:
            # boto3 was not refused: a redirect to another region, another way of signing, ...
            self._lean = None
            give_up(self._bucket, self._endpoint_url)
        return data

    def _note(self, failure: LeanFailedError) -> None:
        if failure.unreachable:
            self._unreachable = str(failure)

    def _through_boto3(
        self, key: str, etag: str, limit_bytes: int, reserve: Callable[[int], None], span: Span | None
    ) -> bytes:
        """Read an object or a span of it; errors are those of :meth:`read`."""
        from botocore import exceptions

        client = s3_client(self._endpoint_url)
        ranged = {} if span is None else {"Range": range_of(span)}
        try:
            response = client.get_object(Bucket=self._bucket, Key=key, IfMatch=f'"{etag}"', **ranged)
            with closing(response["Body"]) as body:  # as a context it is urllib3's, with errors of its own
                check_version(response["ETag"].strip('"'), etag)  # not every server heeds If-Match
                if span is not None:
                    check_range(response.get("ContentRange", ""), response["ContentLength"], span)
                check_size(response["ContentLength"], limit_bytes)
                reserve(response["ContentLength"])
                data: bytes = body.read()
        except exceptions.ClientError as error:
            raise refused_by_s3(error.response, self._bucket, client.meta.region_name) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise SampleFailedError(
                Outcome.REFUSED, f"the function has no credentials for S3: {error}"
            ) from error
        except (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError) as error:
            raise _unreachable(str(error)) from error
        except exceptions.BotoCoreError as error:
            connection = (
                exceptions.ConnectionError,
                exceptions.HTTPClientError,
                exceptions.IncompleteReadError,
            )
            outcome = Outcome.UNAVAILABLE if isinstance(error, connection) else Outcome.SOURCE_ERROR
            raise SampleFailedError(outcome, f"S3 could not be read: {error}") from error
        return data


def refused_by_s3(response: Mapping[str, Any], bucket: str, region: str | None) -> SampleFailedError:
    """What S3's refusal means, once boto3 has followed redirections and tried again.

    Args:
        response: as botocore parsed it.
        bucket: its name.
        region: the one for which boto3 signs.
    """
    metadata = response.get("ResponseMetadata", {})
    status, error = metadata.get("HTTPStatusCode", 0), response.get("Error", {})
    code = str(error.get("Code", ""))
    words = f"S3 answered {status} {code}: {error.get('Message', '')}".rstrip(". ")
    outcome, remedy = Outcome.REFUSED, ""
    # Codes first: a status stands for several, ExpiredToken's for malformed requests too.
    if status == _MOVED or code in _ELSEWHERE:
        there = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region") or error.get("Region")
        place = f"in the region {there}" if there else "in another region"
        remedy = (
            f"the bucket {bucket} is {place}, the function asked in {region or 'none'}: deploy the "
            "function in the bucket's region, or copy the bucket"
        )
    elif code in _BAD_CREDENTIALS:
        remedy = "renew the function's credentials, or leave them to its role"
    elif code in _ARCHIVED:
        remedy = "it lies in an archive (Glacier, Deep Archive): restore it, or leave it out of the key list"
    elif status in _FORBIDDEN:
        remedy = (
            f"let the function's role do s3:GetObject on arn:aws:s3:::{bucket}/* (and kms:Decrypt with the "
            "key of objects that are encrypted with one), and see that the bucket's policy does not deny it"
        )
    elif code in _UNAVAILABLE:
        outcome = Outcome.UNAVAILABLE
    else:
        outcome = Outcome(fault_of(status).value)
        if status == _OTHER_VERSION:  # S3's words are of preconditions, which users never set
            words = "S3 has another version (ETag) of it"
    return SampleFailedError(outcome, f"{words}; {remedy}" if remedy else words)


def _unreachable(why: str) -> SampleFailedError:
    """No way leads to S3."""
    return SampleFailedError(
        Outcome.UNAVAILABLE,
        f"S3 could not be read: {why}; a function in a VPC reaches S3 by a gateway endpoint, which leads to "
        "the buckets of its own region, or by NAT",
    )


def s3_client(endpoint_url: str, *, silence_s: int = _READ_TIMEOUT_S) -> Any:
    """This process's client for an endpoint; boto3 clients may be shared by threads, but not over a fork.

    An attempt fails once the server was silent for ``silence_s``.
    """
    place = (os.getpid(), endpoint_url, silence_s)
    with _clients_lock:
        if place not in _clients:
            import boto3
            from botocore.config import Config

            config = Config(
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=silence_s,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                max_pool_connections=_MAX_THREADS,
                # The ETag already names the bytes; hashing each body again costs a part of the decode.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            _clients[place] = boto3.session.Session().client(
                "s3", endpoint_url=endpoint_url or None, config=config
            )
        return _clients[place]
