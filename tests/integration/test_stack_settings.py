"""Run a whole epoch with a real coordinator, function and cache, set up as infra/template.yaml does.

Secrets Manager is moto's, Lambda is the tests' own with AWS's runtime, and the cache is a Valkey with TLS and
the template's users.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import boto3
import pytest
from moto.server import ThreadedMotoServer

from infra.make_secrets import main as make_secrets
from tests.fixtures.stack import Stack
from tests.fixtures.tls_front import TlsFront
from tests.infra.stack_template import PARAMETERS, WorkedOut
from tests.integration.delivery import train

NAME = "super-1"
VERSION = "7"
# Set by the test: addresses on this machine, and as many functions as it can take.
ELSEWHERE = {
    "SUPER_LISTEN",
    "SUPER_HEALTH_LISTEN",
    "SUPER_CACHE",
    "SUPER_LAMBDA_CONCURRENCY",
    "SUPER_LAMBDA_WARM",
}


@dataclass
class Secrets:
    """The contents of the stack's secrets by name, and their ARNs."""

    content: dict[str, dict[str, str]]
    arns: dict[str, str]


@pytest.fixture(scope="module")
def template():
    """The stack with mutual TLS and otherwise default parameters."""
    return WorkedOut(ClientSecretArn="a secret")


@pytest.fixture
def secrets(lambda_service, template, monkeypatch):
    """Secrets created by infra.make_secrets, and those of the cache, generated as in the template."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", f"http://{host}:{port}")
    assert make_secrets(["--stack", NAME, "--mutual-tls"]) == 0
    manager = boto3.session.Session().client("secretsmanager")
    for logical in ("ReaderSecret", "FunctionSecret", "CoordinatorCacheSecret"):
        properties = template.resources[logical]
        content = json.loads(properties["GenerateSecretString"]["SecretStringTemplate"])
        content["password"] = f"password-of-{logical}"
        manager.create_secret(Name=properties["Name"], SecretString=json.dumps(content))
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
def cache(valkey, certificates, secrets, template):
    """The address of a cache with TLS and only the template's users."""
    with valkey.client() as client:
        for logical, secret in (
            ("ReaderUser", "cache-reader"),
            ("FunctionUser", "cache-function"),
            ("CoordinatorUser", "cache-coordinator"),
        ):
            user = template.resources[logical]
            said = secrets.content[secret]
            assert said["username"] == user["UserName"]
            rules = [*user["AccessString"].split(), f">{said['password']}"]
            client.execute_command("ACL", "SETUSER", user["UserName"], *rules)
        off = template.resources["DefaultUser"]["AccessString"].split()
        client.execute_command("ACL", "SETUSER", "default", *off)
    with TlsFront(f"{valkey.directory}/redis.sock", certificates) as front:
        yield f"rediss://127.0.0.1:{front.port}"


def coordinators_environment(template, secrets, function):
    """The environment that ECS would give the container."""
    (container,) = template.resources["CoordinatorTask"]["ContainerDefinitions"]
    given = {item["Name"]: str(item["Value"]) for item in container["Environment"]}
    named = {
        PARAMETERS["CoordinatorSecretArn"]: "coordinator",
        PARAMETERS["TokenSecretArn"]: "token",
        "<CoordinatorCacheSecret>": "cache-coordinator",
    }
    for item in container["Secrets"]:
        secret, field = item["ValueFrom"].removesuffix("::").rsplit(":", 1)
        given[item["Name"]] = secrets.content[named[secret]][field]
    here = {name: value for name, value in given.items() if name not in ELSEWHERE}
    return here | {"SUPER_LAMBDA_FUNCTION": function}


@pytest.fixture
def stack(lambda_service, photos, cache, secrets, template, certificates):
    """A coordinator and a function with the template's environments."""
    prefetch, secret = template.resources["Prefetch"], secrets.arns["cache-function"]
    variables = prefetch["Environment"]["Variables"]
    lambda_service.concurrency = 2
    lambda_service.deploy(
        version=VERSION,
        timeout_s=float(prefetch["Timeout"]),
        environment={
            name: str(value).replace("<FunctionSecret>", secret) for name, value in variables.items()
        }
        | {
            "SUPER_CACHE_CA_FILE": certificates.ca_file,  # in AWS the cache has a public CA
            "AWS_ENDPOINT_URL_SECRETS_MANAGER": os.environ["AWS_ENDPOINT_URL_SECRETS_MANAGER"],
        },
    )
    environment = coordinators_environment(template, secrets, f"{lambda_service.function.arn}:{VERSION}")
    environment["SUPER_CACHE_CA_FILE"] = certificates.ca_file
    arguments = ("--lambda-concurrency", "2", "--lambda-warm", "2", "--request-samples", "16")
    with Stack(arguments=arguments, tcp=True, environment=environment, cache=cache, health=True) as running:
        yield running


def trains_as_documented(secrets, certificates, tmp_path, monkeypatch):
    """Set the variables of docs/deploy/aws.md. The address differs: there is no DNS for the name here."""
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
    stack, lambda_service, secrets, certificates, images, tmp_path, monkeypatch
):
    trains_as_documented(secrets, certificates, tmp_path, monkeypatch)
    train(stack, images, "s3://photos/train", batch_size=8)
    log = stack.log.read_text() + lambda_service.printed
    for content in secrets.content.values():
        assert not [text for text in content.values() if len(text) > 15 and text in log]
