"""Reads objects through boto3, which knows every configuration, redirect and retry, and S3's own words.

The client is made once per process, when the first object needs it; credentials, region and proxies come from
boto3's own chain. Every wait and every retry is bounded here; what remains failed is the coordinator's to try
again. When boto3 is asked, and when the lean client, is :mod:`superdl.lambda_prefetch.s3_source`'s, what its
errors mean :mod:`superdl.lambda_prefetch.s3_refusals`'s.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from superdl.lambda_prefetch.s3_refusals import from_answer, from_client
from superdl.lambda_prefetch.sources import check_size, check_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Boto3Client"]

_CONNECT_TIMEOUT_S = 2  # an address; S3 has eight, and each attempt tries all
_READ_TIMEOUT_S = 20
_ATTEMPTS = 3
_MAX_THREADS = 64

# Any: boto3 makes its clients' methods at run time, and their types are a package of their own.
_clients: dict[tuple[int, str], Any] = {}
_clients_lock = threading.Lock()


class Boto3Client:
    """One bucket; ``endpoint_url`` is empty for AWS or what boto3's own variables say."""

    def __init__(self, bucket: str, endpoint_url: str) -> None:
        self._bucket = bucket
        self._client = _client(endpoint_url)

    def read(self, key: str, etag: str, *, limit_bytes: int, reserve: Callable[[int], None]) -> bytes:
        """The object's bytes; arguments and errors as those of
        :class:`superdl.lambda_prefetch.sources.ObjectSource`.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            response = self._client.get_object(Bucket=self._bucket, Key=key, IfMatch=f'"{etag}"')
            with response["Body"] as body:
                _check(response, etag, limit_bytes)
                reserve(response["ContentLength"])
                data: bytes = body.read()
        except ClientError as error:
            raise from_answer(error.response, self._bucket, self._client.meta.region_name) from error
        except BotoCoreError as error:
            raise from_client(error) from error
        return data


def _check(response: Mapping[str, Any], etag: str, limit_bytes: int) -> None:
    # Not every server that speaks S3 heeds If-Match.
    check_version(response["ETag"].strip('"'), etag)
    check_size(response["ContentLength"], limit_bytes)


def _client(endpoint_url: str) -> Any:
    """This process's client for an endpoint; boto3 clients may be shared by threads, but not over a fork."""
    place = (os.getpid(), endpoint_url)
    with _clients_lock:
        client = _clients.get(place)
        if client is None:
            import boto3
            from botocore.config import Config

            config = Config(
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                max_pool_connections=_MAX_THREADS,
                # The ETag already names the bytes; hashing each body again costs as much as a part of the
                # decode.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            client = boto3.session.Session().client("s3", endpoint_url=endpoint_url or None, config=config)
            _clients[place] = client
        return client
