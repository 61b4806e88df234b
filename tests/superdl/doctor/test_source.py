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


@pytest.fixture(autouse=True)
def _the_source_alone(monkeypatch):
    only(monkeypatch, "listing")


@pytest.fixture
def photos(object_store):
    write_images(object_store.directory / "photos", 4)
    return object_store


def test_a_source_is_listed_or_what_it_lacks_is_named(photos, capsys):
    keys = [path.name for path in (photos.directory / "photos" / "ant").iterdir()]
    rows = "".join(f"{key},{place}\n" for place, key in enumerate(keys))
    (photos.directory / "photos" / "labels.csv").write_text(f"key,label\n{rows}")
    for verdict, text, *words in (
        ("ok", "ant, bee, cat, dog", "s3://photos"),
        ("fail", "s3://no-such-bucket/x", "s3://no-such-bucket/x"),
        ("fail", "s3://photos/nothing", "s3://photos/nothing"),
        ("fail", "class folders", "s3://photos/ant"),
        ("ok", "", "s3://photos/ant", "--key-list", "s3://photos/labels.csv"),  # needs no folders
    ):
        looked(capsys, *words, listing=[verdict, text])


def test_an_identity_that_the_store_refuses_is_told_and_its_secret_is_not(photos, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "geheim-wrong-secret")
        looked(capsys, "s3://photos", listing=["fail", "SignatureDoesNotMatch"])
        elsewhere = ("--coordinator", f"127.0.0.1:{free_port()}")  # which lists, by an identity of its own
        found = looked(capsys, "s3://photos", *elsewhere, listing=["skip"])
        assert not [secret for secret in ("geheim", SECRET) if secret in str(found)]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("SUPER_S3_ANONYMOUS", "0")
    looked(capsys, "s3://photos", listing=["fail", "AWS_PROFILE"])


@pytest.mark.slow
def test_a_store_that_is_not_there_or_never_answers(object_store, monkeypatch, capsys):
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    looked(capsys, "s3://photos", listing=["fail", "127.0.0.1"])
    short = [replace(check, limit_s=0.5) for check in doctor.CHECKS]
    monkeypatch.setattr(doctor, "CHECKS", tuple(short))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        looked(capsys, "s3://photos", listing=["fail", "0.5 s"])
