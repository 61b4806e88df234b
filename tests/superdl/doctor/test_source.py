"""The bucket and who asks it: moto for identities and their rights, rclone for signatures."""

from __future__ import annotations

import json
import socket
from dataclasses import replace

import boto3
import pytest
import requests
from moto.server import ThreadedMotoServer

from superdl import doctor
from tests.fixtures.images import write_images
from tests.fixtures.object_store import SECRET
from tests.fixtures.valkey import free_port
from tests.superdl.doctor.asking import asked, only

RECIPE = ("--resize", "32", "--crop", "32")
SOURCE = "s3://pets/train"


class Account:
    """An account of moto's, and who may do what in it."""

    def __init__(self, url):
        self.url = url
        self.session = boto3.session.Session("testing", "testing", region_name="us-east-1")

    def client(self, service):
        return self.session.client(service, endpoint_url=self.url)

    def look_who_asks(self, *, after):
        """From the request after so many on, have the server look who asks."""
        headers = {"Content-Type": "text/plain"}
        url = f"{self.url}/moto-api/reset-auth"
        assert requests.post(url, data=str(after), headers=headers, timeout=10).ok

    def be(self, patch, name, *actions):
        """This process is somebody who may do these, and nothing else."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        statement = {"Effect": "Allow", "Action": ["sts:GetCallerIdentity", *actions], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName=name, PolicyName="some", PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        patch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        self.look_who_asks(after=0)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    account = Account("http://{}:{}".format(*server.get_host_and_port()))
    s3 = account.client("s3")
    directory = write_images(tmp_path_factory.mktemp("pets"), 4)
    s3.create_bucket(Bucket="pets")
    for path in directory.glob("*/*.jpg"):
        key = f"train/{path.relative_to(directory).as_posix()}"
        s3.put_object(Bucket="pets", Key=key, Body=path.read_bytes())
    s3.close()
    yield account
    server.stop()


@pytest.fixture
def account(served, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", served.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield served
    served.look_who_asks(after=10**9)


def looked(capsys, source, *words):
    return asked(capsys, source, *RECIPE, *words)


@pytest.fixture(autouse=True)
def _the_source_alone(monkeypatch):
    only(monkeypatch, "credentials", "listing")


def test_all_is_well(account, capsys):
    code, found = looked(capsys, SOURCE)
    assert code == 0
    assert {name: one["verdict"] for name, one in found.items()} == dict.fromkeys(found, "ok")
    assert "from env, region us-east-1" in found["credentials"]["reason"]
    assert "ant, bee, cat, dog" in found["listing"]["reason"]


def test_no_credentials(account, monkeypatch, capsys):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    code, found = looked(capsys, SOURCE)
    assert code == 1
    assert "no AWS credentials" in found["credentials"]["reason"]
    assert "AWS_PROFILE" in found["credentials"]["remedy"]
    assert found["listing"]["verdict"] == "skip"
    code, found = looked(capsys, SOURCE, "--coordinator", f"127.0.0.1:{free_port()}")
    assert code == 0  # the coordinator's role does it
    assert found["credentials"]["verdict"] == found["listing"]["verdict"] == "skip"


@pytest.mark.slow
def test_no_right_to_list(account, monkeypatch, capsys):
    account.be(monkeypatch, "blind", "s3:GetObject")
    code, found = looked(capsys, SOURCE)
    assert code == 1
    assert found["credentials"]["verdict"] == "ok"
    assert "user/blind" in found["listing"]["reason"]
    assert found["listing"]["verdict"] == "fail"
    assert "AccessDenied" in found["listing"]["reason"]
    assert "s3:ListBucket on the bucket" in found["listing"]["reason"]
    code, found = looked(capsys, SOURCE, "--coordinator", f"127.0.0.1:{free_port()}")
    assert code == 0
    assert "coordinator's role" in found["listing"]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "verdict", "words"),
    [
        ({"AWS_PROFILE": "nobody"}, "fail", "nobody"),
        ({"AWS_DEFAULT_REGION": ""}, "warn", "set AWS_DEFAULT_REGION"),
        (
            {"AWS_SESSION_TOKEN": "geheim", "AWS_CREDENTIAL_EXPIRATION": "2001-01-01T00:00:00Z"},
            "fail",
            "cannot be had",
        ),
    ],
)
def test_identities_that_are_not_well(account, monkeypatch, capsys, variables, verdict, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, found = looked(capsys, SOURCE)
    told = found["credentials"]
    assert (code, told["verdict"]) == (int(verdict == "fail"), verdict)
    assert words in told["reason"] + told["remedy"]
    assert "geheim" not in str(found)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("s3://no-such-bucket/x", "s3://no-such-bucket/x/ does not exist"),
        pytest.param("s3://pets/nothing", "nothing that has an image's extension", marks=pytest.mark.slow),
        pytest.param("s3://pets/train/ant", "lies in it itself", marks=pytest.mark.slow),
    ],
)
def test_a_source_that_is_none(account, capsys, source, words):
    code, found = looked(capsys, source)
    assert code == 1
    assert words in found["listing"]["reason"]
    if "in it itself" in words:  # a key list needs no folders
        code, found = looked(capsys, source, "--key-list", "s3://pets/labels.csv")
        assert code == 0
        assert found["listing"]["verdict"] == "ok"


def test_a_wrong_secret_is_told_apart_and_not_repeated(object_store, monkeypatch, capsys):
    write_images(object_store.directory / "photos", 4)
    code, found = looked(capsys, "s3://photos")
    assert code == 0, found
    assert found["credentials"]["reason"].startswith("from env, region ")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim-wrong-secret")
    code, found = looked(capsys, "s3://photos")
    assert code == 1
    assert "SignatureDoesNotMatch" in found["listing"]["reason"]
    assert "geheim" not in str(found)
    assert SECRET not in str(found)


@pytest.mark.slow
def test_a_store_that_is_not_there_or_never_answers(object_store, monkeypatch, capsys):
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    _, found = looked(capsys, "s3://photos")
    assert "no object store answered" in found["listing"]["reason"]
    short = [replace(check, limit_s=0.5) for check in doctor.CHECKS]
    monkeypatch.setattr(doctor, "CHECKS", tuple(short))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        code, found = looked(capsys, "s3://photos")
    assert code == 1
    assert "came to no end within 0.5 s" in found["listing"]["reason"]
    assert "firewall" in found["listing"]["remedy"]
