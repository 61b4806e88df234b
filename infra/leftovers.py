"""What there is in an account of a stack of SUPER, and what of it costs money, asked of each service itself.

AWS's tagging API is asked as well, for what nobody thought of; it lags behind, and remembers what is gone, so
it has no say on the kinds that are looked up here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["TAG", "Leftover", "find_leftovers", "logs_of", "secrets_of", "snapshots_of"]

TAG = "super:stack"

_SEEN_HERE = (
    "ec2",
    "ecr",
    "ecs",
    "elasticache",
    "lambda",
    "logs",
    "secretsmanager",
    "servicediscovery",
    "cloudwatch",
)
_LOOK = (
    "look at it in the console: AWS's tagging API tells of it, by the stack's tag. It remembers what is gone "
    "for a while: if it is gone, run this again later"
)


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is still there; ``remedy`` is the command that removes it."""

    kind: str
    name: str
    remedy: str


def find_leftovers(client: Callable[[str], Any], stack: str) -> list[Leftover]:
    """Everything that costs money, now or when it is used.

    Args:
        client: makes boto3's client of a service.
        stack: the name.
    """
    finders = (
        *(_of_network, _of_machines, _of_cache, _of_function, _of_containers, _of_registry),
        *(_of_names, _of_watching),
    )
    found = [leftover for finder in finders for leftover in finder(client, stack)]
    found += [
        Leftover("secret", secret["Name"], f"aws secretsmanager delete-secret --secret-id {secret['Name']}")
        for secret in secrets_of(client, stack)
        if "DeletedDate" not in secret
    ]
    return [*found, *_of_other_services(client, stack)]


def secrets_of(client: Callable[[str], Any], stack: str) -> list[dict[str, Any]]:
    """The stack's secrets, those too that wait for their deletion (which cost nothing)."""
    pages = client("secretsmanager").get_paginator("list_secrets")
    found: list[dict[str, Any]] = []
    for page in pages.paginate(IncludePlannedDeletion=True):
        found += [secret for secret in page["SecretList"] if _is_ours(secret.get("Tags", ()), stack)]
    return found


def snapshots_of(client: Callable[[str], Any], stack: str, *, by_name: bool) -> list[str]:
    """Snapshots of the cache: with the stack's tag, or by the name of the group, which outlives it there.

    Args:
        client: makes boto3's client of a service.
        stack: the name.
        by_name: whether the group's name is enough. A snapshot made by hand has no tag.
    """
    elasticache = client("elasticache")
    found = []
    for page in elasticache.get_paginator("describe_snapshots").paginate():
        for snapshot in page["Snapshots"]:
            same = by_name and snapshot.get("ReplicationGroupId") == f"{stack}-cache"
            if same or _has_tag(elasticache, snapshot["ARN"], stack):
                found.append(snapshot["SnapshotName"])
    return found


def logs_of(client: Callable[[str], Any], stack: str) -> list[str]:
    """The stack's log groups: all below ``/super/NAME/``, and its function's.

    The function's has no tag where Lambda made it anew after the stack was gone, so it goes by its name,
    unless there is a function of that name without the stack's tag.
    """
    pages = client("logs").get_paginator("describe_log_groups")
    of_function = "" if _function(client, stack) is False else f"/aws/lambda/{stack}-prefetch"
    found = []
    for prefix in (f"/aws/lambda/{stack}-prefetch", f"/super/{stack}/"):
        for page in pages.paginate(logGroupNamePrefix=prefix):
            names = [item["logGroupName"] for item in page["logGroups"]]
            found += [name for name in names if name == of_function or name.startswith(f"/super/{stack}/")]
    return found


def _function(client: Callable[[str], Any], stack: str) -> bool | None:
    """Whether the function of the stack's name has its tag; None if there is no function."""
    functions = client("lambda")
    try:
        tags = functions.get_function(FunctionName=f"{stack}-prefetch").get("Tags", {})
    except functions.exceptions.ResourceNotFoundException:
        return None
    return bool(tags.get(TAG) == stack)


def _is_ours(tags: Any, stack: str) -> bool:
    return any(tag.get("Key") == TAG and tag.get("Value") == stack for tag in tags)


def _has_tag(elasticache: Any, arn: str, stack: str) -> bool:
    try:
        return _is_ours(elasticache.list_tags_for_resource(ResourceName=arn)["TagList"], stack)
    except elasticache.exceptions.ClientError:  # it went, or is about to
        return False


def _all(service: Any, operation: str, field: str, **asked: Any) -> Iterator[dict[str, Any]]:
    """What an operation lists, page by page: the first alone may be empty where others follow."""
    for page in service.get_paginator(operation).paginate(**asked):
        yield from page[field]


def _tagged(stack: str) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{TAG}", "Values": [stack]}]


def _of_network(client: Callable[[str], Any], stack: str) -> Iterator[Leftover]:
    ec2 = client("ec2")
    for item in _all(ec2, "describe_vpc_endpoints", "VpcEndpoints", Filters=_tagged(stack)):
        if item["State"] not in {"deleted", "deleting"}:
            name = item["VpcEndpointId"]
            yield Leftover("VPC endpoint", name, f"aws ec2 delete-vpc-endpoints --vpc-endpoint-ids {name}")
    for item in _all(ec2, "describe_nat_gateways", "NatGateways", Filters=_tagged(stack)):
        if item["State"] not in {"deleted", "deleting"}:
            name = item["NatGatewayId"]
            yield Leftover("NAT gateway", name, f"aws ec2 delete-nat-gateway --nat-gateway-id {name}")
    for item in ec2.describe_addresses(Filters=_tagged(stack))["Addresses"]:
        name = item["AllocationId"]
        yield Leftover("address", name, f"aws ec2 release-address --allocation-id {name}")


def _of_machines(client: Callable[[str], Any], stack: str) -> Iterator[Leftover]:
    ec2 = client("ec2")
    for reservation in _all(ec2, "describe_instances", "Reservations", Filters=_tagged(stack)):
        for item in reservation["Instances"]:
            if item["State"]["Name"] not in {"terminated", "shutting-down"}:
                name = item["InstanceId"]
                yield Leftover("machine", name, f"aws ec2 terminate-instances --instance-ids {name}")
    for item in _all(ec2, "describe_volumes", "Volumes", Filters=_tagged(stack)):
        name = item["VolumeId"]
        yield Leftover("disk", name, f"aws ec2 delete-volume --volume-id {name}")
    for item in _all(ec2, "describe_images", "Images", Filters=_tagged(stack), Owners=["self"]):
        name = item["ImageId"]
        yield Leftover("machine image", name, f"aws ec2 deregister-image --image-id {name}")
    for item in _all(ec2, "describe_snapshots", "Snapshots", Filters=_tagged(stack), OwnerIds=["self"]):
        name = item["SnapshotId"]
        yield Leftover("disk snapshot", name, f"aws ec2 delete-snapshot --snapshot-id {name}")


def _of_cache(client: Callable[[str], Any], stack: str) -> Iterator[Leftover]:
    elasticache = client("elasticache")
    for page in elasticache.get_paginator("describe_replication_groups").paginate():
        for item in page["ReplicationGroups"]:
            if item["Status"] != "deleting" and _has_tag(elasticache, item["ARN"], stack):
                name = item["ReplicationGroupId"]
                remedy = f"aws elasticache delete-replication-group --replication-group-id {name}"
                yield Leftover("cache", name, remedy)
    for name in snapshots_of(client, stack, by_name=True):
        yield Leftover("snapshot", name, f"aws elasticache delete-snapshot --snapshot-name {name}")


def _of_function(client: Callable[[str], Any], stack: str) -> Iterator[Leftover]:
    if _function(client, stack):
        name = f"{stack}-prefetch"
        yield Leftover("function", name, f"aws lambda delete-function --function-name {name}")
    for group in logs_of(client, stack):
        yield Leftover("log group", group, f"aws logs delete-log-group --log-group-name {group}")


def _of_containers(client: Callable[[str], Any], stack: str) -> Iterator[Leftover]:
    ecs = client("ecs")
    described: list[dict[str, Any]] = []
    for page in ecs.get_paginator("list_clusters").paginate():  # a page is what describe_clusters takes
        if names := page["clusterArns"]:
            described += ecs.describe_clusters(clusters=names, include=["TAGS"])["clusters"]
    for item in described:
        tags = [{"Key": tag["key"], "Value": tag["value"]} for tag in item.get("tags", ())]
        if item["status"] == "ACTIVE" and _is_ours(tags, stack):
            name = item["clusterName"]
            remedy = f"aws ecs delete-service --cluster {name} --service coordinator --force"
            yield Leftover("ECS cluster", name, f"{remedy}; aws ecs delete-cluster --cluster {name}")


def _of_registry(client: Callable[[str], Any], stack: str) -> Iterator[Leftover]:
    registry = client("ecr")
    for item in _all(registry, "describe_repositories", "repositories"):
        if _is_ours(registry.list_tags_for_resource(resourceArn=item["repositoryArn"])["tags"], stack):
            name = item["repositoryName"]
            yield Leftover("repository", name, f"aws ecr delete-repository --force --repository-name {name}")


def _of_names(client: Callable[[str], Any], stack: str) -> Iterator[Leftover]:
    for page in client("servicediscovery").get_paginator("list_namespaces").paginate():
        for item in page["Namespaces"]:
            if item["Name"] == f"{stack}.internal":
                remedy = f"aws servicediscovery delete-namespace --id {item['Id']}"
                yield Leftover("DNS namespace", item["Name"], remedy)


def _of_watching(client: Callable[[str], Any], stack: str) -> Iterator[Leftover]:
    cloudwatch = client("cloudwatch")
    for item in _all(cloudwatch, "describe_alarms", "MetricAlarms", AlarmNamePrefix=f"{stack}-"):
        if _is_ours(cloudwatch.list_tags_for_resource(ResourceARN=item["AlarmArn"])["Tags"], stack):
            name = item["AlarmName"]
            yield Leftover("alarm", name, f"aws cloudwatch delete-alarms --alarm-names {name}")
    for item in _all(cloudwatch, "list_dashboards", "DashboardEntries", DashboardNamePrefix=stack):
        if item["DashboardName"] == stack:
            remedy = f"aws cloudwatch delete-dashboards --dashboard-names {stack}"
            yield Leftover("dashboard", stack, remedy)


def _of_other_services(client: Callable[[str], Any], stack: str) -> Iterator[Leftover]:
    pages = client("resourcegroupstaggingapi").get_paginator("get_resources")
    for page in pages.paginate(TagFilters=[{"Key": TAG, "Values": [stack]}]):
        for item in page["ResourceTagMappingList"]:
            arn = item["ResourceARN"]
            service = arn.split(":", 3)[2]
            if service not in _SEEN_HERE:
                yield Leftover(service, arn, _LOOK)
