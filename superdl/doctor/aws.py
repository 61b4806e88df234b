"""Asking AWS, or what stands in for it: clients of their own with bounded waits, and what refusals mean.

Endpoints, regions, profiles and credentials come from AWS's own settings (``AWS_ENDPOINT_URL``,
``AWS_PROFILE``, ...); where the object store or Lambda is another's, from ``SUPER_S3_ENDPOINT_URL`` and
``SUPER_LAMBDA_ENDPOINT_URL``.
"""

from __future__ import annotations

import email.utils
import os
import re
from typing import TYPE_CHECKING, Any

from superdl.doctor.finding import bad, doubtful, skipped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found

__all__ = [
    "DEFAULT_REGION",
    "aws_client",
    "is_denied",
    "is_other_store",
    "judge_refusal",
    "note_clock",
    "refusal_code",
]

DEFAULT_REGION = "us-east-1"
"""What is signed for where no region is set."""

_CONNECT_TIMEOUT_S = 4
_READ_TIMEOUT_S = 10
_ATTEMPTS = 2
_DENIED = frozenset(
    {"401", "403", "AccessDenied", "AccessDeniedException", "AllAccessDisabled", "UnauthorizedAccess"}
    | {"UnauthorizedOperation"}
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_UNKNOWN = frozenset(
    {"InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken", "SignatureDoesNotMatch"}
    | {"IncompleteSignature", "InvalidSignatureException", "UnrecognizedClientException"}
)
_SKEWED = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
# Some services refuse another time by the code of a wrong signature, some stores by that of a missing right.
_OF_ANOTHER_TIME = re.compile(r"signature (expired|not yet current)|request time", re.IGNORECASE)


def aws_client(service: str, *, region: str = "", endpoint_url: str = "") -> Any:
    """A new client with a session of its own.

    Raises:
        botocore.exceptions.BotoCoreError: a profile or a region is wrong.
        ValueError: an endpoint is no URL.
    """
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
    )
    session = boto3.session.Session()
    place = region or session.region_name or os.environ.get("AWS_REGION") or DEFAULT_REGION
    return session.client(service, config=config, region_name=place, endpoint_url=endpoint_url or None)


def is_other_store() -> bool:
    """Whether the object store is another's than AWS, which then knows AWS's identities no more."""
    named = os.environ.get("SUPER_S3_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_S3")
    return bool(named) and not (os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_STS"))


def refusal_code(error: BaseException | None) -> str:
    """The code of an answer of AWS's that refuses, empty where ``error`` is none."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def is_denied(error: BaseException | None) -> bool:
    """Whether an identity that is known may not do what it asked for."""
    return refusal_code(error) in _DENIED


def judge_refusal(error: BaseException | None, words: str, *, case: Case, permission: str, arn: str) -> Found:
    """What an answer that refuses means, and what to do.

    Args:
        error: botocore's.
        words: what was asked for and refused, for people.
        case: says whether this machine's identity matters at all.
        permission: what would have been needed.
        arn: on what.
    """
    code = refusal_code(error)
    worst = doubtful if case.elsewhere else bad  # the coordinator's identity may be a better one
    if code in _SKEWED or _OF_ANOTHER_TIME.search(str(error)):
        return worst(words, "set this machine's clock right (NTP): what is signed by another time is refused")
    if code in _EXPIRED:
        return worst(words, "renew the credentials: they have run out (aws sso login, or export new ones)")
    if code in _UNKNOWN:
        return worst(words, "correct the access key and its secret: whoever answers does not know this pair")
    if code in _DENIED:
        grant = f"allow {permission} on {arn}"
        if case.elsewhere:
            reason = f"{words}; with a coordinator named that is no fault, the coordinator's role does this"
            return skipped(reason, f"to look from here, {grant} to this identity")
        return bad(words, f"{grant} to this identity, or take another (AWS_PROFILE)")
    return doubtful(words, "see the code; nothing is known of it here")


def note_clock(seen: Seen, name: str, metadata: Mapping[str, Any], asked_s: float) -> None:
    """Note the clock that an answer's ``Date`` tells, if it does; it tells whole seconds."""
    date = str(metadata.get("HTTPHeaders", {}).get("date", ""))
    try:
        told_s = email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:  # there is none, or it is no date
        return
    seen.clock(name, told_s, asked_s, resolution_s=1.0)
