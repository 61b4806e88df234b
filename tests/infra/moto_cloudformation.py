"""Teaches moto's CloudFormation the resource types of our template that it does not know.

Each is made and deleted by moto's own API of the service where there is one, so that a property that the
service refuses is refused here too, and what a stack leaves behind is in the service's own list. Types of
which moto has no service are in ``RECORDED``: they are remembered; only cfn-lint looks at their properties.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError
from moto.cloudformation import parsing
from moto.cloudformation.exceptions import ValidationError
from moto.core.common_models import CloudFormationModel

from tests.infra.account import client

# moto knows these, but its Version has no Ref, its ECS leaves most properties out, and the others stay.
REPLACED = {
    "AWS::EC2::InternetGateway",
    "AWS::EC2::RouteTable",
    "AWS::EC2::VPCEndpoint",
    "AWS::EC2::VPCGatewayAttachment",
    "AWS::ECS::Cluster",
    "AWS::ECS::Service",
    "AWS::ECS::TaskDefinition",
    "AWS::IAM::ManagedPolicy",
    "AWS::Lambda::Version",
}
RECORDED = {"AWS::ElastiCache::ParameterGroup", "AWS::ElastiCache::UserGroup"}

recorded: dict[str, str] = {}
"""Physical ids of what is remembered only, with the type."""

_DYNAMIC = re.compile(r"\{\{resolve:secretsmanager:(?P<arn>.+):SecretString:(?P<field>[a-z]+)\}\}")


def lowered(value: Any) -> Any:
    """Property names as APIs have them that begin them in lower case; without what is AWS::NoValue."""
    if isinstance(value, dict):
        return {name[:1].lower() + name[1:]: lowered(item) for name, item in value.items()}
    return [lowered(item) for item in value if item is not None] if isinstance(value, list) else value


def resolved(text: str) -> str:
    """A dynamic reference's value, as CloudFormation finds it; the reference must be whole."""
    match = _DYNAMIC.fullmatch(text)
    assert match, f"not a dynamic reference: {text}"
    secret = client("secretsmanager").get_secret_value(SecretId=match["arn"])["SecretString"]
    return json.loads(secret)[match["field"]]


class Made(CloudFormationModel):
    """One resource: what ``Ref`` and ``Fn::GetAtt`` say of it, and how it goes."""

    kind: ClassVar[str] = ""

    def __init__(self, physical_id: str, attributes: dict[str, Any], delete: Any) -> None:
        self.physical_resource_id = physical_id
        self.attributes = attributes
        self.delete_it = delete

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True

    def get_cfn_attribute(self, name: str) -> Any:
        return self.attributes[name]

    def is_created(self) -> bool:
        return True

    def delete(self, *_: Any) -> None:
        try:
            self.delete_it()
        except ClientError as error:  # gone with its owner: moto keeps no order when it deletes
            if error.response["Error"]["Code"] not in {"404", "ResourceNotFoundException"}:
                raise


def _secret(name: str, properties: dict[str, Any]) -> Made:
    manager = client("secretsmanager")
    wanted = properties["GenerateSecretString"]
    password = manager.get_random_password(
        PasswordLength=wanted["PasswordLength"], ExcludePunctuation=wanted["ExcludePunctuation"]
    )["RandomPassword"]
    content = {**json.loads(wanted["SecretStringTemplate"]), wanted["GenerateStringKey"]: password}
    arn = manager.create_secret(
        Name=properties["Name"],
        Description=properties["Description"],
        Tags=properties["Tags"],
        SecretString=json.dumps(content),
    )["ARN"]
    return Made(arn, {}, lambda: manager.delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True))


def _user(name: str, properties: dict[str, Any]) -> Made:
    elasticache = client("elasticache")
    properties = properties | {"Passwords": [resolved(text) for text in properties["Passwords"]]}
    assert all(16 <= len(password) <= 128 for password in properties["Passwords"])
    user = elasticache.create_user(**properties)

    def delete() -> None:
        elasticache.delete_user(UserId=user["UserId"])
        elasticache.describe_users(UserId=user["UserId"])  # moto takes it away when it is looked at

    return Made(user["UserId"], {"Arn": user["ARN"]}, delete)


def _subnets(name: str, properties: dict[str, Any]) -> Made:
    properties = dict(properties)
    description = properties.pop("Description")
    client("elasticache").create_cache_subnet_group(
        CacheSubnetGroupName=name.lower(), CacheSubnetGroupDescription=description, **properties
    )
    return Made(name.lower(), {}, lambda: None)  # moto has no way to delete one


def _cache(name: str, properties: dict[str, Any]) -> Made:
    elasticache = client("elasticache")
    group = properties["ReplicationGroupId"]
    if "NumNodeGroups" in properties:
        properties = properties | {"NumNodeGroups": int(properties["NumNodeGroups"])}
    elasticache.create_replication_group(**properties)

    def delete() -> None:
        elasticache.delete_replication_group(ReplicationGroupId=group)
        elasticache.describe_replication_groups(ReplicationGroupId=group)

    attributes = {
        "PrimaryEndPoint": f"master.{group}.example.amazonaws.com",
        "ConfigurationEndPoint": f"clustercfg.{group}.example.amazonaws.com",
    }
    return Made(group, attributes, delete)


def _namespace(name: str, properties: dict[str, Any]) -> Made:
    discovery = client("servicediscovery")
    operation = discovery.create_private_dns_namespace(CreatorRequestId=name, **properties)["OperationId"]
    found = discovery.get_operation(OperationId=operation)["Operation"]["Targets"]["NAMESPACE"]
    return Made(found, {}, lambda: discovery.delete_namespace(Id=found))


def _discovery(name: str, properties: dict[str, Any]) -> Made:
    discovery = client("servicediscovery")
    made = discovery.create_service(CreatorRequestId=name, **properties)["Service"]
    return Made(made["Id"], {"Arn": made["Arn"]}, lambda: discovery.delete_service(Id=made["Id"]))


def _alarm(name: str, properties: dict[str, Any]) -> Made:
    cloudwatch = client("cloudwatch")
    cloudwatch.put_metric_alarm(AlarmName=name, **properties)
    return Made(name, {}, lambda: cloudwatch.delete_alarms(AlarmNames=[name]))


def _version(name: str, properties: dict[str, Any]) -> Made:
    made = client("lambda").publish_version(**properties)
    attributes = {"Version": made["Version"], "FunctionArn": made["FunctionArn"]}
    return Made(made["FunctionArn"], attributes, lambda: None)  # it goes with its function


def _alias(name: str, properties: dict[str, Any]) -> Made:
    functions = client("lambda")
    where = {"FunctionName": properties["FunctionName"], "Name": properties["Name"]}
    made = functions.create_alias(**where, FunctionVersion=str(properties["FunctionVersion"]))
    return Made(made["AliasArn"], {}, lambda: functions.delete_alias(**where))


def _events(name: str, properties: dict[str, Any]) -> Made:
    functions = client("lambda")
    functions.put_function_event_invoke_config(**properties)
    return Made(name, {}, lambda: None)  # it goes with its function


def _ec2(kind: str, properties: dict[str, Any], create: str, delete: str, id_name: str) -> Made:
    """A resource of EC2's, by the names of its API's methods."""
    ec2, given = client("ec2"), dict(properties)
    tags = [{"ResourceType": kind, "Tags": given.pop("Tags")}]
    answer = getattr(ec2, create)(TagSpecifications=tags, **given)
    answer.pop("ResponseMetadata")
    found = next(iter(answer.values()))[id_name]
    many = delete.endswith("s")
    name, value = (f"{id_name}s", [found]) if many else (id_name, found)
    return Made(found, {"Id": found}, lambda: getattr(ec2, delete)(**{name: value}))


def _endpoint(name: str, properties: dict[str, Any]) -> Made:
    return _ec2("vpc-endpoint", properties, "create_vpc_endpoint", "delete_vpc_endpoints", "VpcEndpointId")


def _gateway(name: str, properties: dict[str, Any]) -> Made:
    return _ec2(
        "internet-gateway",
        properties,
        "create_internet_gateway",
        "delete_internet_gateway",
        "InternetGatewayId",
    )


def _routes(name: str, properties: dict[str, Any]) -> Made:
    made = _ec2("route-table", properties, "create_route_table", "delete_route_table", "RouteTableId")
    delete = made.delete_it

    def delete_after_endpoints() -> None:
        for endpoint in client("ec2").describe_vpc_endpoints()["VpcEndpoints"]:
            used = endpoint["State"] != "deleted" and made.physical_resource_id in endpoint["RouteTableIds"]
            assert not used, "the endpoint goes first, or moto loses its way: it comes back to this later"
        delete()

    made.delete_it = delete_after_endpoints
    return made


def _attachment(name: str, properties: dict[str, Any]) -> Made:
    ec2 = client("ec2")
    ec2.attach_internet_gateway(**properties)
    return Made(name, {}, lambda: ec2.detach_internet_gateway(**properties))


def _policy(name: str, properties: dict[str, Any]) -> Made:
    iam = client("iam")
    document = json.dumps(properties["PolicyDocument"])
    made = iam.create_policy(PolicyName=name, PolicyDocument=document)["Policy"]["Arn"]
    return Made(made, {}, lambda: iam.delete_policy(PolicyArn=made))


def _task(name: str, properties: dict[str, Any]) -> Made:
    ecs = client("ecs")
    made = ecs.register_task_definition(**lowered(properties))["taskDefinition"]
    arn = made["taskDefinitionArn"]
    return Made(arn, {}, lambda: ecs.deregister_task_definition(taskDefinition=arn))


def _cluster(name: str, properties: dict[str, Any]) -> Made:
    ecs = client("ecs")
    given = lowered(properties)
    ecs.create_cluster(clusterName=name, settings=given.pop("clusterSettings"), **given)
    return Made(name, {}, lambda: ecs.delete_cluster(cluster=name))


def _service(name: str, properties: dict[str, Any]) -> Made:
    ecs = client("ecs")
    made = ecs.create_service(**lowered(properties))["service"]
    where = {"cluster": properties["Cluster"], "service": made["serviceName"]}
    return Made(
        made["serviceArn"],
        {"Name": made["serviceName"]},
        lambda: ecs.delete_service(**where, force=True),
    )


def _filter(name: str, properties: dict[str, Any]) -> Made:
    logs = client("logs")
    logs.put_metric_filter(filterName=name, **lowered(properties))
    where = {"logGroupName": properties["LogGroupName"], "filterName": name}
    return Made(name, {}, lambda: logs.delete_metric_filter(**where))


def _budget(name: str, properties: dict[str, Any]) -> Made:
    account = client("sts").get_caller_identity()["Account"]
    budgets = client("budgets")
    where = {"AccountId": account, "BudgetName": properties["Budget"]["BudgetName"]}
    properties["Budget"]["BudgetLimit"]["Amount"] = str(properties["Budget"]["BudgetLimit"]["Amount"])
    budgets.create_budget(AccountId=account, **properties)
    return Made(name, {}, lambda: budgets.delete_budget(**where))


def _remembered(name: str, properties: dict[str, Any]) -> Made:
    recorded[name] = "remembered"
    return Made(name, {}, lambda: recorded.pop(name))


MAKERS = {
    "AWS::Budgets::Budget": _budget,
    "AWS::CloudWatch::Alarm": _alarm,
    "AWS::EC2::InternetGateway": _gateway,
    "AWS::EC2::RouteTable": _routes,
    "AWS::EC2::VPCEndpoint": _endpoint,
    "AWS::EC2::VPCGatewayAttachment": _attachment,
    "AWS::ECS::Cluster": _cluster,
    "AWS::ECS::Service": _service,
    "AWS::ECS::TaskDefinition": _task,
    "AWS::ElastiCache::ReplicationGroup": _cache,
    "AWS::ElastiCache::SubnetGroup": _subnets,
    "AWS::ElastiCache::User": _user,
    "AWS::IAM::ManagedPolicy": _policy,
    "AWS::Lambda::Alias": _alias,
    "AWS::Lambda::EventInvokeConfig": _events,
    "AWS::Lambda::Version": _version,
    "AWS::Logs::MetricFilter": _filter,
    "AWS::SecretsManager::Secret": _secret,
    "AWS::ServiceDiscovery::PrivateDnsNamespace": _namespace,
    "AWS::ServiceDiscovery::Service": _discovery,
    **dict.fromkeys(RECORDED, _remembered),
}


def _model(kind: str) -> type[CloudFormationModel]:
    """moto finds types by the direct subclasses of its model."""

    def create_from_cloudformation_json(
        cls: Any, resource_name: str, cloudformation_json: dict[str, Any], *_: Any, **__: Any
    ) -> Made:
        try:
            return MAKERS[kind](resource_name, cloudformation_json["Properties"])
        except (BotoCoreError, ClientError) as error:  # else the client would get a page of HTML
            raise ValidationError(message=f"{kind}: {error}") from error

    return type(
        kind.replace(":", ""),
        (CloudFormationModel,),
        {
            "cloudformation_name_type": staticmethod(lambda: ""),
            "cloudformation_type": staticmethod(lambda: kind),
            "create_from_cloudformation_json": classmethod(create_from_cloudformation_json),
            "has_cfn_attr": classmethod(lambda cls, attr: True),
        },
    )


_taught: list[type[CloudFormationModel]] = []


def teach() -> None:
    """Let moto's CloudFormation know them, once per process."""
    if not _taught:
        known = {model.cloudformation_type() for model in CloudFormationModel.__subclasses__()}
        assert known & MAKERS.keys() == REPLACED, "moto knows others of them by now: leave those to it"
        _taught.extend(_model(kind) for kind in MAKERS)
        for cached in (parsing.get_model_list, parsing.get_model_map, parsing.get_name_type_map):
            cached.cache_clear()
