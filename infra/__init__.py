"""SUPER on AWS: the template, and the commands before it (:mod:`infra.make_secrets`) and after it
(:mod:`infra.teardown`), which docs/deploy/aws.md explains; and :mod:`infra.launcher` for runs on several
hosts (docs/deploy/clusters.md). Not in the wheel. This module holds what all commands for AWS share.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import boto3

__all__ = ["NO_REGION", "TAG", "session_in", "stack_name"]

NO_REGION = "name the region: --region, AWS_REGION or AWS_DEFAULT_REGION"
TAG = "super:stack"
"""The tag on everything in a stack; its value is the stack's name."""

_NAME_MAX = 24
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def session_in(region: str | None) -> boto3.session.Session:
    """Return a session in the given region, else in the AWS CLI's.

    The CLI looks at ``AWS_REGION`` first, boto3 only at ``AWS_DEFAULT_REGION`` and the configuration file. If
    they differed, half of a stack would be created elsewhere.
    """
    import boto3

    return boto3.session.Session(region_name=region or os.environ.get("AWS_REGION") or None)


def stack_name(text: str) -> str:
    """Check a stack's name, as argparse's ``type``.

    Raises:
        argparse.ArgumentTypeError: ElastiCache or a host name would reject it.
    """
    if len(text) > _NAME_MAX or not _NAME.fullmatch(text):
        msg = (
            f"a stack's name has at most {_NAME_MAX} lower-case letters, digits and single hyphens, and "
            f"begins with a letter: ids of ElastiCache and a host name hold it; not {text!r}"
        )
        raise argparse.ArgumentTypeError(msg)
    return text
