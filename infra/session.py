"""AWS as these commands speak to it: in the region that the AWS CLI would take.

boto3 alone looks at ``AWS_DEFAULT_REGION`` and the configuration file, the CLI at ``AWS_REGION`` first: where
they differ, half of a stack would be made elsewhere.
"""

from __future__ import annotations

import os

import boto3

__all__ = ["NO_REGION", "session_in"]

NO_REGION = "name the region: --region, AWS_REGION or AWS_DEFAULT_REGION"


def session_in(region: str | None) -> boto3.session.Session:
    """A session in the region that is named, else the environment's."""
    return boto3.session.Session(region_name=region or os.environ.get("AWS_REGION") or None)
