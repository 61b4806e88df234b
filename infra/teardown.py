"""``python -m infra.teardown --stack NAME``: deletes what ``sam delete`` leaves, and lists the rest.

``sam delete`` deletes the stack first, with all that CloudFormation has made. Here go secrets, logs and, where
a repository is named, its images. What else has the stack's tag is listed: machines, disks, snapshots.

Exit codes: 0 nothing is left, 1 something is, or AWS refused; 2 the stack is there yet, nobody confirmed it,
or the repository is not the stack's.
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

    Client = Callable[[str], Any]
    """Makes boto3's client of a service."""

__all__ = ["main"]

_RECOVERY_DAYS = 7


class RefusedError(Exception):
    """Nothing is deleted; says why."""


def _all(service: Any, operation: str, field: str, **asked: Any) -> Iterator[dict[str, Any]]:
    """What an operation lists, page by page: the first alone may be empty where others follow."""
    for page in service.get_paginator(operation).paginate(**asked):
        yield from page[field]


def _is_ours(tags: Any, stack: str) -> bool:
    return any(tag.get("Key") == TAG and tag.get("Value") == stack for tag in tags)


def _stack_states(client: Client, stack: str) -> dict[str, str]:
    """The states of all stacks of this name, by their ids: CloudFormation knows deleted ones for 90 days."""
    found = _all(client("cloudformation"), "list_stacks", "StackSummaries")
    return {item["StackId"]: item["StackStatus"] for item in found if item["StackName"] == stack}


def _check(client: Client, stack: str, repository: str) -> list[str]:
    """Refuse what must not go; the physical ids of what CloudFormation has deleted."""
    states = _stack_states(client, stack)
    if any(state != "DELETE_COMPLETE" for state in states.values()):
        msg = f"the stack {stack} is there: terminate its trainers, then: sam delete --stack-name {stack}"
        raise RefusedError(msg)
    registry = client("ecr")
    for item in _all(registry, "describe_repositories", "repositories"):
        arn, tags = item["repositoryArn"], {"Key": TAG, "Value": stack}
        if item["repositoryName"] == repository and tags not in registry.list_tags_for_resource(
            resourceArn=arn
        ).get("tags", []):
            msg = (
                f"the repository {repository} has no tag {TAG}={stack}, so its images may be of others. If "
                f"they are not: aws ecr tag-resource --resource-arn {arn} --tags Key={TAG},Value={stack}"
            )
            raise RefusedError(msg)
    listed = (
        _all(client("cloudformation"), "list_stack_resources", "StackResourceSummaries", StackName=identity)
        for identity in states
    )
    return [item.get("PhysicalResourceId", "") for items in listed for item in items]


def _delete(client: Client, stack: str, repository: str, *, forget: bool) -> Iterator[str]:
    """Delete what no stack holds; the names and ARNs of it."""
    how = {"ForceDeleteWithoutRecovery": True} if forget else {"RecoveryWindowInDays": _RECOVERY_DAYS}
    for secret in _all(client("secretsmanager"), "list_secrets", "SecretList", IncludePlannedDeletion=True):
        if _is_ours(secret.get("Tags", ()), stack):
            if forget or "DeletedDate" not in secret:
                client("secretsmanager").delete_secret(SecretId=secret["ARN"], **how)
            yield secret["ARN"]
    # Lambda makes a function's log again, without a tag, when it ends after its stack.
    of_function = f"/aws/lambda/{stack}-prefetch"
    for prefix in (of_function, f"/super/{stack}/"):
        for item in _all(client("logs"), "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
            if item["logGroupName"] == of_function or prefix != of_function:
                client("logs").delete_log_group(logGroupName=item["logGroupName"])
                yield item["arn"].removesuffix(":*")
    registry = client("ecr")
    if repository:
        try:
            deleted = registry.delete_repository(repositoryName=repository, force=True)
            yield deleted["repository"]["repositoryArn"]
        except registry.exceptions.RepositoryNotFoundException:
            pass


def _tear_down(client: Client, arguments: argparse.Namespace) -> int:
    stack = arguments.stack
    gone = set(_check(client, stack, arguments.repository))
    if not arguments.yes:
        print(f"This deletes secrets and logs of {stack}, and {arguments.repository or 'no'} images.")
        print("Type the stack's name to go on: ", end="", flush=True)
        if sys.stdin.readline().strip() != stack:
            raise RefusedError("nothing was deleted")
    for arn in _delete(client, stack, arguments.repository, forget=arguments.forget_secrets):
        print(f"deleted {arn}")
        gone.add(arn)
    tags = [{"Key": TAG, "Values": [stack]}]
    tagged = _all(
        client("resourcegroupstaggingapi"), "get_resources", "ResourceTagMappingList", TagFilters=tags
    )
    left = [
        arn for item in tagged if not {arn := item["ResourceARN"], *arn.replace("/", ":").split(":")} & gone
    ]
    if not left:
        print(f"nothing of {stack} is left that costs money")
        return 0
    print(f"{len(left)} things with the tag of {stack} are left (AWS remembers for a while what is gone):")
    print("".join(f"  {arn}\n" for arn in left), end="")
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and delete."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.teardown", description="Delete what sam delete leaves of a stack of SUPER."
    )
    parser.add_argument("--stack", type=stack_name, required=True, help="the stack's name")
    parser.add_argument("--region", help="its region (else the environment's)")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    words = "an ECR repository to delete with its images; it must have the tag super:stack=NAME"
    parser.add_argument("--repository", default="", help=words)
    words = "delete secrets for good, at once; else they can be restored for a week"
    parser.add_argument("--forget-secrets", action="store_true", help=words)
    arguments = parser.parse_args(argv)
    try:
        return _tear_down(functools.cache(session_in(arguments.region).client), arguments)
    except RefusedError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except NoRegionError:
        sys.stderr.write(f"{NO_REGION}\n")
        return 1
    except (BotoCoreError, ClientError) as error:
        sys.stderr.write(f"{error}\nRun this again when it is mended: it goes on where it stopped.\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
