"""A stack is deleted with all that it would leave; what still costs money is named, and by the exit code."""

from __future__ import annotations

import io
import json

import pytest

from infra.make_secrets import main as make_secrets
from infra.teardown import find_leftovers, main
from tests.infra.account import client
from tests.infra.stack_template import written

STACK = "super-1"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/theirs:1"
TAGS = [{"Key": "super:stack", "Value": STACK}]
# What matters of the stack here: how it is known, and that CloudFormation deletes what it has.
SMALL = {
    "Description": written()["Description"],
    "Resources": {
        "CoordinatorLog": {
            "Type": "AWS::Logs::LogGroup",
            "Properties": {"LogGroupName": "/super/super-1/coordinator", "Tags": TAGS},
        },
    },
}


@pytest.fixture
def account(aws, monkeypatch):
    """Empty; nobody answers a question."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))


def deploy(template=SMALL, name=STACK):
    """Make a stack of that template; its resources by their names."""
    cloudformation = client("cloudformation")
    cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(template), Tags=TAGS)
    found = cloudformation.describe_stack_resources(StackName=name)["StackResources"]
    return {item["LogicalResourceId"]: item["PhysicalResourceId"] for item in found}


def logs():
    return [item["logGroupName"] for item in client("logs").describe_log_groups()["logGroups"]]


def stacks():
    return [item["StackName"] for item in client("cloudformation").describe_stacks()["Stacks"]]


def secrets_waiting():
    found = client("secretsmanager").list_secrets(IncludePlannedDeletion=True)["SecretList"]
    return {secret["Name"]: "DeletedDate" in secret for secret in found}


def test_nothing_is_left_of_a_stack_and_its_secrets(account, capsys):
    make_secrets(["--stack", STACK, "--mutual-tls"])
    deploy()
    elasticache = client("elasticache")
    cache = {"ReplicationGroupId": "super-1-cache"}
    elasticache.create_replication_group(**cache, ReplicationGroupDescription="of another stack by now")
    elasticache.create_snapshot(SnapshotName="by-hand", **cache)
    client("logs").create_log_group(logGroupName="/super/super-1/notes")
    client("ecr").create_repository(repositoryName="super-coordinator", tags=TAGS)
    capsys.readouterr()
    assert main(["--stack", STACK, "--yes", "--repository", "super-coordinator"]) == 0
    said = capsys.readouterr().out
    assert "nothing of super-1 is left that costs money" in said
    assert "deleted the snapshot by-hand" in said
    assert "deleted the log /super/super-1/notes" in said
    assert "deleted the repository super-coordinator" in said
    assert (stacks(), logs(), elasticache.describe_snapshots()["Snapshots"]) == ([], [], [])
    assert client("ecr").describe_repositories()["repositories"] == []
    assert secrets_waiting() == {
        f"super-1/{name}": True for name in ("authority", "ca", "client", "coordinator", "token")
    }


@pytest.mark.slow
def test_secrets_can_be_forgotten_at_once_also_later(account, capsys):
    make_secrets(["--stack", STACK])
    assert main(["--stack", STACK, "--yes", "--recovery-days", "30"]) == 0
    assert set(secrets_waiting().values()) == {True}
    assert main(["--stack", STACK, "--yes", "--forget-secrets"]) == 0
    assert secrets_waiting() == {}


@pytest.mark.slow
def test_what_is_left_is_named_with_the_command_that_removes_it(account, capsys):
    ec2 = client("ec2")
    volume = ec2.create_volume(
        AvailabilityZone="us-east-1a", Size=1, TagSpecifications=[{"ResourceType": "volume", "Tags": TAGS}]
    )["VolumeId"]
    queue = client("sqs").create_queue(QueueName="stray", tags={"super:stack": STACK})["QueueUrl"]
    assert main(["--stack", STACK, "--yes"]) == 1
    said = capsys.readouterr().out
    assert f"aws ec2 delete-volume --volume-id {volume}" in said
    assert queue.rsplit("/", 1)[1] in said
    ec2.delete_volume(VolumeId=volume)
    client("sqs").delete_queue(QueueUrl=queue)
    assert main(["--stack", STACK, "--yes"]) == 0


@pytest.mark.slow
def test_snapshots_and_images_of_machines_and_a_repository_are_named(account):
    ec2 = client("ec2")
    volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
    theirs = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    tagged = [{"ResourceType": "snapshot", "Tags": TAGS}]
    ours = ec2.create_snapshot(VolumeId=volume, TagSpecifications=tagged)["SnapshotId"]
    amazons = ec2.describe_images()["Images"][0]["ImageId"]
    machine = ec2.run_instances(ImageId=amazons, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    image = ec2.create_image(InstanceId=machine, Name="trainer")["ImageId"]
    ec2.create_tags(Resources=[image], Tags=TAGS)
    client("ecr").create_repository(repositoryName="super-coordinator", tags=TAGS)
    client("ecr").create_repository(repositoryName="others")
    remedies = {item.name: item.remedy for item in find_leftovers(client, STACK)}
    assert remedies == {
        ours: f"aws ec2 delete-snapshot --snapshot-id {ours}",
        image: f"aws ec2 deregister-image --image-id {image}",
        "super-coordinator": "aws ecr delete-repository --force --repository-name super-coordinator",
    }
    assert theirs not in remedies


@pytest.mark.slow
def test_nothing_beyond_the_first_page_is_overlooked(account):
    """Of log groups: moto has no pages of the others."""
    for number in range(60):
        client("logs").create_log_group(logGroupName=f"/super/super-1/{number}")
    assert len(list(find_leftovers(client, STACK))) == 60


def test_what_cloudformation_has_deleted_is_not_left_though_the_tagging_api_remembers_it(account):
    deleted = ["super-1-CoordinatorTopic-1", "vpce-0123", "arn:aws:ecs:us-east-1:123456789012:service/c/s"]
    remembered = [
        "arn:aws:sns:us-east-1:123456789012:super-1-CoordinatorTopic-1",
        "arn:aws:ec2:us-east-1:123456789012:vpc-endpoint/vpce-0123",
        "arn:aws:ecs:us-east-1:123456789012:service/c/s",
        "arn:aws:ec2:us-east-1:123456789012:instance/i-0123",
    ]
    kept = "arn:aws:elasticache:us-east-1:123456789012:replicationgroup:super-1-cache"

    class Tagging:
        def get_paginator(self, operation):
            return self

        def paginate(self, **asked):
            return [{"ResourceTagMappingList": [{"ResourceARN": arn} for arn in (*remembered, kept)]}]

    def service(name):
        return Tagging() if name == "resourcegroupstaggingapi" else client(name)

    assert [item.name for item in find_leftovers(service, STACK, deleted)] == [kept]


@pytest.mark.slow
def test_another_stacks_things_stay(account, capsys):
    make_secrets(["--stack", "super-2"])
    assert main(["--stack", STACK, "--yes", "--forget-secrets"]) == 0
    assert set(secrets_waiting()) == {f"super-2/{n}" for n in ("authority", "ca", "coordinator", "token")}


def test_a_snapshot_without_a_tag_is_told_of_when_the_stack_is_gone_already(account, capsys):
    """It is deleted together with its stack; later its group's name alone does not prove whose it is."""
    elasticache = client("elasticache")
    for group in ("super-1-cache", "super-10-cache"):
        elasticache.create_replication_group(ReplicationGroupId=group, ReplicationGroupDescription="d")
        elasticache.create_snapshot(SnapshotName=f"of-{group}", ReplicationGroupId=group)
    assert main(["--stack", STACK, "--yes"]) == 1
    said = capsys.readouterr().out
    assert "1 things of super-1 are left" in said
    assert "aws elasticache delete-snapshot --snapshot-name of-super-1-cache" in said
    elasticache.delete_snapshot(SnapshotName="of-super-1-cache")
    assert list(find_leftovers(client, STACK)) == []


def test_a_stack_that_is_not_supers_is_refused(account, capsys):
    deploy({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}, "prod-db")
    client("logs").create_log_group(logGroupName="/super/prod-db/kept")
    assert main(["--stack", "prod-db", "--yes"]) == 2
    assert "the stack prod-db is not SUPER's" in capsys.readouterr().err
    assert (stacks(), logs()) == (["prod-db"], ["/super/prod-db/kept"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        {"Description": written()["Description"], "Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}},
        {"Resources": {name: {"Type": "AWS::SNS::Topic"} for name in ("Prefetch", "TrainerSecurityGroup")}},
    ],
    ids=["by-description", "by-resources"],
)
def test_a_stack_is_known_as_supers(template, account):
    deploy(template)
    assert main(["--stack", STACK, "--yes"]) == 0
    assert stacks() == []


@pytest.mark.slow
@pytest.mark.parametrize("tags", [[], [{"Key": "super:stack", "Value": "super-2"}]])
def test_a_repository_without_the_stacks_tag_is_refused(tags, account, capsys):
    make_secrets(["--stack", STACK])
    client("ecr").create_repository(repositoryName="images", tags=tags)
    assert main(["--stack", STACK, "--yes", "--repository", "images"]) == 2
    assert "aws ecr tag-resource --resource-arn arn:aws:ecr:" in capsys.readouterr().err
    assert client("ecr").describe_repositories()["repositories"]
    assert set(secrets_waiting().values()) == {False}


def test_the_question_names_the_repository(account, capsys):
    assert main(["--stack", STACK, "--repository", "super-coordinator"]) == 2
    assert "the repository super-coordinator with all its images" in capsys.readouterr().out


def test_logs_of_others_stay(account, capsys):
    """Names of others begin with ours: a stack super-1-prefetch, a function of another team."""
    ours = ("/aws/lambda/super-1-prefetch", "/super/super-1/coordinator")
    others = (
        "/aws/lambda/super-1-prefetch-prefetch",
        "/aws/lambda/super-1-prefetch-shadow",
        "/super/super-10/coordinator",
    )
    for name in (*ours, *others):
        client("logs").create_log_group(logGroupName=name)
    assert main(["--stack", STACK, "--yes"]) == 0
    assert sorted(logs()) == sorted(others)


@pytest.mark.slow
def test_the_log_of_a_function_of_somebody_else_stays(account, capsys):
    client("logs").create_log_group(logGroupName="/aws/lambda/super-1-prefetch")
    role = client("iam").create_role(RoleName="r", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    client("lambda").create_function(
        FunctionName="super-1-prefetch", Role=role, Code={"ImageUri": IMAGE}, PackageType="Image"
    )
    assert main(["--stack", STACK, "--yes"]) == 0
    assert logs() == ["/aws/lambda/super-1-prefetch"]


def test_without_a_word_nothing_is_deleted(account, capsys):
    make_secrets(["--stack", STACK])
    assert main(["--stack", STACK]) == 2
    assert "nothing was deleted" in capsys.readouterr().out
    assert set(secrets_waiting().values()) == {False}


@pytest.mark.slow
def test_the_name_typed_is_the_word(account, capsys, monkeypatch):
    make_secrets(["--stack", STACK])
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{STACK}\n"))
    assert main(["--stack", STACK]) == 0
    assert set(secrets_waiting().values()) == {True}


@pytest.mark.slow
def test_trainers_that_run_are_named_first(account, capsys):
    group = {"Type": "AWS::EC2::SecurityGroup", "Properties": {"GroupDescription": "of trainers"}}
    resources = deploy({**SMALL, "Resources": {"TrainerSecurityGroup": group}})
    ec2 = client("ec2")
    image = ec2.describe_images()["Images"][0]["ImageId"]
    machine = ec2.run_instances(
        ImageId=image,
        MinCount=1,
        MaxCount=1,
        SecurityGroupIds=[resources["TrainerSecurityGroup"]],
    )["Instances"][0]["InstanceId"]
    assert main(["--stack", STACK, "--yes"]) == 2
    assert machine in capsys.readouterr().err
    assert stacks() == [STACK]


def test_a_refusal_of_aws_is_told(account, capsys, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    assert main(["--stack", STACK, "--yes"]) == 1
    assert "Run this again when it is mended" in capsys.readouterr().err
