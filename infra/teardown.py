"""``python -m infra.teardown --stack NAME``: deletes a stack and what it would leave, and checks that nothing
is left that costs money.

CloudFormation deletes the stack first, with all that it has made. Then go what is not the stack's: secrets,
logs, snapshots, and the images where a repository is named. Machines, disks and their images and snapshots
are listed, each with the command that removes it; so is all else that has the stack's tag.

Exit codes: 0 nothing is left, 1 something is, or AWS refused; 2 nobody confirmed it, trainers still run, or
what is named is not SUPER's.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError, NoRegionError, WaiterError

from infra import NO_REGION, TAG, session_in, stack_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    Client = Callable[[str], Any]
    """Makes boto3's client of a service."""

__all__ = ["Leftover", "find_leftovers", "main"]

_LOOKS = 240
_PAUSE_S = 15  # an hour in all: Lambda takes its time to give back network interfaces
_MIN_WINDOW_DAYS = 7
_DESCRIPTION = "SUPER: "  # how the template's begins; a stack that failed early may have few resources
_RESOURCES = {"Prefetch", "TrainerSecurityGroup"}
_GONE = {"terminated", "shutting-down"}
_LISTED_HERE = {"ec2:instance", "ec2:volume", "ec2:image", "ec2:snapshot", "ecr:repository"} | {
    "elasticache:snapshot",
    "logs:log-group",
    "secretsmanager:secret",
}
_OF_MACHINES: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("disk", "Volumes", {}, "delete-volume --volume-id"),
    ("machine image", "Images", {"Owners": ["self"]}, "deregister-image --image-id"),
    ("disk snapshot", "Snapshots", {"OwnerIds": ["self"]}, "delete-snapshot --snapshot-id"),
)
_REMEMBERED = (
    "look at it in the console: AWS's tagging API lists it, by the stack's tag. It remembers what is gone "
    "for a while: if it is gone, run this again later"
)


class RefusedError(Exception):
    """The stack or the repository is none of SUPER's, or machines still use it; says which, and why."""


class StackFailedError(Exception):
    """CloudFormation could not delete the stack; the message says what, and why."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is still there; ``remedy`` is the command that removes it."""

    kind: str
    name: str
    remedy: str


def find_leftovers(client: Client, stack: str, deleted: Collection[str] = ()) -> Iterator[Leftover]:
    """All that is left of a stack and costs money, now or when it is used.

    ``deleted`` are the physical ids of what CloudFormation has just deleted.
    """
    registry = client("ecr")
    yield from _of_machines(client("ec2"), stack)
    for name in snapshots_of(client, stack, by_name=True):
        yield Leftover("snapshot", name, f"aws elasticache delete-snapshot --snapshot-name {name}")
    for name in logs_of(client, stack):
        yield Leftover("log group", name, f"aws logs delete-log-group --log-group-name {name}")
    for item in _all(registry, "describe_repositories", "repositories"):
        if _is_ours(registry.list_tags_for_resource(resourceArn=item["repositoryArn"])["tags"], stack):
            name = item["repositoryName"]
            yield Leftover("repository", name, f"aws ecr delete-repository --force --repository-name {name}")
    for secret in secrets_of(client, stack):
        if "DeletedDate" not in secret:
            name = secret["Name"]
            yield Leftover("secret", name, f"aws secretsmanager delete-secret --secret-id {name}")
    yield from _of_tag(client, stack, deleted)


def _of_machines(ec2: Any, stack: str) -> Iterator[Leftover]:
    """Trainers and what was made of them, which no stack makes."""
    tagged = [{"Name": f"tag:{TAG}", "Values": [stack]}]
    for reservation in _all(ec2, "describe_instances", "Reservations", Filters=tagged):
        for item in reservation["Instances"]:
            if item["State"]["Name"] not in _GONE:
                name = item["InstanceId"]
                yield Leftover("machine", name, f"aws ec2 terminate-instances --instance-ids {name}")
    for kind, field, more, remedy in _OF_MACHINES:
        for item in _all(ec2, f"describe_{field.lower()}", field, Filters=tagged, **more):
            name = item[f"{field.removesuffix('s')}Id"]
            yield Leftover(kind, name, f"aws ec2 {remedy} {name}")


def _of_tag(client: Client, stack: str, deleted: Collection[str]) -> Iterator[Leftover]:
    """All else with the stack's tag, by AWS's tagging API.

    That remembers what is gone, so it has no say on kinds that are looked up above, nor on what
    CloudFormation has just deleted.
    """
    tagging, tags = client("resourcegroupstaggingapi"), [{"Key": TAG, "Values": [stack]}]
    for item in _all(tagging, "get_resources", "ResourceTagMappingList", TagFilters=tags):
        arn = item["ResourceARN"]
        service, resource = arn.split(":", 5)[2::3]
        parts = re.split("[:/]", resource)
        if f"{service}:{parts[0]}" not in _LISTED_HERE and not {arn, resource, *parts} & set(deleted):
            yield Leftover(service, arn, _REMEMBERED)


def secrets_of(client: Client, stack: str) -> list[dict[str, Any]]:
    """The stack's secrets, those too that wait for their deletion (which cost nothing)."""
    secrets = _all(client("secretsmanager"), "list_secrets", "SecretList", IncludePlannedDeletion=True)
    return [secret for secret in secrets if _is_ours(secret.get("Tags", ()), stack)]


def snapshots_of(client: Client, stack: str, *, by_name: bool) -> list[str]:
    """Snapshots of the cache: with the stack's tag or, ``by_name``, of the stack's cache.

    The cache's name outlives the cache there, and a snapshot that was made by hand has no tag.
    """
    elasticache = client("elasticache")
    found = []
    for snapshot in _all(elasticache, "describe_snapshots", "Snapshots"):
        same = by_name and snapshot.get("ReplicationGroupId") == f"{stack}-cache"
        try:
            tags = elasticache.list_tags_for_resource(ResourceName=snapshot["ARN"])["TagList"]
        except elasticache.exceptions.ClientError:  # it went, or is about to
            tags = []
        if same or _is_ours(tags, stack):
            found.append(snapshot["SnapshotName"])
    return found


def logs_of(client: Client, stack: str) -> list[str]:
    """The stack's log groups: all below ``/super/NAME/``, and its function's.

    The function's has no tag where Lambda made it after the stack was gone, so it goes by its name, unless
    there is a function of that name without the stack's tag.
    """
    of_function, functions = f"/aws/lambda/{stack}-prefetch", client("lambda")
    try:
        tags = functions.get_function(FunctionName=f"{stack}-prefetch").get("Tags", {})
        is_ours = tags.get(TAG) == stack
    except functions.exceptions.ResourceNotFoundException:
        is_ours = True
    found = []
    for prefix in (of_function, f"/super/{stack}/"):
        for item in _all(client("logs"), "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
            name = item["logGroupName"]
            if name.startswith(f"/super/{stack}/") or (name == of_function and is_ours):
                found.append(name)
    return found


def _is_ours(tags: Any, stack: str) -> bool:
    return any(tag.get("Key") == TAG and tag.get("Value") == stack for tag in tags)


def _all(service: Any, operation: str, field: str, **asked: Any) -> Iterator[dict[str, Any]]:
    """What an operation lists, page by page: the first alone may be empty where others follow."""
    for page in service.get_paginator(operation).paginate(**asked):
        yield from page[field]


def _outline(client: Client, stack: str) -> dict[str, str]:
    """The stack's resources: physical ids by logical ones; empty if there is no stack."""
    try:
        found = [
            *_all(client("cloudformation"), "list_stack_resources", "StackResourceSummaries", StackName=stack)
        ]
    except ClientError as error:
        if "does not exist" in str(error):
            return {}
        raise
    return {item["LogicalResourceId"]: item.get("PhysicalResourceId", "") for item in found}


def _refuse_others_stack(client: Client, stack: str, resources: dict[str, str]) -> None:
    found = client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    if not (found.get("Description", "").startswith(_DESCRIPTION) or resources.keys() >= _RESOURCES):
        msg = (
            f"the stack {stack} is not SUPER's: its description does not begin with "
            f"{_DESCRIPTION.strip()!r}, and it lacks {' or '.join(sorted(_RESOURCES))}. To delete it "
            f"nevertheless: aws cloudformation delete-stack --stack-name {stack}"
        )
        raise RefusedError(msg)


def _refuse_others_repository(client: Client, stack: str, repository: str) -> None:
    registry = client("ecr")
    try:
        found = registry.describe_repositories(repositoryNames=[repository])["repositories"][0]
    except registry.exceptions.RepositoryNotFoundException:
        return
    arn = found["repositoryArn"]
    if not _is_ours(registry.list_tags_for_resource(resourceArn=arn)["tags"], stack):
        msg = (
            f"the repository {repository} has no tag {TAG}={stack}, so its images may be of others. If they "
            f"are not: aws ecr tag-resource --resource-arn {arn} --tags Key={TAG},Value={stack}"
        )
        raise RefusedError(msg)


def _refuse_while_used(client: Client, group: str) -> None:
    filters = [
        {"Name": "instance.group-id", "Values": [group]},
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
    ]
    found = _all(client("ec2"), "describe_instances", "Reservations", Filters=filters)
    machines = [item["InstanceId"] for reservation in found for item in reservation["Instances"]]
    if machines:
        msg = (
            f"machines still have the security group of the trainers, which cannot go before them: "
            f"{', '.join(machines)}. Take it from them, or: aws ec2 terminate-instances --instance-ids "
            f"{' '.join(machines)}"
        )
        raise RefusedError(msg)


def _delete_stack(client: Client, stack: str) -> None:
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


def _delete_rest(client: Client, arguments: argparse.Namespace, *, had_stack: bool) -> None:
    """Delete what no stack holds."""
    stack, repository = arguments.stack, arguments.repository
    window_days = 0 if arguments.forget_secrets else arguments.recovery_days
    how = {"RecoveryWindowInDays": window_days} if window_days else {"ForceDeleteWithoutRecovery": True}
    for secret in secrets_of(client, stack):
        if "DeletedDate" not in secret or not window_days:
            client("secretsmanager").delete_secret(SecretId=secret["ARN"], **how)
            later = f" (for good in {window_days} days)" * bool(window_days)
            _say(f"deleted the secret {secret['Name']}{later}")
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


def _tear_down(client: Client, arguments: argparse.Namespace) -> int:
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
    _delete_rest(client, arguments, had_stack=bool(resources))
    left = list(find_leftovers(client, stack, resources.values()))
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
        client = functools.cache(session_in(arguments.region).client)
        return _tear_down(client, arguments)
    except RefusedError as error:
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
