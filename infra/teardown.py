"""``python -m infra.teardown --stack NAME``: delete the secrets and logs that ``sam delete`` leaves behind,
and list the rest.

Exit codes: 0 nothing is left; 1 something is left, or AWS refused; 2 the stack still exists.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from infra import NO_REGION, TAG, session_in, stack_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    # Creates a boto3 client for a service.
    Client = Callable[[str], Any]

_RECOVERY_DAYS = 7


def _all(service: Any, operation: str, field: str, **asked: Any) -> Iterator[dict[str, Any]]:
    """Yield the items that an operation lists."""
    # More items may follow an empty page.
    for page in service.get_paginator(operation).paginate(**asked):
        yield from page[field]


def _stacks(client: Client, stack: str) -> dict[str, str]:
    """Return the state of each stack with this name, by id."""
    # CloudFormation lists deleted stacks for 90 days.
    summaries = _all(client("cloudformation"), "list_stacks", "StackSummaries")
    return {
        summary["StackId"]: summary["StackStatus"] for summary in summaries if summary["StackName"] == stack
    }


def _deleted_with_stacks(client: Client, stacks: dict[str, str]) -> Iterator[str]:
    for identity in stacks:
        listed = _all(
            client("cloudformation"), "list_stack_resources", "StackResourceSummaries", StackName=identity
        )
        yield from filter(None, (item.get("PhysicalResourceId") for item in listed))


def _delete(client: Client, stack: str, *, forget: bool) -> Iterator[str]:
    options = {"ForceDeleteWithoutRecovery": True} if forget else {"RecoveryWindowInDays": _RECOVERY_DAYS}
    for secret in _all(client("secretsmanager"), "list_secrets", "SecretList", IncludePlannedDeletion=True):
        if {"Key": TAG, "Value": stack} in secret.get("Tags", ()):
            if forget or "DeletedDate" not in secret:
                client("secretsmanager").delete_secret(SecretId=secret["ARN"], **options)
            yield secret["ARN"]
    # If a function ends after its stack, Lambda creates the log again, without a tag.
    of_function = f"/aws/lambda/{stack}-prefetch"
    for prefix in (of_function, f"/super/{stack}/"):
        for item in _all(client("logs"), "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
            if item["logGroupName"] == of_function or prefix != of_function:
                client("logs").delete_log_group(logGroupName=item["logGroupName"])
                yield item["arn"].removesuffix(":*")


def _tear_down(client: Client, stack: str, *, forget: bool) -> int:
    stacks = _stacks(client, stack)
    if any(state != "DELETE_COMPLETE" for state in stacks.values()):
        sys.stderr.write(
            f"{stack} still exists: terminate trainers, then run sam delete --stack-name {stack}\n"
        )
        return 2
    deleted = list(_deleted_with_stacks(client, stacks))
    for arn in _delete(client, stack, forget=forget):
        print(f"deleted {arn}")
        deleted.append(arn)
    tags = [{"Key": TAG, "Values": [stack]}]
    mappings = _all(
        client("resourcegroupstaggingapi"), "get_resources", "ResourceTagMappingList", TagFilters=tags
    )
    # AWS lists deleted resources for a while, with ARNs that end with their physical ids.
    suffixes = tuple(f"{boundary}{resource}" for resource in deleted for boundary in ":/")
    arns = [mapping["ResourceARN"] for mapping in mappings]
    remaining = [arn for arn in arns if arn not in deleted and not arn.endswith(suffixes)]
    if not remaining:
        print(f"nothing that costs money is left of {stack}")
        return 0
    print(
        f"{len(remaining)} resources with the tag of {stack} are left (AWS lists deleted ones for a while):"
    )
    print("".join(f"  {arn}\n" for arn in remaining), end="")
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and delete the remaining resources."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.teardown", description="Delete what sam delete leaves of a SUPER stack."
    )
    parser.add_argument("--stack", type=stack_name, required=True, help="the stack's name")
    parser.add_argument("--region", help="its region (default: from the environment)")
    words = "delete secrets permanently and at once; otherwise they can be restored for a week"
    parser.add_argument("--forget-secrets", action="store_true", help=words)
    arguments = parser.parse_args(argv)
    try:
        client = functools.cache(session_in(arguments.region).client)
        return _tear_down(client, arguments.stack, forget=arguments.forget_secrets)
    except NoRegionError:
        sys.stderr.write(f"{NO_REGION}\n")
    except (BotoCoreError, ClientError) as error:
        sys.stderr.write(f"{error}\nFix this and run the command again: it continues where it stopped.\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
