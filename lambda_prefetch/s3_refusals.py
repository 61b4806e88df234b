"""What becomes of a sample whose object boto3 did not get: S3's words, their reason and the remedy.

The message goes to the operator of a training job, who may not be whoever set the bucket up: so it says what
to grant to whom, and where a bucket is that the function does not reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.lambda_prefetch.failures import SampleFailedError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["from_answer", "from_client", "unreachable"]

_MEANINGS = {404: Outcome.MISSING, 412: Outcome.CHANGED, 401: Outcome.REFUSED, 403: Outcome.REFUSED}
_ELSEWHERE = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
_ARCHIVED = "InvalidObjectState"
_MOVED = 301
_FORBIDDEN = frozenset({401, 403})
_BAD_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)


def from_answer(response: Mapping[str, Any], bucket: str, region: str | None) -> SampleFailedError:
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
    if status == _MOVED or code in _ELSEWHERE:
        there = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region") or error.get("Region")
        place = f"in the region {there}" if there else "in another region"
        remedy = (
            f"the bucket {bucket} is {place}, the function asked in {region or 'none'}: deploy the "
            "function in the bucket's region, or copy the bucket"
        )
        return SampleFailedError(Outcome.REFUSED, f"{words}; {remedy}")
    # Codes first: a status stands for several, ExpiredToken's for malformed requests too.
    if code in _BAD_CREDENTIALS:
        remedy = "renew the function's credentials, or leave them to its role"
        return SampleFailedError(Outcome.REFUSED, f"{words}; {remedy}")
    if code == _ARCHIVED:
        remedy = "it lies in an archive (Glacier, Deep Archive): restore it, or leave it out of the key list"
        return SampleFailedError(Outcome.REFUSED, f"{words}; {remedy}")
    if status in _FORBIDDEN:
        remedy = (
            f"let the function's role do s3:GetObject on arn:aws:s3:::{bucket}/* (and kms:Decrypt with the "
            "key of objects that are encrypted with one), and see that the bucket's policy does not deny it"
        )
        words = f"{words}; {remedy}"
    return SampleFailedError(_MEANINGS.get(status, Outcome.SOURCE_ERROR), words)


def from_client(error: Exception) -> SampleFailedError:
    """What went wrong before S3 could answer."""
    from botocore import exceptions

    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        return SampleFailedError(Outcome.REFUSED, f"the function has no credentials for S3: {error}")
    if isinstance(error, (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError)):
        return unreachable(str(error))
    return SampleFailedError(Outcome.SOURCE_ERROR, f"S3 could not be read: {error}")


def unreachable(why: str) -> SampleFailedError:
    """No way leads to S3."""
    return SampleFailedError(
        Outcome.SOURCE_ERROR,
        f"S3 could not be read: {why}; a function in a VPC reaches S3 by a gateway endpoint, which leads to "
        "the buckets of its own region, or by NAT",
    )
