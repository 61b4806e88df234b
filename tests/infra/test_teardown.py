"""Remains of a deleted stack are deleted or listed; other stacks are untouched."""

import json

from infra.make_secrets import main as make_secrets
from infra.teardown import main
from tests.infra.account import client

STACK = "super-1"
TAGS = [{"Key": "super:stack", "Value": STACK}]
LOG = {"LogGroupName": "/super/super-1/coordinator", "Tags": TAGS}
TEMPLATE = {
    "Resources": {
        "Log": {"Type": "AWS::Logs::LogGroup", "Properties": LOG},
        "Topic": {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": "super-1-topic", "Tags": TAGS}},
    }
}


def tear_down(*options):
    return main(["--stack", STACK, *options])


def logs():
    return [item["logGroupName"] for item in client("logs").describe_log_groups()["logGroups"]]


def secrets_waiting():
    found = client("secretsmanager").list_secrets(IncludePlannedDeletion=True)["SecretList"]
    return {secret["Name"]: "DeletedDate" in secret for secret in found}


def test_a_stack_goes_first_and_nothing_of_it_is_left(aws, capsys):
    make_secrets(["--stack", STACK, "--mutual-tls"])
    cloudformation = client("cloudformation")
    cloudformation.create_stack(StackName=STACK, TemplateBody=json.dumps(TEMPLATE), Tags=TAGS)
    assert tear_down() == 2
    assert "--stack-name super-1" in capsys.readouterr().err
    assert not any(secrets_waiting().values())
    cloudformation.delete_stack(StackName=STACK)
    client("logs").create_log_group(logGroupName="/aws/lambda/super-1-prefetch")  # by Lambda, afterwards
    assert tear_down() == 0
    assert logs() == []
    names = ("authority", "ca", "client", "coordinator", "token")
    assert secrets_waiting() == {f"super-1/{name}": True for name in names}
    assert tear_down("--forget-secrets") == 0
    assert secrets_waiting() == {}


def test_what_is_left_is_listed_but_for_what_went_with_the_stack(aws, capsys):
    tags = {"TagSet": TAGS}
    # It stays with its tags, as AWS lists what is deleted for a while.
    gone = {"Type": "AWS::S3::Bucket", "DeletionPolicy": "Retain", "Properties": {"BucketName": "gone"}}
    cloudformation = client("cloudformation")
    cloudformation.create_stack(StackName=STACK, TemplateBody=json.dumps({"Resources": {"Gone": gone}}))
    cloudformation.delete_stack(StackName=STACK)
    client("s3").put_bucket_tagging(Bucket="gone", Tagging=tags)
    assert tear_down() == 0
    client("s3").create_bucket(Bucket="packs-of-super-1")
    client("s3").put_bucket_tagging(Bucket="packs-of-super-1", Tagging=tags)
    assert tear_down() == 1
    said = capsys.readouterr().out
    assert "arn:aws:s3:::packs-of-super-1\n" in said
    assert "arn:aws:s3:::gone" not in said


def test_things_of_others_stay(aws):
    """Names of others begin with ours: a stack super-1-prefetch, a function of another team."""
    make_secrets(["--stack", "super-2"])
    ours = ("/aws/lambda/super-1-prefetch", *(f"/super/super-1/{number}" for number in range(60)))
    others = {f"/aws/lambda/super-1-prefetch-{name}" for name in ("prefetch", "shadow")}
    others.add("/super/super-10/coordinator")
    for name in (*ours, *others):
        client("logs").create_log_group(logGroupName=name)
    assert tear_down("--forget-secrets") == 0
    assert set(logs()) == others
    assert secrets_waiting() == {f"super-2/{n}": False for n in ("authority", "ca", "coordinator", "token")}
