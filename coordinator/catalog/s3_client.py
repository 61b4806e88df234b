"""The coordinator's own S3 client, with bounded waits, and what its failures mean.

Functions have a client of their own; this one lists, reads key lists and asks for regions. boto3 takes a
fifth of a coordinator's start to import, so that only who has to do with S3 imports it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import (
    SourceBusyError,
    SourceError,
    SourceForbiddenError,
    SourceNotFoundError,
)
from superdl.super_wire.objects import Fault, fault_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore import exceptions

__all__ = ["MAX_CONNECTIONS", "make_s3_client", "no_credentials", "s3_failures"]

MAX_CONNECTIONS = 16
"""Threads that may use one client at a time without waiting for a connection."""

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 30
_ATTEMPTS = 3

_NOT_FOUND = frozenset({"404", "NoSuchBucket", "NoSuchKey"})
_FORBIDDEN = frozenset(
    {"401", "403", "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken"}
    | {"SignatureDoesNotMatch", "UnauthorizedAccess"}
)


def no_credentials() -> tuple[type[Exception], ...]:
    """What botocore raises where it finds no usable credentials."""
    from botocore import exceptions

    return (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.ProfileNotFound,
        exceptions.TokenRetrievalError,
        exceptions.SSOError,
    )


def make_s3_client() -> Any:
    """A new client of boto3, for any number of threads; ``SourceError`` if the endpoint is no URL.

    The endpoint is ``SUPER_S3_ENDPOINT_URL``, else what boto3's own settings say.
    """
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=MAX_CONNECTIONS,
        response_checksum_validation="when_required",  # other stores than AWS send none
    )
    # A session of its own: boto3's default session may not be used by two threads at once.
    session = boto3.session.Session()
    # Listing works across regions, signing wants one named. Containers have AWS_REGION, which boto3 ignores.
    region = session.region_name or os.environ.get("AWS_REGION") or "us-east-1"
    endpoint = os.environ.get("SUPER_S3_ENDPOINT_URL") or None
    try:
        return session.client("s3", config=config, endpoint_url=endpoint, region_name=region)
    except ValueError as error:
        raise SourceError(
            f"the endpoint of the object store is a URL such as http://127.0.0.1:9000: {error}"
        ) from error


@contextmanager
def s3_failures(url: str) -> Iterator[None]:
    """Turn botocore's errors into ours, each with ``url``, the reason and a remedy."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _from_answer(error, url) from error
    except no_credentials() as error:
        raise SourceError(
            f"{url}: the coordinator has no usable AWS credentials ({error}): set AWS_ACCESS_KEY_ID and so "
            "on, or AWS_PROFILE where it runs, or give its machine a role"
        ) from error
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        raise SourceError(
            f"{url}: no object store answered within {_ATTEMPTS} attempts ({error}): check the network, and "
            "SUPER_S3_ENDPOINT_URL or AWS_ENDPOINT_URL_S3 if the store is not AWS"
        ) from error
    except exceptions.BotoCoreError as error:
        raise SourceError(f"{url}: the S3 client failed: {error}") from error


def _from_answer(error: exceptions.ClientError, url: str) -> SourceError:
    answer: dict[str, Any] = dict(error.response.get("Error", {}))
    code, text = str(answer.get("Code", "")), str(answer.get("Message", "") or error)
    if code in _NOT_FOUND:
        return SourceNotFoundError(
            f"{url} does not exist ({code}: {text}): check the name, and the endpoint if the store is not AWS"
        )
    if code in _FORBIDDEN:
        return SourceForbiddenError(
            f"the coordinator may not read {url} ({code}: {text}): grant its credentials s3:ListBucket "
            "on the bucket and s3:GetObject on its objects, or give it others"
        )
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    kind = SourceBusyError if fault_of(status) is Fault.UNAVAILABLE else SourceError
    return kind(f"{url}: the object store refused ({code}: {text})")
