"""Who this machine is to AWS: whose its credentials are, where from, for how long, for which region."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors import executor_classes
from superdl.doctor.aws import DEFAULT_REGION, aws_client, is_other_store, judge_refusal, note_clock
from superdl.doctor.finding import bad, doubtful, good, skipped

if TYPE_CHECKING:
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found

__all__ = ["check_credentials"]

_SOON_S = 3600
_HOWTO = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"
_METHODS = {
    "assume-role": "a role that a profile assumes",
    "assume-role-with-web-identity": "a role by web identity",
    "config-file": "the AWS config file",
    "container-role": "the container's role",
    "custom-process": "a credential process",
    "env": "the environment",
    "iam-role": "this machine's role",
    "shared-credentials-file": "the AWS credentials file",
    "sso": "a login by SSO",
}


def check_credentials(case: Case, seen: Seen) -> Found:
    """The identity with which this machine asks S3 and Lambda."""
    if not _are_needed(case):
        return skipped(f"nothing that was named needs AWS ({case.source or 'no source'})")
    from botocore import exceptions

    try:
        import boto3

        session = boto3.session.Session()
        credentials = session.get_credentials()
        seen.aws_region = session.region_name or os.environ.get("AWS_REGION", "")
        kind = _kind(credentials)
    except (exceptions.BotoCoreError, RuntimeError) as error:  # RuntimeError: renewed, and run out already
        worst = doubtful if case.elsewhere else bad
        return worst(f"AWS credentials cannot be had: {error}", _HOWTO)
    if credentials is None:
        if case.elsewhere:
            why = "this machine has no AWS credentials; with a coordinator named it needs none"
            return skipped(why, f"to look at the bucket from here, {_HOWTO}")
        return bad("this machine has no AWS credentials", _HOWTO)
    if is_other_store():
        return good(f"from {kind}; the store is not AWS, so whose they are is not asked")
    return _identified(case, seen, kind, _ends(credentials))


def _are_needed(case: Case) -> bool:
    executors = executor_classes(case.settings.executors)
    return case.source.startswith("s3://") or any(executor.uses_aws for executor in executors)


def _kind(credentials: Any) -> str:
    if credentials is None:
        return ""
    credentials.get_frozen_credentials()  # renews what has run out
    method = str(credentials.method)
    return _METHODS.get(method, method)


def _ends(credentials: Any) -> str:
    """When they run out, if that is soon and nothing renews them; else empty."""
    told = os.environ.get("AWS_CREDENTIAL_EXPIRATION", "")
    if credentials.method == "env" and told:
        try:
            left_s = datetime.fromisoformat(told).timestamp() - time.time()
        except ValueError:
            return ""
        return f"they run out in {max(0, left_s) / 60:.0f} minutes" if left_s < _SOON_S else ""
    return ""


def _identified(case: Case, seen: Seen, kind: str, ends: str) -> Found:
    from botocore import exceptions

    client = aws_client("sts", region=seen.aws_region)
    asked_s = time.time()
    try:
        answer = client.get_caller_identity()
    except exceptions.ClientError as error:
        note_clock(seen, "AWS", error.response.get("ResponseMetadata", {}), asked_s)
        words = f"AWS does not take the credentials from {kind}: {error}"
        return judge_refusal(error, words, case=case, permission="sts:GetCallerIdentity", arn="*")
    except (exceptions.BotoCoreError, ValueError) as error:
        why = f"from {kind}; whose they are is not known, STS does not answer: {error}"
        return doubtful(why, "check the network; a VPC without NAT reaches STS by an interface endpoint")
    finally:
        client.close()
    note_clock(seen, "AWS", answer.get("ResponseMetadata", {}), asked_s)
    who = f"{answer.get('Arn', '')} from {kind}"
    if ends:
        return doubtful(f"{who}; {ends}", "renew them before a long run, or use a role, which renews itself")
    if not seen.aws_region:
        why = f"{who}; no region is set, {DEFAULT_REGION} is assumed"
        return doubtful(why, "set AWS_DEFAULT_REGION to the region of bucket and functions")
    return good(f"{who}, region {seen.aws_region}")
