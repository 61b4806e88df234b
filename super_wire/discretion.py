"""Loggers of others that tell secrets when they tell everything, and how they are kept from it.

At level DEBUG botocore writes whole requests and answers, session tokens and the secrets of Secrets Manager
among them. What we log ourselves names no secret; tests look for that.
"""

from __future__ import annotations

import logging

__all__ = ["keep_secrets_out_of_logs"]

_TALKATIVE = ("boto3", "botocore", "s3transfer", "urllib3")


def keep_secrets_out_of_logs() -> None:
    """Keep loggers that would tell secrets at INFO or above, whatever level the rest of this process has."""
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level < logging.INFO:
            logger.setLevel(logging.INFO)
