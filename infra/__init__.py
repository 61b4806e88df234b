"""SUPER on AWS and on several hosts. Not part of the wheel. All AWS commands use this module."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import boto3

__all__ = ["NO_REGION", "TAG", "session_in", "stack_name"]

NO_REGION = "no region is set: use --region, AWS_REGION or AWS_DEFAULT_REGION"
# The tag on every resource of a stack. Its value is the stack's name.
TAG = "super:stack"

_NAME_MAX = 24
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def session_in(region: str | None) -> boto3.session.Session:
    """Return a session in the given region or, without one, in the region that the AWS CLI would use."""
    import boto3

    # The CLI prefers AWS_REGION, but boto3 reads only AWS_DEFAULT_REGION and its
    # file. If they differed, half of a stack would be created in a different region.
    return boto3.session.Session(region_name=region or os.environ.get("AWS_REGION") or None)


def stack_name(text: str) -> str:
    """Check a stack's name and return it, for use as an argparse ``type``."""
    if len(text) > _NAME_MAX or not _NAME.fullmatch(text):
        msg = (
            f"{text!r} is not a valid stack name: use at most {_NAME_MAX} lower-case letters, digits and "
            "single hyphens, starting with a letter, because ElastiCache ids and a host name contain it"
        )
        raise argparse.ArgumentTypeError(msg)
    return text
