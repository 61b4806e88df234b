"""Secrets appear in no log, error or answer, with everything at its most verbose and much going wrong."""

import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from superdl.coordinator.server.settings import load_settings
from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.cache import Credentials
from superdl.super_wire.credentials import CoordinatorCredentials
from superdl.super_wire.errors import CacheError, CoordinatorTrustError, SourceForbiddenError
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.object_store import SECRET
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

PASSWORD, TOKEN = "geheim-cache-password", "geheim-token-0123456789"
WRONG = {
    "token": "geheim-wrong-token-0123",
    "password": "geheim-wrong-password",
    "aws": "geheim-wrong-aws-secret",
}
SESSION = "geheim-session-token"


class Everything:
    """Collect all output, to search it for secrets."""

    def __init__(self, secrets):
        self._secrets = secrets
        self._said = []

    def hear(self, *said):
        """Add text, or an error with its causes."""
        for one in said:
            if isinstance(one, BaseException):
                self._said += [repr(one), *traceback.format_exception(one)]
            else:
                self._said.append(str(one))

    def search(self):
        """Assert that the output contains no secret."""
        text = "\n".join(self._said)
        assert len(text) > 1000
        found = {
            secret: text[max(0, text.index(secret) - 300) :][:400]
            for secret in self._secrets
            if secret in text
        }
        assert not found


@pytest.fixture
def everything(certificates):
    key = Path(certificates.server.key_file).read_text().splitlines()[1:-1]
    return Everything([PASSWORD, TOKEN, SECRET, SESSION, *WRONG.values(), *key])


def ended_coordinators(environments):
    """The output of coordinators that fail to start."""
    command = [sys.executable, "-P", "-m", "superdl.coordinator"]
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in environments
    ]
    said = [process.communicate(timeout=60)[0] for process in started]
    assert all(process.returncode in {1, 2} for process in started), said
    return said


def test_no_secret_is_told_whatever_goes_wrong(
    object_store, valkey, certificates, everything, monkeypatch, caplog, capfd
):
    caplog.set_level(logging.DEBUG)
    images = write_images(object_store.directory / "photos", 16)
    with valkey.client() as client:
        client.config_set("requirepass", PASSWORD)
    pair = certificates.server
    for name, value in {
        "AWS_SESSION_TOKEN": SESSION,
        "SUPER_LOG_LEVEL": "DEBUG",
        "SUPER_CACHE_PASSWORD": PASSWORD,
        "SUPER_TOKEN": TOKEN,
        "SUPER_COORDINATOR_CA_FILE": certificates.ca_file,
        "SUPER_TLS_CERT": Path(pair.cert_file).read_text(),
        "SUPER_TLS_KEY": Path(pair.key_file).read_text(),
    }.items():
        monkeypatch.setenv(name, value)
    everything.hear(
        repr(load_settings({}, os.environ)),
        repr(Credentials.from_environment(os.environ)),
        repr(CoordinatorCredentials.from_environment(os.environ)),
    )
    stacks = [
        Stack(arguments=("--slots", "1"), cache=valkey.url, tcp=True, health=True, environment=environment)
        for environment in ({}, {"AWS_SECRET_ACCESS_KEY": WRONG["aws"]})
    ]
    wrong = [
        {"SUPER_CACHE_PASSWORD": WRONG["password"], "SUPER_CACHE": valkey.url},
        {"SUPER_TOKEN": f"{WRONG['token']} and a space"},
        {"SUPER_TLS_KEY": Path(certificates.client.key_file).read_text()},
        {"SUPER_TLS_KEY": Path(pair.key_file).read_text().replace("-----BEGIN", "BEGIN")},
        {"SUPER_CACHE": f"redis://:{WRONG['password']}@127.0.0.1"},
    ]
    try:
        _run(stacks[0], images, everything, monkeypatch)
        sides = ("--resize", str(SIDE), "--crop", str(SIDE))
        for command in (["stats", "--json"], ["doctor", "--json", "s3://photos", *sides]):
            main([*command, "--coordinator", stacks[0].address])
        with monkeypatch.context() as changed:
            changed.setenv("AWS_SECRET_ACCESS_KEY", WRONG["aws"])
            changed.setenv("SUPER_CACHE_PASSWORD", WRONG["password"])
            main(["doctor", "s3://photos", "--cache", valkey.url])
        stacks[0].close_coordinator()
        stacks[1].start()  # with no permission to read the source
        everything.hear(_failure(stacks[1], SourceForbiddenError))
        everything.hear(*ended_coordinators(wrong))
    finally:
        for stack in stacks:
            everything.hear(stack.log.read_text() if stack.log.exists() else "")
            stack.close()
    everything.hear(caplog.text, *capfd.readouterr())
    everything.search()


def _run(stack, images, everything, monkeypatch):
    """Run an epoch, and clients with a wrong password or token."""
    stack.start()
    dataset = SuperDataset("s3://photos", Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=stack.address) as sampler:
        batches = [dataset[ref] for ref in sampler]
        assert_exactly_once(collect(batches), expected_pixels(images, resize=SIDE, crop=SIDE))
        everything.hear(repr(dataset), repr(sampler), sampler.job_stats(), sampler.state_dict())
    for name, value, error in (
        ("SUPER_CACHE_PASSWORD", WRONG["password"], CacheError),
        ("SUPER_TOKEN", WRONG["token"], CoordinatorTrustError),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            everything.hear(_failure(stack, error))


def _failure(stack, kind):
    dataset = SuperDataset("s3://photos", Recipe.image(resize=SIDE, crop=SIDE))
    with pytest.raises(kind) as caught:
        SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=stack.address)
    return caught.value
