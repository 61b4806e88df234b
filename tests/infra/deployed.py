"""Deploys the stack to moto's CloudFormation, and tells what there is in the account."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

from tests.infra.account import client
from tests.infra.moto_cloudformation import recorded, teach
from tests.infra.stack_template import PARAMETERS, transformed

STACK = "super-1"


def upload(key: str = "function.zip") -> None:
    """A package for the function; moto looks whether it is there."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("lambda_prefetch/__init__.py", "")
    s3 = client("s3")
    s3.create_bucket(Bucket="artifacts")
    s3.put_object(Bucket="artifacts", Key=key, Body=buffer.getvalue())


def deploy(**parameters: str) -> dict[str, str]:
    """Make the stack; its outputs."""
    teach()
    upload()
    given = PARAMETERS | parameters
    cloudformation = client("cloudformation")
    cloudformation.create_stack(
        StackName=STACK,
        TemplateBody=json.dumps(transformed(given)),
        Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in given.items()],
        Capabilities=["CAPABILITY_IAM"],
        Tags=[{"Key": "super:stack", "Value": STACK}],
    )
    stack = cloudformation.describe_stacks(StackName=STACK)["Stacks"][0]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


def physical(logical: str) -> str:
    """A resource's own name by its name in the template."""
    found = client("cloudformation").describe_stack_resources(StackName=STACK)["StackResources"]
    return next(item["PhysicalResourceId"] for item in found if item.get("LogicalResourceId") == logical)


def inventory() -> dict[str, list[str]]:
    """What there is, by kind, but for what is in every account and for moto's default network."""
    ec2, elasticache, ecs = client("ec2"), client("elasticache"), client("ecs")
    discovery, logs, iam = client("servicediscovery"), client("logs"), client("iam")
    vpcs = [vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]]
    of_ours = [{"Name": "vpc-id", "Values": vpcs or ["none"]}]
    clusters = [
        item["clusterArn"]
        for item in ecs.describe_clusters(clusters=ecs.list_clusters()["clusterArns"])["clusters"]
        if item["status"] == "ACTIVE"
    ]
    found = {
        "vpc": vpcs,
        "subnet": [item["SubnetId"] for item in ec2.describe_subnets(Filters=of_ours)["Subnets"]],
        "endpoint": [
            item["VpcEndpointId"]
            for item in ec2.describe_vpc_endpoints()["VpcEndpoints"]
            if item["State"] != "deleted"
        ],
        "gateway": [
            item["InternetGatewayId"] for item in ec2.describe_internet_gateways()["InternetGateways"]
        ],
        "nat": [item["NatGatewayId"] for item in ec2.describe_nat_gateways()["NatGateways"]],
        "group": [
            item["GroupId"] for item in ec2.describe_security_groups()["SecurityGroups"] if _ours(item)
        ],
        "secret": [item["Name"] for item in client("secretsmanager").list_secrets()["SecretList"]],
        "cache": [
            item["ReplicationGroupId"]
            for item in elasticache.describe_replication_groups()["ReplicationGroups"]
            if item["Status"] != "deleting"  # as moto leaves it
        ],
        "user": [
            item["UserId"] for item in elasticache.describe_users()["Users"] if item["UserId"] != "default"
        ],
        "function": [item["FunctionName"] for item in client("lambda").list_functions()["Functions"]],
        "cluster": clusters,
        "service": [arn for cluster in clusters for arn in ecs.list_services(cluster=cluster)["serviceArns"]],
        "namespace": [item["Name"] for item in discovery.list_namespaces()["Namespaces"]],
        "name": [item["Name"] for item in discovery.list_services()["Services"]],
        "log": [item["logGroupName"] for item in logs.describe_log_groups()["logGroups"]],
        "filter": [item["filterName"] for item in logs.describe_metric_filters()["metricFilters"]],
        "role": [item["RoleName"] for item in iam.list_roles()["Roles"]],
        "policy": [item["PolicyName"] for item in iam.list_policies(Scope="Local")["Policies"]],
        "alarm": [item["AlarmName"] for item in client("cloudwatch").describe_alarms()["MetricAlarms"]],
        "dashboard": [
            item["DashboardName"] for item in client("cloudwatch").list_dashboards()["DashboardEntries"]
        ],
        "topic": [item["TopicArn"] for item in client("sns").list_topics()["Topics"]],
        "budget": [
            item["BudgetName"]
            for item in client("budgets").describe_budgets(AccountId="123456789012").get("Budgets", [])
        ],
        "remembered": list(recorded),
    }
    return {kind: names for kind, names in found.items() if names}


def _ours(group: dict[str, Any]) -> bool:
    return any(tag["Key"] == "super:stack" for tag in group.get("Tags", []))
