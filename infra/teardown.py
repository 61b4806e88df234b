"""``python -m infra.teardown --stack NAME``: deletes a stack and what it would leave, and sees that nothing
is left that costs money.

The stack goes first, then its secrets, logs and snapshots, and the images where a repository is named. What
still costs money at the end is listed, each with the command that removes it.

Exit codes: 0 nothing is left, 1 something is, or AWS refused; 2 it was not confirmed, trainers still run, or
what is named is not SUPER's.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError, NoRegionError, WaiterError

from infra import NO_REGION, session_in, stack_name
from infra.leftovers import TAG, find_leftovers, logs_of, secrets_of, snapshots_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

_LOOKS = 240
_PAUSE_S = 15  # an hour in all: Lambda takes its time to give back network interfaces
_MIN_WINDOW_DAYS = 7
_DESCRIPTION = "SUPER: "  # how the template's begins; a stack that failed early may have few resources
_RESOURCES = {"Prefetch", "TrainerSecurityGroup"}


class NotOursError(Exception):
    """The stack or the repository of that name is none of SUPER's; the message says which, and why."""


class StillTrainingError(Exception):
    """Machines use the stack; the message names them."""


class StackFailedError(Exception):
    """CloudFormation could not delete the stack; the message says what, and why."""


def _outline(client: Callable[[str], Any], stack: str) -> dict[str, str]:
    """The stack's resources: physical ids by logical ones; empty if there is no stack."""
    cloudformation = client("cloudformation")
    try:
        pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
        found = [item for page in pages for item in page["StackResourceSummaries"]]
    except ClientError as error:
        if "does not exist" in str(error):
            return {}
        raise
    return {item["LogicalResourceId"]: item.get("PhysicalResourceId", "") for item in found}


def _refuse_others_stack(client: Callable[[str], Any], stack: str, resources: dict[str, str]) -> None:
    found = client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    if not (found.get("Description", "").startswith(_DESCRIPTION) or resources.keys() >= _RESOURCES):
        msg = (
            f"the stack {stack} is not SUPER's: its description does not begin with "
            f"{_DESCRIPTION.strip()!r}, and it lacks {' or '.join(sorted(_RESOURCES))}. If it is to go "
            f"nevertheless: aws cloudformation delete-stack --stack-name {stack}"
        )
        raise NotOursError(msg)


def _refuse_others_repository(client: Callable[[str], Any], stack: str, repository: str) -> None:
    registry = client("ecr")
    try:
        found = registry.describe_repositories(repositoryNames=[repository])["repositories"][0]
    except registry.exceptions.RepositoryNotFoundException:
        return
    arn = found["repositoryArn"]
    tags = registry.list_tags_for_resource(resourceArn=arn)["tags"]
    if {"Key": TAG, "Value": stack} not in tags:
        msg = (
            f"the repository {repository} has no tag {TAG}={stack}, so its images may be of others. If they "
            f"are not: aws ecr tag-resource --resource-arn {arn} --tags Key={TAG},Value={stack}"
        )
        raise NotOursError(msg)


def _refuse_while_used(client: Callable[[str], Any], group: str) -> None:
    filters = [
        {"Name": "instance.group-id", "Values": [group]},
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
    ]
    pages = client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    found = [reservation for page in pages for reservation in page["Reservations"]]
    machines = [item["InstanceId"] for reservation in found for item in reservation["Instances"]]
    if machines:
        msg = (
            f"machines still have the security group of the trainers, which cannot go before them: "
            f"{', '.join(machines)}. Take it from them, or: aws ec2 terminate-instances --instance-ids "
            f"{' '.join(machines)}"
        )
        raise StillTrainingError(msg)


def _delete_stack(client: Callable[[str], Any], stack: str) -> None:
    cloudformation = client("cloudformation")
    identity = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackId"]
    cloudformation.delete_stack(StackName=identity)
    waiter = cloudformation.get_waiter("stack_delete_complete")
    try:
        waiter.wait(StackName=identity, WaiterConfig={"Delay": _PAUSE_S, "MaxAttempts": _LOOKS})
    except WaiterError as error:
        events = cloudformation.describe_stack_events(StackName=identity)["StackEvents"]
        failed = [
            f"  {event['LogicalResourceId']}: {event.get('ResourceStatusReason', 'no reason given')}"
            for event in events
            if event.get("ResourceStatus") == "DELETE_FAILED"
        ]
        msg = "\n".join([f"CloudFormation did not delete {stack}: {error}", *failed])
        raise StackFailedError(msg) from error


def _delete_secrets(client: Callable[[str], Any], stack: str, window_days: int) -> None:
    manager = client("secretsmanager")
    how = {"RecoveryWindowInDays": window_days} if window_days else {"ForceDeleteWithoutRecovery": True}
    for secret in secrets_of(client, stack):
        if "DeletedDate" in secret and window_days:
            continue
        manager.delete_secret(SecretId=secret["ARN"], **how)
        _say(
            f"deleted the secret {secret['Name']}"
            + (f" (for good in {window_days} days)" * bool(window_days))
        )


def _delete_rest(client: Callable[[str], Any], stack: str, repository: str, *, had_stack: bool) -> None:
    for name in logs_of(client, stack):
        client("logs").delete_log_group(logGroupName=name)
        _say(f"deleted the log {name}")
    for name in snapshots_of(client, stack, by_name=had_stack):
        client("elasticache").delete_snapshot(SnapshotName=name)
        _say(f"deleted the snapshot {name}")
    if repository:
        registry = client("ecr")
        try:
            registry.delete_repository(repositoryName=repository, force=True)
            _say(f"deleted the repository {repository} with its images")
        except registry.exceptions.RepositoryNotFoundException:
            _say(f"there is no repository {repository}")


def _say(text: str) -> None:
    print(text, flush=True)


def _confirmed(arguments: argparse.Namespace, resources: int) -> bool:
    if arguments.yes:
        return True
    images = f" the repository {arguments.repository} with all its images," * bool(arguments.repository)
    _say(
        f"This deletes the stack {arguments.stack} ({resources} resources),{images} its secrets, logs and "
        "snapshots."
    )
    print("Type its name to go on: ", end="", flush=True)
    return bool(sys.stdin.readline().strip() == arguments.stack)


def _tear_down(client: Callable[[str], Any], arguments: argparse.Namespace) -> int:
    stack = arguments.stack
    resources = _outline(client, stack)
    if resources:
        _refuse_others_stack(client, stack, resources)
    if arguments.repository:
        _refuse_others_repository(client, stack, arguments.repository)
    if "TrainerSecurityGroup" in resources:
        _refuse_while_used(client, resources["TrainerSecurityGroup"])
    if not _confirmed(arguments, len(resources)):
        _say("nothing was deleted")
        return 2
    if resources:
        _say(f"deleting {stack}; half an hour is usual, for the network interfaces of functions go late")
        _delete_stack(client, stack)
        _say(f"deleted {stack}")
    _delete_secrets(client, stack, 0 if arguments.forget_secrets else arguments.recovery_days)
    _delete_rest(client, stack, arguments.repository, had_stack=bool(resources))
    left = find_leftovers(client, stack)
    if not left:
        _say(f"nothing of {stack} is left that costs money")
        return 0
    _say(f"{len(left)} things of {stack} are left:")
    for item in left:
        _say(f"  {item.kind} {item.name}\n    {item.remedy}")
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and delete."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.teardown",
        description="Delete a stack of SUPER, and all that costs money of it.",
    )
    parser.add_argument("--stack", type=stack_name, required=True, help="the stack's name")
    parser.add_argument("--region", help="its region (else the environment's)")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--repository",
        default="",
        help="delete this ECR repository, too, with its images; it must have the tag super:stack=NAME",
    )
    secrets = parser.add_mutually_exclusive_group()
    secrets.add_argument("--forget-secrets", action="store_true", help="delete secrets for good, at once")
    secrets.add_argument(
        "--recovery-days",
        type=int,
        choices=range(_MIN_WINDOW_DAYS, 31),
        default=_MIN_WINDOW_DAYS,
        metavar="7..30",
        help="days in which secrets can be restored (7); they cost nothing meanwhile",
    )
    arguments = parser.parse_args(argv)
    try:
        session = session_in(arguments.region)
        client = functools.cache(session.client)
        return _tear_down(client, arguments)
    except (NotOursError, StillTrainingError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except NoRegionError:
        sys.stderr.write(f"{NO_REGION}\n")
        return 1
    except (BotoCoreError, ClientError, StackFailedError) as error:
        sys.stderr.write(f"{error}\nRun this again when it is mended: it goes on where it stopped.\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
