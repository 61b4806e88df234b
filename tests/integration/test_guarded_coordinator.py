"""A whole SUPER whose coordinator is guarded: TLS, client certificates and a token, as beyond loopback."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import ConfigError, CoordinatorTrustError
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.certificates import Certificates
    from tests.fixtures.valkey import Valkey

TOKEN = "a-token-of-the-trainers"
OTHERS = "another-token-of-somebody"


@pytest.fixture(scope="module")
def guarded(certificates: Certificates) -> Iterator[Stack]:
    arguments = ["--tls-cert", certificates.server.cert_file, "--tls-key", certificates.server.key_file]
    arguments += ["--tls-client-ca", certificates.ca_file, "--workers", "2"]
    stack = Stack(
        arguments=tuple(arguments), tcp=True, environment={"SUPER_TOKEN": f"{OTHERS},{TOKEN}"}, health=True
    )
    stack.start()
    yield stack
    stack.close()


@pytest.fixture
def known(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a client that the coordinator lets in."""
    monkeypatch.setenv("SUPER_TOKEN", TOKEN)
    monkeypatch.setenv("SUPER_COORDINATOR_CA_FILE", certificates.ca_file)
    monkeypatch.setenv("SUPER_COORDINATOR_CERT_FILE", certificates.client.cert_file)
    monkeypatch.setenv("SUPER_COORDINATOR_KEY_FILE", certificates.client.key_file)
    return monkeypatch


@pytest.mark.usefixtures("known")
def test_an_epoch_is_delivered_and_stats_are_told(
    images: Path, guarded: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=4, seed=1, coordinator=guarded.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
        assert_exactly_once(collect(loader), expected_pixels(images, resize=SIDE, crop=SIDE))
        assert main(["stats", "--coordinator", guarded.address, "--json"]) == 0
    told = capsys.readouterr()
    assert [job["job"] for job in json.loads(told.out)["jobs"]] == [sampler.job]
    log = guarded.log.read_text()
    assert not any(token in text for token in (TOKEN, OTHERS) for text in (log, told.out, told.err))


@pytest.mark.parametrize(
    ("lacks", "remedy"),
    [
        ({"SUPER_TOKEN": None}, "asks for a token: set SUPER_TOKEN or SUPER_TOKEN_FILE"),
        ({"SUPER_TOKEN": "not-one-of-its-tokens"}, "does not know this token: set SUPER_TOKEN"),
        (
            {"SUPER_COORDINATOR_CERT_FILE": None, "SUPER_COORDINATOR_KEY_FILE": None},
            "set SUPER_COORDINATOR_CERT_FILE and SUPER_COORDINATOR_KEY_FILE",
        ),
        (
            {"SUPER_COORDINATOR_CA_FILE": None},
            "speaks TLS, and this client does not: set SUPER_COORDINATOR_CA_FILE",
        ),
    ],
)
def test_what_a_client_lacks_is_told_with_the_remedy(
    images: Path, guarded: Stack, known: pytest.MonkeyPatch, lacks: dict[str, str | None], remedy: str
) -> None:
    for name, value in lacks.items():
        if value is None:
            known.delenv(name)
        else:
            known.setenv(name, value)
    dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
    with pytest.raises(CoordinatorTrustError, match=remedy) as caught:
        SuperSampler(dataset, batch_size=4, coordinator=guarded.address)
    assert not any(token in str(caught.value) for token in (TOKEN, OTHERS, "not-one-of-its-tokens"))


def test_plain_text_beyond_loopback_is_each_sides_own_choice(
    images: Path, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux takes ``0.0.0.0`` for this machine, and SUPER does not."""
    cache = valkey.url.replace("127.0.0.1", "0.0.0.0")
    stack = Stack(arguments=("--insecure", "--workers", "1"), cache=cache)
    stack.start()
    try:
        dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
        with pytest.raises(ConfigError, match="beyond loopback, where a cache needs TLS"):
            SuperSampler(dataset, batch_size=50, coordinator=stack.address)
        monkeypatch.setenv("SUPER_INSECURE", "1")
        dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
        with SuperSampler(dataset, batch_size=50, coordinator=stack.address) as sampler:
            delivered = collect(dataset[ref] for ref in sampler)
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
        assert f"INSECURE: the cache's password and all samples go to {cache}" in stack.log.read_text()
    finally:
        stack.close()
