"""A whole SUPER whose coordinator is guarded: TLS, client certificates and a token, as beyond loopback."""

from __future__ import annotations

import json

import pytest

from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE
from tests.fixtures.stack import Stack
from tests.integration.delivery import train

TOKEN = "a-token-of-the-trainers"
OTHERS = "another-token-of-somebody"


@pytest.fixture(scope="module")
def guarded(certificates):
    arguments = ["--tls-cert", certificates.server.cert_file, "--tls-key", certificates.server.key_file]
    arguments += ["--tls-client-ca", certificates.ca_file, "--slots", "2"]
    with Stack(
        arguments=tuple(arguments), tcp=True, environment={"SUPER_TOKEN": f"{OTHERS},{TOKEN}"}, health=True
    ) as stack:
        yield stack


@pytest.fixture
def known(certificates, monkeypatch):
    """The environment of a client that the coordinator lets in."""
    monkeypatch.setenv("SUPER_TOKEN", TOKEN)
    monkeypatch.setenv("SUPER_COORDINATOR_CA_FILE", certificates.ca_file)
    monkeypatch.setenv("SUPER_COORDINATOR_CERT_FILE", certificates.client.cert_file)
    monkeypatch.setenv("SUPER_COORDINATOR_KEY_FILE", certificates.client.key_file)
    return monkeypatch


@pytest.mark.usefixtures("known")
def test_an_epoch_is_delivered_and_stats_are_told(images, guarded, capsys):
    train(guarded, images, workers=2)
    dataset = SuperDataset(images, Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=guarded.address) as sampler:
        assert main(["stats", "--coordinator", guarded.address, "--json"]) == 0
    told = capsys.readouterr()
    assert [job["job"] for job in json.loads(told.out)["jobs"]] == [sampler.job]
    log = guarded.log.read_text()
    assert not any(token in text for token in (TOKEN, OTHERS) for text in (log, told.out, told.err))
