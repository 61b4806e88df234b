"""A coordinator that requires tokens: with TLS, as beyond loopback, and shared by two teams."""

import json
from contextlib import ExitStack

import pytest

from superdl.main import main
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect, reading, train

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
    """The environment of a client that the coordinator accepts."""
    monkeypatch.setenv("SUPER_TOKEN", TOKEN)
    monkeypatch.setenv("SUPER_COORDINATOR_CA_FILE", certificates.ca_file)
    monkeypatch.setenv("SUPER_COORDINATOR_CERT_FILE", certificates.client.cert_file)
    monkeypatch.setenv("SUPER_COORDINATOR_KEY_FILE", certificates.client.key_file)
    return monkeypatch


@pytest.mark.usefixtures("known")
def test_an_epoch_is_delivered_and_stats_are_told(images, guarded, capsys):
    train(guarded, images, workers=2)
    with reading(images, guarded.address) as (sampler, _):
        assert main(["stats", "--coordinator", guarded.address, "--json"]) == 0
    told = capsys.readouterr()
    assert [job["job"] for job in json.loads(told.out)["jobs"]] == [sampler.job]
    log = guarded.log.read_text()
    assert not any(token in text for token in (TOKEN, OTHERS) for text in (log, told.out, told.err))


VISION, SPEECH = "a-token-of-team-vision", "a-token-of-team-speech"


def test_two_teams_share_a_coordinator_by_their_tokens(images, expected, tmp_path, monkeypatch, capsys):
    """``tests/simulation/test_teams.py`` covers how functions are divided."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{VISION} team=vision share=3\n{SPEECH} team=speech\n")
    with Stack(arguments=("--slots", "2", "--token-file", str(tokens))) as stack, ExitStack() as jobs:
        for seed, token in enumerate((VISION, SPEECH)):
            monkeypatch.setenv("SUPER_TOKEN", token)
            _, loader = jobs.enter_context(reading(images, stack.address, seed=seed))
            assert_exactly_once(collect(loader), expected)
        assert main(["stats", "--coordinator", stack.address]) == 0
        told = capsys.readouterr().out
    assert "of team vision" in told
    assert "team speech: share 1, priority 0; 1 job" in told
    assert VISION not in told
