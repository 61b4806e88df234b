"""The bucket and who asks it: a real store that checks signatures, as this machine's identity meets it."""

import socket
from dataclasses import replace

import pytest

from superdl import doctor
from tests.fixtures.images import write_images
from tests.fixtures.object_store import SECRET
from tests.fixtures.ports import free_port
from tests.superdl.doctor.conftest import judged, only


def looked(capsys, source, *words, **expected):
    return judged(capsys, source, "--resize", "32", "--crop", "32", *words, **expected)


def elsewhere():
    """A coordinator that nobody asks here."""
    return "--coordinator", f"127.0.0.1:{free_port()}"


@pytest.fixture(autouse=True)
def _the_source_alone(monkeypatch):
    only(monkeypatch, "listing")


@pytest.fixture
def photos(object_store):
    write_images(object_store.directory / "photos", 4)
    return object_store


def test_all_is_well(photos, capsys):
    looked(capsys, "s3://photos", listing=["ok", "ant, bee, cat, dog"])


def test_an_identity_that_the_store_refuses_is_told_and_its_secret_is_not(photos, monkeypatch, capsys):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim-wrong-secret")
    looked(capsys, "s3://photos", listing=["fail", "SignatureDoesNotMatch"])
    found = looked(capsys, "s3://photos", *elsewhere(), listing=["skip", "the coordinator lists"])
    assert "geheim" not in str(found)
    assert SECRET not in str(found)


def test_no_credentials(photos, monkeypatch, capsys):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("SUPER_S3_ANONYMOUS", "0")
    looked(capsys, "s3://photos", listing=["fail", "AWS_PROFILE"])


def test_a_source_that_is_none(photos, capsys):
    keys = [path.name for path in (photos.directory / "photos" / "ant").iterdir()]
    rows = "".join(f"{key},{place}\n" for place, key in enumerate(keys))
    (photos.directory / "photos" / "labels.csv").write_text(f"key,label\n{rows}")
    for source, words in {
        "s3://no-such-bucket/x": "s3://no-such-bucket/x/ does not exist",
        "s3://photos/nothing": "contains no images",
        "s3://photos/ant": "no class folders",
    }.items():
        looked(capsys, source, listing=["fail", words])
    # A key list needs no folders.
    looked(capsys, "s3://photos/ant", "--key-list", "s3://photos/labels.csv", listing=["ok"])


@pytest.mark.slow
def test_a_store_that_is_not_there_or_never_answers(object_store, monkeypatch, capsys):
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    looked(capsys, "s3://photos", listing=["fail", "no object store answered"])
    short = [replace(check, limit_s=0.5) for check in doctor.CHECKS]
    monkeypatch.setattr(doctor, "CHECKS", tuple(short))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        looked(capsys, "s3://photos", listing=["fail", "did not finish within 0.5 s", "firewall"])
