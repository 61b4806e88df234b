"""What SAM makes of the template deploys to moto's CloudFormation, is as it should be, and goes without a
rest.

moto knows what APIs take, not what AWS does: whether a role suffices or a service is reached is not tested.
"""

from __future__ import annotations

import ast
import fnmatch
import json

import pytest

from superdl.doctor.stack import read_stack
from tests.infra.account import client, empty_account
from tests.infra.deployed import deploy, inventory, physical
from tests.infra.moto_cloudformation import recorded
from tests.infra.stack_template import PARAMETERS

REGION = "us-east-1"
GIVEN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:super-1/client-AbCdEf"
KEY = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def stack(moto_url):
    """The outputs of the stack as it is by default; it is looked at, and not changed."""
    with pytest.MonkeyPatch.context() as patch, empty_account(moto_url, patch):
        yield deploy()


@pytest.fixture
def other(aws):
    """Deploys with other parameters, into an empty account."""
    recorded.clear()
    return deploy


def policy_of(role):
    """The statements of a role's one policy, by their id."""
    iam = client("iam")
    name = iam.list_role_policies(RoleName=role)["PolicyNames"][0]
    document = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
    statements = (ast.literal_eval(document) if isinstance(document, str) else document)["Statement"]
    return {statement["Sid"]: statement for statement in statements if statement}


def endpoints():
    found = client("ec2").describe_vpc_endpoints()["VpcEndpoints"]
    return sorted(item["ServiceName"].removeprefix(f"com.amazonaws.{REGION}.") for item in found)


def rules(group):
    """Who may come in: ports and the groups or addresses."""
    found = client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
    return sorted(
        (rule["FromPort"], source.get("GroupId") or source.get("CidrIp"))
        for rule in found
        for source in [*rule["UserIdGroupPairs"], *rule["IpRanges"]]
    )


def container():
    task = client("ecs").list_task_definitions()["taskDefinitionArns"][-1]
    return client("ecs").describe_task_definition(taskDefinition=task)["taskDefinition"]


def test_it_has_the_outputs_that_doctor_reads(stack):
    assert stack["CoordinatorAddress"] == "coordinator.super-1.internal:50051"
    assert stack["CacheAddress"].startswith("rediss://master.")
    assert stack["FunctionName"] == "super-1-prefetch"
    assert stack["FunctionArn"] == f"arn:aws:lambda:{REGION}:123456789012:function:super-1-prefetch:1"
    assert (stack["FunctionVersion"], stack["Region"]) == ("1", REGION)
    assert (stack["Bucket"], stack["Prefix"]) == ("images", "train/")
    assert stack["TrainerSecurityGroup"].startswith("sg-")
    assert stack["ReaderSecretArn"].startswith(f"arn:aws:secretsmanager:{REGION}:")
    assert stack["TokenSecretArn"] == PARAMETERS["TokenSecretArn"]
    assert stack["CaSecretArn"] == PARAMETERS["CaSecretArn"]
    assert stack["DashboardUrl"].endswith("name=super-1")
    assert "ClientSecretArn" not in stack
    told = read_stack("super-1")  # asked for by its name
    assert (told.coordinator, told.cache) == (stack["CoordinatorAddress"], stack["CacheAddress"])
    assert (told.function, told.region, told.readable) == (stack["FunctionArn"], REGION, "s3://images/train/")


def test_a_network_without_a_nat_gateway_reaches_what_it_needs(stack):
    assert "nat" not in inventory()
    assert endpoints() == ["ecr.api", "ecr.dkr", "lambda", "logs", "s3", "secretsmanager"]
    subnets = client("ec2").describe_subnets(SubnetIds=inventory()["subnet"])["Subnets"]
    assert len({subnet["AvailabilityZone"] for subnet in subnets}) == 1  # between zones transfer costs money


def test_only_trainers_functions_and_the_coordinator_come_in(stack):
    trainers, functions, coordinator, cache, service = (
        physical(f"{name}SecurityGroup")
        for name in ("Trainer", "Function", "Coordinator", "Cache", "Endpoint")
    )
    assert trainers == stack["TrainerSecurityGroup"]
    assert rules(coordinator) == [(50051, trainers)]
    assert rules(cache) == sorted((6379, group) for group in (trainers, functions, coordinator))
    assert rules(service) == [(443, "10.61.0.0/16")]
    assert rules(trainers) == rules(functions) == []


def test_the_function_may_read_its_prefix_and_its_secret(stack):
    statements = policy_of(physical("PrefetchRole"))
    assert statements["ReadSamples"]["Resource"] == "arn:aws:s3:::images/train/*"
    assert statements["ReadSamples"]["Action"] == "s3:GetObject"
    assert statements["CachePassword"]["Resource"] == physical("FunctionSecret")
    assert statements["NetworkInterfacesAreLambdasOwn"]["Effect"] == "Deny"
    assert set(statements) == {
        *("ReadSamples", "CachePassword", "Log", "NetworkInterfaces", "NetworkInterfacesAreLambdasOwn")
    }


def test_the_coordinator_may_list_and_invoke(stack):
    statements = policy_of(physical("CoordinatorRole"))
    assert statements["ListSamples"]["Resource"] == "arn:aws:s3:::images"
    assert statements["ListSamples"]["Condition"] == {"StringLike": {"s3:prefix": "train/*"}}
    allowed = statements["InvokeFunctions"]["Resource"]
    assert fnmatch.fnmatchcase(stack["FunctionArn"], allowed)
    assert not fnmatch.fnmatchcase(stack["FunctionArn"].replace("super-1", "super-2"), allowed)
    assert statements["ReadKeyLists"]["Resource"] == "arn:aws:s3:::images/train/*"
    assert set(statements) == {"ListSamples", "ReadKeyLists", "InvokeFunctions"}


def test_no_password_is_in_clear_anywhere(stack):
    manager = client("secretsmanager")
    made = ("ReaderSecret", "FunctionSecret", "CoordinatorCacheSecret")
    passwords = [
        json.loads(manager.get_secret_value(SecretId=physical(name))["SecretString"])["password"]
        for name in made
    ]
    assert len(set(passwords)) == len(made)
    function = client("lambda").get_function_configuration(FunctionName=stack["FunctionName"])
    shown = json.dumps([function["Environment"], container()["containerDefinitions"], stack])
    assert not [password for password in passwords if password in shown]
    assert function["Environment"]["Variables"]["SUPER_CACHE_SECRET"] == physical("FunctionSecret")


def test_each_side_has_its_user_and_the_default_user_is_off(stack):
    users = {user["UserName"]: user for user in client("elasticache").describe_users()["Users"]}
    assert set(users) == {"default", "super-reader", "super-function", "super-coordinator"}
    assert users["default"]["AccessString"].split() == ["off", "~*", "-@all"]
    assert all(user["Authentication"]["Type"] == "password" for user in users.values())
    manager = client("secretsmanager")
    for secret, name in (("ReaderSecret", "super-reader"), ("FunctionSecret", "super-function")):
        said = json.loads(manager.get_secret_value(SecretId=physical(secret))["SecretString"])
        assert said["username"] == name


def test_the_cache_speaks_tls_only_and_keeps_no_snapshots(stack):
    cache = client("elasticache").describe_replication_groups()["ReplicationGroups"][0]
    assert cache["TransitEncryptionEnabled"] is True
    assert cache["TransitEncryptionMode"] == "required"
    assert cache["AtRestEncryptionEnabled"] is True
    assert cache["SnapshotRetentionLimit"] == 0
    assert cache["CacheNodeType"] == "cache.r7g.large"


def test_one_coordinator_runs_and_never_two(stack):
    cluster, service = stack["CoordinatorService"].split("/")
    found = client("ecs").describe_services(cluster=cluster, services=[service])["services"][0]
    assert found["desiredCount"] == 1
    address = found["networkConfiguration"]["awsvpcConfiguration"]
    assert address["assignPublicIp"] == "DISABLED"
    assert address["subnets"] == [physical("PrivateSubnet")]


def test_the_coordinators_container_is_confined_and_asked_for_its_health(stack):
    task = container()
    (definition,) = task["containerDefinitions"]
    assert definition["readonlyRootFilesystem"] is True
    assert definition["user"] == "10001:10001"
    assert definition["linuxParameters"]["capabilities"]["drop"] == ["ALL"]
    assert definition["stopTimeout"] == 30
    assert definition["healthCheck"]["command"][-2:] == ["-m", "superdl.coordinator.probe"]
    assert (task["cpu"], task["memory"]) == ("1024", "2048")
    environment = {item["name"]: item["value"] for item in definition["environment"]}
    assert environment["SUPER_LAMBDA_FUNCTION"] == stack["FunctionArn"]  # a version, no alias
    assert environment["SUPER_CACHE"] == stack["CacheAddress"]
    secrets = {item["name"]: item["valueFrom"] for item in definition["secrets"]}
    assert secrets["SUPER_TLS_KEY"] == PARAMETERS["CoordinatorSecretArn"] + ":key::"
    assert secrets["SUPER_TOKEN"] == PARAMETERS["TokenSecretArn"] + ":accepted::"
    assert "SUPER_TLS_CLIENT_CA" not in secrets


def test_events_are_neither_repeated_nor_kept(stack):
    function, version = stack["FunctionName"], stack["FunctionVersion"]
    found = client("lambda").get_function_event_invoke_config(FunctionName=function, Qualifier=version)
    assert (found["MaximumRetryAttempts"], found["MaximumEventAgeInSeconds"]) == (0, 60)


@pytest.mark.slow
def test_a_public_address_saves_endpoints(other):
    other(Egress="public-ip")
    assert endpoints() == ["s3", "secretsmanager"]
    service = client("ecs").list_services(cluster=physical("Cluster"))["serviceArns"]
    found = client("ecs").describe_services(cluster=physical("Cluster"), services=service)["services"][0]
    address = found["networkConfiguration"]["awsvpcConfiguration"]
    assert address["assignPublicIp"] == "ENABLED"
    assert address["subnets"] == [physical("PublicSubnet")]


@pytest.mark.slow
def test_all_that_can_be_chosen(other):
    """A network with ways out of its own, a cluster, mutual TLS, mail, a budget, a key, a reserve."""
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    before = inventory()
    outputs = other(
        VpcId=vpc,
        VpcCidr="10.9.0.0/16",
        PrivateSubnetIds=subnet,
        Egress="existing",
        CacheShards="3",
        ClientSecretArn=GIVEN,
        AlarmEmail="ops@example.org",
        MonthlyBudgetUsd="300",
        BucketKmsKeyArn=KEY,
        ReservedConcurrency="50",
    )
    assert inventory()["vpc"] == [vpc]
    assert endpoints() == []
    assert outputs["VpcId"] == vpc
    assert "PublicSubnetId" not in outputs
    assert outputs["CacheAddress"].startswith("rediss://clustercfg.")
    assert outputs["ClientSecretArn"] == GIVEN
    secrets = {item["name"]: item["valueFrom"] for item in container()["containerDefinitions"][0]["secrets"]}
    assert secrets["SUPER_TLS_CLIENT_CA"].endswith(":client_ca::")
    for role in ("PrefetchRole", "CoordinatorRole"):
        assert KEY in [statement["Resource"] for statement in policy_of(physical(role)).values()]
    reserved = client("lambda").get_function_concurrency(FunctionName=outputs["FunctionName"])
    assert reserved["ReservedConcurrentExecutions"] == 50
    alarms = client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert all(alarm["AlarmActions"] == inventory()["topic"] for alarm in alarms)
    assert inventory()["budget"] == ["super-1-monthly"]
    client("cloudformation").delete_stack(StackName="super-1")
    assert inventory() == before


def test_nothing_is_left_when_it_is_deleted(other):
    other()
    made = inventory()
    assert {"vpc", "endpoint", "cache", "user", "secret", "service", "log", "alarm"} <= made.keys()
    client("cloudformation").delete_stack(StackName="super-1")
    assert inventory() == {}
