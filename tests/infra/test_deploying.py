"""The template's resources for given parameters, and the combinations that it rejects.

SAM transforms the template here, and CloudFormation's functions are worked out (stack_template.py). cfn-lint
checks types and properties (``make lint``). What AWS then does is not tested.
"""

import json
import re

import pytest

from tests.infra.stack_template import PARAMETERS, VERSION, statements_of, worked_out, written

TEMPLATE = written()
VPC, SUBNET = "vpc-0123456789abcdef0", "subnet-0123456789abcdef0"
CLIENT = "arn:aws:secretsmanager:us-east-1:123456789012:secret:super-1/client-AbCdEf"
KEY = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
READ, LIST, S3 = "s3:GetObject", "s3:ListBucket", "arn:aws:s3:::"
STORE, KEEP = f"{S3}packs/team/store", [READ, "s3:PutObject", "s3:DeleteObject"]
BELOW, MORE = [f"{S3}images/train/*"], [f"{S3}mine", f"{S3}yours"]
ALL_BELOW = [*BELOW, *(f"{bucket}/*" for bucket in MORE)]
PREFIXES = [f"{S3}images/{prefix}/*" for prefix in ("train", "val", "test", "old")]
MORE_BUCKETS, MORE_PREFIXES = {"MoreBuckets": ",".join(MORE)}, {"MorePrefixes": "val/,test/,old/"}
WITH_STORE = {"StoreBucket": "packs", "StorePrefix": "team/store"}


def below(*prefixes):
    return {"StringLike": {"s3:prefix": prefixes[0] if len(prefixes) == 1 else list(prefixes)}}


# Of a role with these parameters, statements: action, resource, and the condition if it has one.
RIGHTS = [
    ({}, "Prefetch", "ReadSamples", READ, BELOW, None),
    ({}, "Prefetch", "CachePassword", "secretsmanager:GetSecretValue", "<FunctionSecret>", None),
    ({}, "Coordinator", "ListSamples", LIST, f"{S3}images", below("train/*")),
    ({}, "Coordinator", "ReadKeyLists", READ, BELOW, None),
    # Each version of its own function.
    ({}, "Coordinator", "InvokeFunctions", "lambda:InvokeFunction", "<Prefetch.Arn>:*", None),
    (MORE_BUCKETS, "Prefetch", "ReadSamples", READ, ALL_BELOW, None),
    (MORE_BUCKETS, "Coordinator", "ReadKeyLists", READ, ALL_BELOW, None),
    (MORE_BUCKETS, "Coordinator", "ListMoreBuckets", LIST, MORE, None),
    (MORE_PREFIXES, "Prefetch", "ReadSamples", READ, PREFIXES, None),
    (MORE_PREFIXES, "Coordinator", "ReadKeyLists", READ, PREFIXES, None),
    (
        *(MORE_PREFIXES, "Coordinator", "ListSamples", LIST, f"{S3}images"),
        below("train/*", "val/*", "test/*", "old/*"),
    ),
    (WITH_STORE, "Prefetch", "ReadStore", READ, f"{STORE}/*", None),
    (WITH_STORE, "Prefetch", "WritePacks", "s3:PutObject", f"{STORE}/packs/*", None),
    (WITH_STORE, "Coordinator", "ListStore", LIST, f"{S3}packs", below("team/store/*")),
    (WITH_STORE, "Coordinator", "KeepStore", KEEP, f"{STORE}/*", None),
]


@pytest.fixture(scope="module")
def stack():
    """The stack as it is by default."""
    return worked_out()


def endpoints(stack):
    services = [item["ServiceName"] for item in stack.of_type("AWS::EC2::VPCEndpoint").values()]
    return sorted(service.removeprefix("com.amazonaws.us-east-1.") for service in services)


def container(stack):
    (definition,) = stack.resources["CoordinatorTask"]["ContainerDefinitions"]
    return definition


def environment_of(stack):
    return {item["Name"]: item["Value"] for item in container(stack)["Environment"]}


def rules(stack, group):
    """Who may come in: ports and the groups or addresses."""
    properties = stack.resources[f"{group}SecurityGroup"]
    found = properties.get("SecurityGroupIngress", [])
    return {(rule["FromPort"], rule.get("SourceSecurityGroupId") or rule["CidrIp"]) for rule in found}


@pytest.mark.parametrize(("parameters", "role", "sid", "action", "resource", "condition"), RIGHTS)
def test_function_and_coordinator_may_what_they_must(parameters, role, sid, action, resource, condition):
    statement = statements_of(worked_out(**parameters), f"{role}Role")[sid]
    assert statement["Action"] == action
    # Of the same prefixes one may be named twice, since the template repeats a list.
    found = statement["Resource"]
    assert set(found) == set(resource) if isinstance(resource, list) else found == resource
    assert statement.get("Condition") == condition


def test_by_default_they_may_no_more(stack):
    named = {
        role: {row[2] for row in RIGHTS if row[:2] == ({}, role)} for role in ("Prefetch", "Coordinator")
    }
    of_lambda = {"Log", "NetworkInterfaces", "NetworkInterfacesAreLambdasOwn"}
    function = statements_of(stack, "PrefetchRole")
    assert set(function) == named["Prefetch"] | of_lambda
    assert function["NetworkInterfacesAreLambdasOwn"]["Effect"] == "Deny"
    assert set(statements_of(stack, "CoordinatorRole")) == named["Coordinator"]


def test_a_network_without_a_nat_gateway_lets_in_only_who_must(stack):
    assert not stack.of_type("AWS::EC2::NatGateway")
    assert endpoints(stack) == ["ecr.api", "ecr.dkr", "lambda", "logs", "s3", "secretsmanager"]
    zones = {subnet["AvailabilityZone"] for subnet in stack.of_type("AWS::EC2::Subnet").values()}
    assert zones == {"us-east-1a"}, "between zones transfer costs money"
    trainers, functions, coordinator = (
        f"<{name}SecurityGroup.GroupId>" for name in ("Trainer", "Function", "Coordinator")
    )
    assert rules(stack, "Coordinator") == {(50051, trainers)}
    assert rules(stack, "Cache") == {(6379, group) for group in (trainers, functions, coordinator)}
    assert rules(stack, "Endpoint") == {(443, "10.61.0.0/16")}
    assert rules(stack, "Trainer") == rules(stack, "Function") == set()
    wider = worked_out(MoreCidr="100.64.0.0/16")
    assert rules(wider, "Endpoint") == {(443, "10.61.0.0/16"), (443, "100.64.0.0/16")}
    for group in ("Function", "Coordinator"):
        out = wider.resources[f"{group}SecurityGroup"]["SecurityGroupEgress"]
        ranges = [rule["CidrIp"] for rule in out if rule["FromPort"] == 6379]
        assert ranges == ["10.61.0.0/16", "100.64.0.0/16"]


def test_own_endpoints_reach_the_stacks_buckets_and_this_account_alone(stack):
    assert not any("PolicyDocument" in item for item in stack.of_type("AWS::EC2::VPCEndpoint").values())
    own = worked_out(EndpointPolicies="own", StoreBucket="packs", MoreBuckets=MORE[0])
    made = own.of_type("AWS::EC2::VPCEndpoint")
    buckets, layers = made["S3GatewayEndpoint"]["PolicyDocument"]["Statement"]
    reached = [f"{S3}{name}{end}" for name in ("images", "packs", "mine") for end in ("", "/*")]
    assert buckets["Resource"] == reached
    assert layers["Resource"] == f"{S3}prod-us-east-1-starport-layer-bucket/*"
    assert layers["Action"] == READ
    account = {"StringEquals": {"aws:PrincipalAccount": "123456789012"}}
    others = [item["PolicyDocument"]["Statement"] for item in made.values() if "ServiceName" in item]
    assert [first["Condition"] for first, *_ in others] == [account] * 6
    assert made["S3GatewayEndpoint"]["RouteTableIds"] == ["<PrivateRouteTable>"]  # trainers need more of S3
    tables = stack.resources["S3GatewayEndpoint"]["RouteTableIds"]
    assert tables == ["<PrivateRouteTable>", "<PublicRouteTable>"]


def test_rules_have_the_functions_that_cloudformation_takes_there():
    """It refuses a template whose rules have others, such as Fn::Join; cfn-lint does not see them all."""
    named = set(re.findall(r'"(?:Fn::(\w+)|Condition)":', json.dumps(TEMPLATE["Rules"])))
    allowed = "And Contains EachMemberEquals EachMemberIn Equals Not Or RefAll ValueOf"
    assert named <= set(allowed.split())


def test_an_own_key_guards_what_the_stack_keeps_and_opens_by_secrets_manager_alone(stack):
    kinds = ("AWS::SecretsManager::Secret", "AWS::Logs::LogGroup", "AWS::ElastiCache::ReplicationGroup")
    own = worked_out(KmsKeyArn=KEY)
    kept = [entry for kind in kinds for entry in own.of_type(kind).values()]
    assert [entry["KmsKeyId"] for entry in kept] == [KEY] * 6
    (policy,) = own.of_type("AWS::IAM::ManagedPolicy").values()
    statements = [
        statements_of(own, f"{name}Role")["DecryptSecrets"] for name in ("Prefetch", "CoordinatorExecution")
    ]
    statements += [one for one in policy["PolicyDocument"]["Statement"] if one["Sid"] == "DecryptSecrets"]
    by = {"StringEquals": {"kms:ViaService": "secretsmanager.us-east-1.amazonaws.com"}}
    allowed = [(one["Action"], one["Resource"], one["Condition"]) for one in statements]
    assert allowed == [("kms:Decrypt", KEY, by)] * 3
    assert "KmsKeyId" not in stack.resources["Cache"]


def test_each_side_has_its_user_and_no_password_is_in_clear(stack):
    """CloudFormation finds passwords by dynamic references; the function finds its own by its secret."""
    users = {user["UserName"]: user for user in stack.of_type("AWS::ElastiCache::User").values()}
    off = users.pop("default")
    assert off["AccessString"].split() == ["off", "~*", "-@all"]
    assert set(users) == {"super-reader", "super-function", "super-coordinator"}
    references = [password for user in users.values() for password in user["Passwords"]]
    form = r"\{\{resolve:secretsmanager:<\w+Secret>:SecretString:password\}\}"
    assert all(re.fullmatch(form, reference) for reference in references)
    assert len(set(references)) == 3
    variables = stack.resources["Prefetch"]["Environment"]["Variables"]
    assert variables["SUPER_CACHE_SECRET"] == "<FunctionSecret>"
    assert "resolve:" not in json.dumps([variables, container(stack), stack.outputs])
    cache = stack.resources["Cache"]
    assert (cache["TransitEncryptionEnabled"], cache["TransitEncryptionMode"]) == (True, "required")
    assert (cache["AtRestEncryptionEnabled"], cache["SnapshotRetentionLimit"]) == (True, 0)


def test_one_coordinator_runs_confined_and_never_two(stack):
    service = stack.resources["Coordinator"]
    assert (service["DesiredCount"], service["DeploymentConfiguration"]["MaximumPercent"]) == (1, 100)
    address = service["NetworkConfiguration"]["AwsvpcConfiguration"]
    assert (address["AssignPublicIp"], address["Subnets"]) == ("DISABLED", ["<PrivateSubnet>"])
    definition = container(stack)
    assert definition["ReadonlyRootFilesystem"] is True
    assert definition["LinuxParameters"]["Capabilities"]["Drop"] == ["ALL"]
    outputs, environment = stack.outputs, environment_of(stack)
    assert outputs["CoordinatorAddress"] == "coordinator.super-1.internal:50051"
    assert environment["SUPER_LAMBDA_FUNCTION"] == outputs["FunctionArn"] == VERSION  # no alias
    assert environment["SUPER_CACHE"] == outputs["CacheAddress"]
    assert outputs["CacheAddress"] == "rediss://<Cache.PrimaryEndPoint.Address>:6379"
    assert "ClientSecretArn" not in outputs
    secrets = {item["Name"]: item["ValueFrom"] for item in definition["Secrets"]}
    assert secrets["SUPER_TLS_KEY"] == PARAMETERS["CoordinatorSecretArn"] + ":key::"
    assert secrets["SUPER_TOKEN"] == PARAMETERS["TokenSecretArn"] + ":accepted::"
    assert "SUPER_TLS_CLIENT_CA" not in secrets
    public = worked_out(Egress="public-ip")
    assert endpoints(public) == ["s3", "secretsmanager"]
    address = public.resources["Coordinator"]["NetworkConfiguration"]["AwsvpcConfiguration"]
    assert (address["AssignPublicIp"], address["Subnets"]) == ("ENABLED", ["<PublicSubnet>"])
    for kept, store in ((worked_out(**WITH_STORE), "s3://packs/team/store"), (stack, "none")):
        of_function = kept.resources["Prefetch"]["Environment"]["Variables"]
        assert of_function["SUPER_STORE"] == environment_of(kept)["SUPER_STORE"] == store


def test_all_that_can_be_chosen():
    """A network with ways out of its own, a cluster, mutual TLS, mail, a budget, a key, a reserve."""
    stack = worked_out(
        VpcId=VPC,
        VpcCidr="10.9.0.0/16",
        PrivateSubnetIds=SUBNET,
        Egress="existing",
        CacheShards="3",
        ClientSecretArn=CLIENT,
        AlarmEmail="ops@example.org",
        MonthlyBudgetUsd="300",
        BucketKmsKeyArn=f"{KEY},{KEY}",
        StoreBucket="packs",
        StoreKmsKeyArn=KEY,
        ReservedConcurrency="50",
    )
    assert not stack.of_type("AWS::EC2::VPC")
    assert endpoints(stack) == []
    assert (stack.outputs["VpcId"], stack.outputs["ClientSecretArn"]) == (VPC, CLIENT)
    assert "PublicSubnetId" not in stack.outputs
    assert stack.outputs["CacheAddress"] == "rediss://<Cache.ConfigurationEndPoint.Address>:6379"
    secrets = {item["Name"]: item["ValueFrom"] for item in container(stack)["Secrets"]}
    assert secrets["SUPER_TLS_CLIENT_CA"].endswith(":client_ca::")
    for role in ("PrefetchRole", "CoordinatorRole"):
        statements = statements_of(stack, role)
        assert [KEY, KEY] in [statement["Resource"] for statement in statements.values()]
        assert statements["StoreKey"]["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
        assert statements["StoreKey"]["Resource"] == KEY
    assert str(stack.resources["Prefetch"]["ReservedConcurrentExecutions"]) == "50"
    alarms = stack.of_type("AWS::CloudWatch::Alarm").values()
    assert all(alarm["AlarmActions"] == ["<AlarmTopic>"] for alarm in alarms)
    assert len(stack.of_type("AWS::Budgets::Budget")) == 1


@pytest.mark.parametrize(
    ("parameters", "refused_by"),
    [
        ({}, None),
        ({"Egress": "public-ip", "StoreBucket": "packs"}, None),
        ({"VpcId": VPC, "PrivateSubnetIds": f"{SUBNET},{SUBNET}", "Egress": "existing"}, None),
        ({"VpcId": VPC, "PrivateSubnetIds": SUBNET, "RouteTableIds": "rtb-01234567"}, None),
        ({"VpcId": VPC, "PrivateSubnetIds": SUBNET, "PresentEndpoints": "logs,ecr.api"}, None),
        ({"MonthlyBudgetUsd": "10", "AlarmEmail": "ops@example.org", "StepModules": "a.b,c"}, None),
        ({"MoreBuckets": "arn:aws:s3:::mine", "MoreObjects": "arn:aws:s3:::mine/*"}, None),
        ({"MoreObjects": "arn:aws:s3:::mine/*"}, "MoreObjectsAreInBuckets"),
        ({"VpcId": VPC}, "ExistingVpcIsWhole"),
        ({"VpcId": VPC, "PrivateSubnetIds": SUBNET, "Egress": "public-ip"}, "ExistingVpcIsWhole"),
        ({"PrivateSubnetIds": SUBNET}, "NewVpcIsWhole"),
        ({"Egress": "existing"}, "NewVpcIsWhole"),
        ({"PresentEndpoints": "logs"}, "NewVpcIsWhole"),
        ({"MoreCidr": "100.64.0.0/16"}, "NewVpcIsWhole"),
        ({"MonthlyBudgetUsd": "10"}, "BudgetHasAReader"),
        ({"Prefix": "", "MorePrefixes": "val/"}, "MorePrefixesHaveAFirst"),
        ({"Bucket": "s3://images"}, "Bucket"),
        ({"Prefix": "train/*"}, "Prefix"),
        ({"StoreBucket": "packs", "StorePrefix": "store/"}, "StorePrefix"),
        ({"PrivateSubnetIds": f"{SUBNET}, {SUBNET}"}, "PrivateSubnetIds"),
        ({"BucketKmsKeyArn": f"{KEY},mine"}, "BucketKmsKeyArn"),
        ({"MorePrefixes": "a/,b/,c/,d/"}, "MorePrefixes"),
    ],
)
def test_what_fits_together_and_what_does_not(stack, parameters, refused_by):
    refusals = stack.refusals(parameters)
    assert refusals == [] if refused_by is None else refused_by in refusals
