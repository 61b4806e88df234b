"""What the template makes with given parameters is as it should be, and what does not fit is refused.

SAM transforms the template here, and CloudFormation's functions are worked out (stack_template.py). cfn-lint
checks types and properties (``make lint``). What AWS then does is not tested.
"""

import copy
import json
import re

import pytest

from tests.infra.stack_template import PARAMETERS, VERSION, WorkedOut, written

TEMPLATE = written()
VPC, SUBNET = "vpc-0123456789abcdef0", "subnet-0123456789abcdef0"
CLIENT = "arn:aws:secretsmanager:us-east-1:123456789012:secret:super-1/client-AbCdEf"
KEY = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def stack():
    """The stack as it is by default."""
    return WorkedOut()


def statements_of(stack, role):
    """The statements of a role's one policy, by their id."""
    (policy,) = stack.resources[role]["Policies"]
    return {statement["Sid"]: statement for statement in policy["PolicyDocument"]["Statement"]}


def endpoints(stack):
    services = [item["ServiceName"] for item in stack.of_type("AWS::EC2::VPCEndpoint").values()]
    return sorted(service.removeprefix("com.amazonaws.us-east-1.") for service in services)


def container(stack):
    (definition,) = stack.resources["CoordinatorTask"]["ContainerDefinitions"]
    return definition


def rules(stack, group):
    """Who may come in: ports and the groups or addresses."""
    properties = stack.resources[f"{group}SecurityGroup"]
    found = properties.get("SecurityGroupIngress", [])
    return {(rule["FromPort"], rule.get("SourceSecurityGroupId") or rule["CidrIp"]) for rule in found}


def test_its_outputs_say_where_everything_is(stack):
    outputs = stack.outputs
    assert outputs["CoordinatorAddress"] == "coordinator.super-1.internal:50051"
    assert outputs["CacheAddress"] == "rediss://<Cache.PrimaryEndPoint.Address>:6379"
    assert outputs["DashboardUrl"].endswith("name=<Dashboard>")
    assert "ClientSecretArn" not in outputs
    assert (outputs["FunctionArn"], outputs["FunctionVersion"]) == (VERSION, "1")
    assert (outputs["Region"], outputs["Bucket"], outputs["Prefix"]) == ("us-east-1", "images", "train/")


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


def assert_statements(statements, rows):
    """Of each statement, by its id: actions and resources."""
    for sid, (actions, resources) in rows.items():
        assert (statements[sid]["Action"], statements[sid]["Resource"]) == (actions, resources), sid


def test_function_and_coordinator_may_what_they_must(stack):
    samples = ["arn:aws:s3:::images/train/*"]
    function, coordinator = (statements_of(stack, role) for role in ("PrefetchRole", "CoordinatorRole"))
    rows = {"ReadSamples": ("s3:GetObject", samples)}
    rows["CachePassword"] = ("secretsmanager:GetSecretValue", "<FunctionSecret>")
    assert_statements(function, rows)
    assert set(function) == {*rows, "Log", "NetworkInterfaces", "NetworkInterfacesAreLambdasOwn"}
    assert function["NetworkInterfacesAreLambdasOwn"]["Effect"] == "Deny"
    rows = {
        "ListSamples": ("s3:ListBucket", "arn:aws:s3:::images"),
        "ReadKeyLists": ("s3:GetObject", samples),
    }
    assert_statements(coordinator, rows)
    assert coordinator["ListSamples"]["Condition"] == {"StringLike": {"s3:prefix": "train/*"}}
    assert (
        coordinator["InvokeFunctions"]["Resource"] == "<Prefetch.Arn>:*"
    )  # each version of its own function
    assert set(coordinator) == {*rows, "InvokeFunctions"}


def test_further_buckets_are_read_whole_and_a_second_range_comes_in():
    more = [f"arn:aws:s3:::{name}" for name in ("mine", "yours")]
    stack = WorkedOut(MoreBuckets=",".join(more), MoreCidr="100.64.0.0/16")
    below = ["arn:aws:s3:::images/train/*", *(f"{bucket}/*" for bucket in more)]
    assert statements_of(stack, "PrefetchRole")["ReadSamples"]["Resource"] == below
    coordinator = statements_of(stack, "CoordinatorRole")
    assert coordinator["ReadKeyLists"]["Resource"] == below
    assert coordinator["ListMoreBuckets"]["Resource"] == more
    assert rules(stack, "Endpoint") == {(443, "10.61.0.0/16"), (443, "100.64.0.0/16")}
    for group in ("Function", "Coordinator"):
        out = stack.resources[f"{group}SecurityGroup"]["SecurityGroupEgress"]
        ranges = [rule["CidrIp"] for rule in out if rule["FromPort"] == 6379]
        assert ranges == ["10.61.0.0/16", "100.64.0.0/16"]


def test_further_prefixes_are_read_and_listed():
    stack = WorkedOut(MorePrefixes=(more := "val/,test/,old/"))
    named = ["train/*", *(f"{prefix}*" for prefix in more.split(","))]
    for role, sid in (("PrefetchRole", "ReadSamples"), ("CoordinatorRole", "ReadKeyLists")):
        read = statements_of(stack, role)[sid]["Resource"]
        assert set(read) == {f"arn:aws:s3:::images/{prefix}" for prefix in named}
    listed = statements_of(stack, "CoordinatorRole")["ListSamples"]
    assert listed["Condition"]["StringLike"]["s3:prefix"] == named


def test_own_endpoints_reach_the_stacks_buckets_and_this_account_alone(stack):
    assert not any("PolicyDocument" in item for item in stack.of_type("AWS::EC2::VPCEndpoint").values())
    own = WorkedOut(EndpointPolicies="own", StoreBucket="packs", MoreBuckets="arn:aws:s3:::mine")
    made = own.of_type("AWS::EC2::VPCEndpoint")
    buckets, layers = made["S3GatewayEndpoint"]["PolicyDocument"]["Statement"]
    reached = [f"arn:aws:s3:::{name}{end}" for name in ("images", "packs", "mine") for end in ("", "/*")]
    assert buckets["Resource"] == reached
    assert layers["Resource"] == "arn:aws:s3:::prod-us-east-1-starport-layer-bucket/*"
    assert layers["Action"] == "s3:GetObject"
    account = {"StringEquals": {"aws:PrincipalAccount": "123456789012"}}
    others = [item["PolicyDocument"]["Statement"] for item in made.values() if "ServiceName" in item]
    assert [first["Condition"] for first, *_ in others] == [account] * 6
    assert made["S3GatewayEndpoint"]["RouteTableIds"] == ["<PrivateRouteTable>"]  # trainers need more of S3
    tables = stack.resources["S3GatewayEndpoint"]["RouteTableIds"]
    assert tables == ["<PrivateRouteTable>", "<PublicRouteTable>"]


def test_rules_have_the_functions_that_cloudformation_takes_there():
    """It refuses a template whose rules have others, such as Fn::Join; cfn-lint does not see them all."""
    named = set(re.findall(r'"(Fn::\w+|Condition)":', json.dumps(TEMPLATE["Rules"])))
    allowed = (
        "And",
        "Contains",
        "EachMemberEquals",
        "EachMemberIn",
        "Equals",
        "Not",
        "Or",
        "RefAll",
        "ValueOf",
    )
    assert named <= {f"Fn::{name}" for name in allowed}


def test_an_own_key_guards_what_the_stack_keeps_and_opens_by_secrets_manager_alone(stack):
    kinds = ("AWS::SecretsManager::Secret", "AWS::Logs::LogGroup", "AWS::ElastiCache::ReplicationGroup")
    own = WorkedOut(KmsKeyArn=KEY)
    kept = [entry for kind in kinds for entry in own.of_type(kind).values()]
    assert [entry["KmsKeyId"] for entry in kept] == [KEY] * 6
    roles = [statements_of(own, f"{name}Role") for name in ("Prefetch", "CoordinatorExecution")]
    (policy,) = own.of_type("AWS::IAM::ManagedPolicy").values()
    roles.append({one["Sid"]: one for one in policy["PolicyDocument"]["Statement"]})
    for statements in roles:
        allowed = statements["DecryptSecrets"]
        assert (allowed["Action"], allowed["Resource"]) == ("kms:Decrypt", KEY)
        by = {"kms:ViaService": "secretsmanager.us-east-1.amazonaws.com"}
        assert allowed["Condition"] == {"StringEquals": by}
    assert "KmsKeyId" not in stack.resources["Cache"]


def test_a_store_is_read_and_written_below_its_prefix_alone():
    stack = WorkedOut(StoreBucket="packs", StorePrefix="team/store")
    function, coordinator = (statements_of(stack, f"{name}Role") for name in ("Prefetch", "Coordinator"))
    below = "arn:aws:s3:::packs/team/store"
    rows = {"ReadStore": ("s3:GetObject", f"{below}/*"), "WritePacks": ("s3:PutObject", f"{below}/packs/*")}
    assert_statements(function, rows)
    keeping = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    rows = {"ListStore": ("s3:ListBucket", "arn:aws:s3:::packs"), "KeepStore": (keeping, f"{below}/*")}
    assert_statements(coordinator, rows)
    assert coordinator["ListStore"]["Condition"] == {"StringLike": {"s3:prefix": "team/store/*"}}
    for worked_out, address in ((stack, "s3://packs/team/store"), (WorkedOut(), "none")):
        variables = worked_out.resources["Prefetch"]["Environment"]["Variables"]
        assert variables["SUPER_STORE"] == address
        assert {"Name": "SUPER_STORE", "Value": address} in container(worked_out)["Environment"]


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


def test_the_cache_speaks_tls_only_and_keeps_no_snapshots(stack):
    cache = stack.resources["Cache"]
    assert (cache["TransitEncryptionEnabled"], cache["TransitEncryptionMode"]) == (True, "required")
    assert cache["AtRestEncryptionEnabled"] is True
    assert cache["SnapshotRetentionLimit"] == 0
    assert cache["CacheNodeType"] == "cache.r7g.large"


def test_one_coordinator_runs_confined_and_never_two(stack):
    service = stack.resources["Coordinator"]
    assert service["DesiredCount"] == 1
    assert service["DeploymentConfiguration"]["MaximumPercent"] == 100
    address = service["NetworkConfiguration"]["AwsvpcConfiguration"]
    assert (address["AssignPublicIp"], address["Subnets"]) == ("DISABLED", ["<PrivateSubnet>"])
    definition, task = container(stack), stack.resources["CoordinatorTask"]
    assert definition["ReadonlyRootFilesystem"] is True
    assert definition["LinuxParameters"]["Capabilities"]["Drop"] == ["ALL"]
    assert (str(task["Cpu"]), str(task["Memory"])) == ("1024", "2048")
    environment = {item["Name"]: item["Value"] for item in definition["Environment"]}
    assert environment["SUPER_LAMBDA_FUNCTION"] == stack.outputs["FunctionArn"] == VERSION  # no alias
    assert environment["SUPER_CACHE"] == stack.outputs["CacheAddress"]
    secrets = {item["Name"]: item["ValueFrom"] for item in definition["Secrets"]}
    assert secrets["SUPER_TLS_KEY"] == PARAMETERS["CoordinatorSecretArn"] + ":key::"
    assert secrets["SUPER_TOKEN"] == PARAMETERS["TokenSecretArn"] + ":accepted::"
    assert "SUPER_TLS_CLIENT_CA" not in secrets
    stack = WorkedOut(Egress="public-ip")
    assert endpoints(stack) == ["s3", "secretsmanager"]
    address = stack.resources["Coordinator"]["NetworkConfiguration"]["AwsvpcConfiguration"]
    assert (address["AssignPublicIp"], address["Subnets"]) == ("ENABLED", ["<PublicSubnet>"])


def test_all_that_can_be_chosen():
    """A network with ways out of its own, a cluster, mutual TLS, mail, a budget, a key, a reserve."""
    stack = WorkedOut(
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
    assert stack.outputs["VpcId"] == VPC
    assert "PublicSubnetId" not in stack.outputs
    assert stack.outputs["CacheAddress"] == "rediss://<Cache.ConfigurationEndPoint.Address>:6379"
    assert stack.outputs["ClientSecretArn"] == CLIENT
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
    (budget,) = stack.of_type("AWS::Budgets::Budget").values()
    assert budget["Budget"]["BudgetName"] == "super-1-monthly"


def refusals(stack, **parameters):
    """What the template's rules say against these parameters, and which patterns they do not fit."""
    stack = copy.copy(stack)
    values = stack._values = stack._values | parameters
    found = [
        assertion["AssertDescription"]
        for rule in TEMPLATE["Rules"].values()
        if stack.holds(rule["RuleCondition"])
        for assertion in rule["Assertions"]
        if not stack.holds(assertion["Assert"])
    ]
    for name, entry in TEMPLATE["Parameters"].items():
        if "AllowedPattern" in entry and not re.fullmatch(entry["AllowedPattern"], str(values[name])):
            found.append(name)
        if "AllowedValues" in entry and values[name] not in entry["AllowedValues"]:
            found.append(name)
    return found


@pytest.mark.parametrize(
    ("parameters", "refusal"),
    [
        ({}, None),
        ({"Egress": "public-ip", "StoreBucket": "packs"}, None),
        ({"VpcId": VPC, "PrivateSubnetIds": f"{SUBNET},{SUBNET}", "Egress": "existing"}, None),
        ({"VpcId": VPC, "PrivateSubnetIds": SUBNET, "RouteTableIds": "rtb-01234567"}, None),
        ({"VpcId": VPC, "PrivateSubnetIds": SUBNET, "PresentEndpoints": "logs,ecr.api"}, None),
        ({"MonthlyBudgetUsd": "10", "AlarmEmail": "ops@example.org", "StepModules": "a.b,c"}, None),
        ({"MoreBuckets": "arn:aws:s3:::mine", "MoreObjects": "arn:aws:s3:::mine/*"}, None),
        ({"MoreObjects": "arn:aws:s3:::mine/*"}, "add their buckets"),
        ({"VpcId": VPC}, "An existing VPC needs PrivateSubnetIds"),
        ({"VpcId": VPC, "PrivateSubnetIds": SUBNET, "Egress": "public-ip"}, "public-ip is for a new VPC"),
        ({"PrivateSubnetIds": SUBNET}, "set VpcId"),
        ({"Egress": "existing"}, "A new VPC has no existing way out"),
        ({"MonthlyBudgetUsd": "10"}, "needs AlarmEmail"),
        ({"Bucket": "s3://images"}, "Bucket"),
        ({"Prefix": "train/*"}, "Prefix"),
        ({"StoreBucket": "packs", "StorePrefix": "store/"}, "StorePrefix"),
        ({"PrivateSubnetIds": f"{SUBNET}, {SUBNET}"}, "PrivateSubnetIds"),
        ({"PresentEndpoints": "logs"}, "PresentEndpoints belong"),
        ({"MoreCidr": "100.64.0.0/16"}, "MoreCidr belongs"),
        ({"BucketKmsKeyArn": f"{KEY},mine"}, "BucketKmsKeyArn"),
        ({"MorePrefixes": "a/,b/,c/,d/"}, "MorePrefixes"),
        ({"Prefix": "", "MorePrefixes": "val/"}, "MorePrefixes need a Prefix"),
    ],
)
def test_what_fits_together_and_what_does_not(stack, parameters, refusal):
    texts = refusals(stack, **parameters)
    assert texts == [] if refusal is None else any(refusal in text for text in texts)
