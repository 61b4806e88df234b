"""In which region a bucket lies, as S3 tells even those whom it refuses everything else."""

from __future__ import annotations

from typing import Any

from botocore import exceptions

from superdl.coordinator.catalog.s3_client import make_s3_client, s3_failures

__all__ = ["bucket_region"]

_HEADER = "x-amz-bucket-region"


def bucket_region(bucket: str) -> str:
    """The region of a bucket; empty where the store tells none, as others than AWS may.

    Raises:
        SourceError: the store does not answer.
    """
    with s3_failures(f"s3://{bucket}"):
        client = make_s3_client()
        try:
            answer: dict[str, Any] = client.head_bucket(Bucket=bucket)
        except exceptions.ClientError as error:
            answer = dict(error.response)
        finally:
            client.close()
    return str(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(_HEADER, ""))
