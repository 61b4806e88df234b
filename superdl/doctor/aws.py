"""AWS, or what stands in for it: who this machine is to it, and what a stack consists of.

Endpoints, regions, profiles and credentials come from AWS's own settings (``AWS_ENDPOINT_URL``,
``AWS_PROFILE``, ...); where the object store is another's, from ``SUPER_S3_ENDPOINT_URL``. The names of a
stack's outputs are those of ``infra/template.yaml``.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors import executor_classes
from superdl.doctor.checking import bad, doubtful, good, skipped
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import without_credentials

if TYPE_CHECKING:
    from superdl.doctor.checking import Case, Finding

__all__ = ["check_credentials", "read_stack"]

_DEFAULT_REGION = "us-east-1"
_CONNECT_TIMEOUT_S = 4
_READ_TIMEOUT_S = 10
_ATTEMPTS = 2

_HOWTO = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"
_STACK_HOWTO = (
    "write what aws cloudformation describe-stacks --stack-name NAME prints into a file and name that"
)


def _aws_client(service: str, region: str = "") -> Any:
    """A new client with a session of its own, with bounded waits.

    Raises:
        botocore.exceptions.BotoCoreError: a profile or a region is wrong.
        ValueError: an endpoint of AWS's own settings is no URL.
    """
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
    )
    session = boto3.session.Session()
    place = region or session.region_name or os.environ.get("AWS_REGION") or _DEFAULT_REGION
    return session.client(service, config=config, region_name=place)


def check_credentials(case: Case) -> Finding:
    """The identity with which this machine asks S3 and Lambda: whose, and where from."""
    executors = executor_classes(case.settings.executors)
    if not (case.source.startswith("s3://") or any(executor.uses_aws for executor in executors)):
        return skipped(f"nothing that was named needs AWS ({case.source or 'no source'})")
    import boto3
    from botocore import exceptions

    try:
        session = boto3.session.Session()
        credentials = session.get_credentials()
        region = session.region_name or os.environ.get("AWS_REGION", "")
        if credentials is not None:
            credentials.get_frozen_credentials()  # renews what has run out
    except (exceptions.BotoCoreError, RuntimeError) as error:  # RuntimeError: renewed, and run out already
        return case.bad_here(f"AWS credentials cannot be had: {error}", _HOWTO)
    if credentials is None:
        if case.elsewhere:
            why = "this machine has no AWS credentials; with a coordinator named it needs none"
            return skipped(why, f"to look at the bucket from here, {_HOWTO}")
        return bad("this machine has no AWS credentials", _HOWTO)
    # Where the object store is another's than AWS, AWS's identities say nothing.
    store = os.environ.get("SUPER_S3_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_S3")
    if store and not (os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_STS")):
        return good(f"from {credentials.method}; the store is not AWS, so whose they are is not asked")
    return _identified(case, str(credentials.method), region)


def _identified(case: Case, origin: str, region: str) -> Finding:
    from botocore import exceptions

    try:
        with contextlib.closing(_aws_client("sts", region)) as client:
            answer = client.get_caller_identity()
    except exceptions.ClientError as error:
        remedy = "renew them if they have run out, else correct the access key and its secret"
        return case.bad_here(f"AWS does not take the credentials from {origin}: {error}", remedy)
    except (exceptions.BotoCoreError, ValueError) as error:
        why = f"from {origin}; whose they are is not known, STS does not answer: {error}"
        return doubtful(why, "check the network; a VPC without NAT reaches STS by an interface endpoint")
    who = f"{answer.get('Arn', '')} from {origin}"
    if not region:
        why = f"{who}; no region is set, {_DEFAULT_REGION} is assumed"
        return doubtful(why, "set AWS_DEFAULT_REGION to the region of bucket and functions")
    return good(f"{who}, region {region}")


def read_stack(named: str) -> dict[str, str]:
    """The outputs of a deployed stack, by their keys.

    Args:
        named: a JSON file, as ``aws cloudformation describe-stacks`` prints it or a mapping of names; else
            the name of a stack, whose outputs are asked for.

    Raises:
        ConfigError: they cannot be had.
    """
    file, shown = Path(named), without_credentials(named)
    try:
        if file.suffix == ".json" or file.exists():
            content = json.loads(file.read_text(encoding="utf-8"))
        else:
            with contextlib.closing(_aws_client("cloudformation")) as client:
                content = client.describe_stacks(StackName=named)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"the stack's outputs in {shown} cannot be read: {why}") from error
    except Exception as error:  # of boto3, which is imported only where a stack is asked for
        raise ConfigError(
            f"the outputs of the stack {shown} cannot be asked for: {error}: see the region "
            "(AWS_DEFAULT_REGION) and that this identity may do cloudformation:DescribeStacks; or "
            f"{_STACK_HOWTO}"
        ) from error
    try:
        if "Stacks" in content:
            listed = content["Stacks"][0]["Outputs"]
            content = {one["OutputKey"]: one["OutputValue"] for one in listed}
        outputs = {name: value for name, value in content.items() if isinstance(value, str)}
    except (AttributeError, LookupError, TypeError):
        outputs = {}
    if not outputs:
        raise ConfigError(f"{shown} holds no outputs of a stack: {_STACK_HOWTO}")
    return outputs
