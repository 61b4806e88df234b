"""What infra/template.yaml gives to coordinator, function and cache, given to real ones: a whole epoch.

Secrets Manager is moto's, Lambda the tests' own with AWS's runtime in it, the cache a Valkey with TLS and the
template's users.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from torch.utils.data import DataLoader

from infra.make_secrets import main as make_secrets
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.fixtures.tls_front import TlsFront
from tests.infra.stack_template import written
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.certificates import Certificates
    from tests.fixtures.lambda_service import LambdaService
    from tests.fixtures.object_store import ObjectStore
    from tests.fixtures.valkey import Valkey

NAME = "super-1"
VERSION = "7"
RESOURCES = written()["Resources"]
DEFAULTS = {name: entry.get("Default") for name, entry in written()["Parameters"].items()}
# This machine's own: addresses that the test chooses, and as many functions as it bears.
ELSEWHERE = {
    "SUPER_LISTEN",
    "SUPER_HEALTH_LISTEN",
    "SUPER_CACHE",
    "SUPER_LAMBDA_CONCURRENCY",
    "SUPER_LAMBDA_WARM",
}


@dataclass
class Secrets:
    """What the stack's secrets say, by name, and their ARNs."""

    content: dict[str, dict[str, str]]
    arns: dict[str, str]


@pytest.fixture
def secrets(lambda_service: LambdaService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secrets]:
    """Made by infra.make_secrets, and those of the cache as the template has them made."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", f"http://{host}:{port}")
    assert make_secrets(["--stack", NAME, "--mutual-tls"]) == 0
    manager = boto3.session.Session().client("secretsmanager")
    for logical in ("ReaderSecret", "FunctionSecret", "CoordinatorCacheSecret"):
        properties = RESOURCES[logical]["Properties"]
        content = json.loads(properties["GenerateSecretString"]["SecretStringTemplate"])
        content["password"] = f"password-of-{logical}"
        name = properties["Name"]["Fn::Sub"].replace("${AWS::StackName}", NAME)
        manager.create_secret(Name=name, SecretString=json.dumps(content))
    listed = manager.list_secrets()["SecretList"]
    yield Secrets(
        {
            item["Name"].removeprefix(f"{NAME}/"): json.loads(
                manager.get_secret_value(SecretId=item["ARN"])["SecretString"]
            )
            for item in listed
        },
        {item["Name"].removeprefix(f"{NAME}/"): item["ARN"] for item in listed},
    )
    server.stop()


@pytest.fixture
def cache(valkey: Valkey, certificates: Certificates, secrets: Secrets) -> Iterator[str]:
    """The address of a cache with TLS, the template's users and no other."""
    with valkey.client() as client:
        for logical, secret in (
            ("ReaderUser", "cache-reader"),
            ("FunctionUser", "cache-function"),
            ("CoordinatorUser", "cache-coordinator"),
        ):
            user = RESOURCES[logical]["Properties"]
            said = secrets.content[secret]
            assert said["username"] == user["UserName"]
            rules = [*user["AccessString"].split(), f">{said['password']}"]
            client.execute_command("ACL", "SETUSER", user["UserName"], *rules)
        off = RESOURCES["DefaultUser"]["Properties"]["AccessString"].split()
        client.execute_command("ACL", "SETUSER", "default", *off)
    front = TlsFront(f"{valkey.directory}/redis.sock", certificates)
    front.start()
    yield f"rediss://127.0.0.1:{front.port}"
    front.close()


def resolved(value: Any, known: dict[str, Any], default: str | None = None) -> str:
    """A value of the template as CloudFormation resolves it, where its parameters have their defaults."""
    if isinstance(value, dict) and "Fn::If" in value:
        condition, _, otherwise = value["Fn::If"]
        assert condition == "HasStore", "false, unless a bucket is named"
        return resolved(otherwise, known)
    if not isinstance(value, dict):
        return str(value)
    return str(known[value["Ref"]] if default is None else known.get(value.get("Ref"), default))


def coordinators_environment(secrets: Secrets, function: str) -> dict[str, str]:
    """What ECS would give to the container."""
    (container,) = RESOURCES["CoordinatorTask"]["Properties"]["ContainerDefinitions"]
    given: dict[str, str] = {}
    for item in container["Environment"]:
        known = {"Prefetch.Version": function, "AWS::StackName": NAME, "AWS::Region": "us-east-1", **DEFAULTS}
        if item["Name"] not in ELSEWHERE:
            given[item["Name"]] = resolved(item["Value"], known, "")
    of = {
        "CoordinatorSecretArn": "coordinator",
        "TokenSecretArn": "token",
        "CoordinatorCacheSecret": "cache-coordinator",
    }
    for item in container["Secrets"]:
        chosen = item["Fn::If"][1] if "Fn::If" in item else item
        logical, _, field = chosen["ValueFrom"]["Fn::Sub"].removeprefix("${").rstrip(":").partition("}:")
        given[chosen["Name"]] = secrets.content[of[logical]][field]
    return given


@pytest.fixture
def stack(
    lambda_service: LambdaService,
    object_store: ObjectStore,
    cache: str,
    secrets: Secrets,
    certificates: Certificates,
    images: Path,
) -> Iterator[Stack]:
    """Coordinator and function with the template's environments; ``s3://photos/train`` holds the images."""
    shutil.copytree(images, object_store.directory / "photos" / "train")
    variables = RESOURCES["Prefetch"]["Properties"]["Environment"]["Variables"]
    known = {"FunctionSecret": secrets.arns["cache-function"], **DEFAULTS}
    lambda_service.concurrency = 2
    lambda_service.deploy(
        version=VERSION,
        timeout_s=float(DEFAULTS["FunctionTimeout"]),
        environment={name: resolved(value, known) for name, value in variables.items()}
        | {
            "SUPER_CACHE_CA_FILE": certificates.ca_file,  # Amazon's own authority is known to everybody
            "AWS_ENDPOINT_URL_SECRETS_MANAGER": os.environ["AWS_ENDPOINT_URL_SECRETS_MANAGER"],
        },
    )
    environment = coordinators_environment(secrets, f"{lambda_service.function.arn}:{VERSION}")
    environment["SUPER_CACHE_CA_FILE"] = certificates.ca_file
    arguments = ("--lambda-concurrency", "2", "--lambda-warm", "2", "--request-samples", "16")
    running = Stack(arguments=arguments, tcp=True, environment=environment, cache=cache, health=True)
    running.start()
    yield running
    running.close()


def trains_as_documented(
    secrets: Secrets, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of docs/deploy.md, but for the name: no DNS knows it here."""
    for name, text in (
        ("ca", secrets.content["ca"]["cert"]),
        ("client", secrets.content["client"]["cert"]),
        ("key", secrets.content["client"]["key"]),
    ):
        (tmp_path / f"{name}.pem").write_text(text)
    for name, value in {
        "SUPER_COORDINATOR_CA_FILE": str(tmp_path / "ca.pem"),
        "SUPER_COORDINATOR_CERT_FILE": str(tmp_path / "client.pem"),
        "SUPER_COORDINATOR_KEY_FILE": str(tmp_path / "key.pem"),
        "SUPER_COORDINATOR_NAME": f"coordinator.{NAME}.internal",
        "SUPER_TOKEN": secrets.content["token"]["token"],
        "SUPER_CACHE_USERNAME": secrets.content["cache-reader"]["username"],
        "SUPER_CACHE_PASSWORD": secrets.content["cache-reader"]["password"],
        "SUPER_CACHE_CA_FILE": certificates.ca_file,
    }.items():
        monkeypatch.setenv(name, value)


def test_an_epoch_with_what_the_template_gives(
    stack: Stack,
    lambda_service: LambdaService,
    secrets: Secrets,
    certificates: Certificates,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trains_as_documented(secrets, certificates, tmp_path, monkeypatch)
    dataset = SuperDataset("s3://photos/train", Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=8, seed=1, coordinator=stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        assert_exactly_once(collect(loader), expected_pixels(images, resize=SIDE, crop=SIDE))
    log = stack.log.read_text() + lambda_service.printed
    for content in secrets.content.values():
        assert not [text for text in content.values() if len(text) > 15 and text in log]
