"""A coordinator that wants tokens: guarded by TLS too, as beyond loopback, and one that two teams share."""

import json
import threading
import time

import pytest

from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from tests.fixtures.images import SIDE, write_images
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


VISION, SPEECH = "a-token-of-team-vision", "a-token-of-team-speech"
COPIES = 2400
WAIT_S = 60.0


def write_copies(directory, images):
    """Many samples of one class, whose content is that of a few."""
    contents = [file.read_bytes() for file in sorted(images.rglob("*.*")) if file.is_file()]
    (directory / "all").mkdir(parents=True)
    for number in range(COPIES):
        (directory / "all" / f"{number}.png").write_bytes(contents[number % len(contents)])
    return directory


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_teams_that_read_as_fast_as_they_can_have_functions_by_their_shares(
    tmp_path, monkeypatch, capsys
):
    images = write_images(tmp_path / "few", 8, side=700)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{VISION} team=vision share=3\n{SPEECH} team=speech\n")
    arguments = ("--slots", "2", "--request-samples", "8", "--token-file", str(tokens))
    sources = {
        "one": write_copies(tmp_path / "images", images),
        "two": write_copies(tmp_path / "sounds", images),
    }
    ended = threading.Event()

    def read(token, name):
        monkeypatch.setenv("SUPER_TOKEN", token)
        dataset = SuperDataset(sources[name], Recipe.image(resize=SIDE, crop=SIDE))
        sampler = SuperSampler(dataset, batch_size=32, shuffle=True, coordinator=stack.address, job=name)

        def epoch():
            for _ in SuperLoader(dataset, sampler):
                if ended.is_set():
                    return

        return sampler, threading.Thread(target=epoch)

    def produced():
        assert main(["stats", "--coordinator", stack.address, "--json"]) == 0
        return {job["team"]: job["samples_produced"] for job in json.loads(capsys.readouterr().out)["jobs"]}

    with Stack(arguments=arguments) as stack:
        (vision, one), (speech, two) = read(VISION, "one"), read(SPEECH, "two")
        with vision, speech:
            one.start()
            two.start()
            try:
                assert until_made(produced) == pytest.approx(3, rel=0.15)
            finally:
                ended.set()
                one.join()
                two.join()
            assert main(["stats", "--coordinator", stack.address]) == 0
            told = capsys.readouterr().out
            assert "of team vision" in told
            assert "team speech: share 1, priority 0; 1 job" in told
            assert VISION not in told


def until_made(produced):
    """Vision's samples beside those of speech, from when both have some on, while both want more."""
    deadline_s = time.monotonic() + WAIT_S
    before = now = produced()
    while now["vision"] < before["vision"] + COPIES // 2:
        assert time.monotonic() < deadline_s
        now = produced()
        if before["vision"] < COPIES // 4 or not before["speech"]:
            before = now
    assert now["vision"] < COPIES, "both want more"
    return (now["vision"] - before["vision"]) / (now["speech"] - before["speech"])
