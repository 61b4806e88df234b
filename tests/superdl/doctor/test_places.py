"""Sources and stores: a bucket that checks signatures, and directories, each broken in one way."""

import os

import numpy as np
import pytest

from superdl.super_wire.record import pack
from superdl.super_wire.store import DirectoryStore, PackMeta
from tests.fixtures.images import write_images
from tests.fixtures.object_store import SECRET
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Stack
from tests.superdl.doctor.conftest import check_findings, only


@pytest.fixture(autouse=True)
def _the_places_alone(monkeypatch):
    only(monkeypatch, "listing", "coordinator", "store")
    monkeypatch.delenv("SUPER_STORE", raising=False)


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
        ("fail", "there is no directory /nowhere/photos", "/nowhere/photos"),
        ("fail", "class folders", "s3://photos/ant"),
        ("ok", "", "s3://photos/ant", "--key-list", "s3://photos/labels.csv"),  # needs no folders
    ):
        check_findings(capsys, *words, listing=[verdict, text])


def test_an_identity_that_the_store_refuses_is_told_and_its_secret_is_not(photos, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "geheim-wrong-secret")
        check_findings(capsys, "s3://photos", listing=["fail", "SignatureDoesNotMatch"])
        elsewhere = ("--coordinator", f"127.0.0.1:{free_port()}")  # which lists, by an identity of its own
        found = check_findings(capsys, "s3://photos", *elsewhere, listing=["skip"])
        assert not [secret for secret in ("geheim", SECRET) if secret in str(found)]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("SUPER_S3_ANONYMOUS", "0")
    check_findings(capsys, "s3://photos", listing=["fail", "AWS_PROFILE"])


def test_a_store_that_is_used(tmp_path, capsys, monkeypatch):
    store = DirectoryStore.open(tmp_path / "store", create=True)
    with store.begin_pack(PackMeta("0" * 16, "file:///x", "{}", "f", "1")) as writing:
        writing.add(b"i" * 16, *pack(np.ones((8, 8, 3), np.uint8), b"i" * 16))
        writing.commit()
    check_findings(capsys, "--store", store.address, store=["ok", "1 pack"])
    assert store.others("nobody", 0) == [], "it leaves no mark behind"
    monkeypatch.setenv("SUPER_STORE", store.address)
    check_findings(capsys, store=["ok", "1 pack"])
    (tmp_path / "store" / "store.json").write_text('{"super_store": 99, "id": ""}')
    check_findings(capsys, store=["fail", "version 99"])


@pytest.fixture
def guarded(tmp_path):
    """A folder in which this user may create nothing; access(2) asks for the real user, who is not root."""
    folder = tmp_path / "guarded"
    folder.mkdir(mode=0o555)
    own = os.getuid()
    if own == 0:
        os.setreuid(65534, 0)
    yield folder
    if own == 0:
        os.setreuid(0, 0)


@pytest.mark.parametrize(("folder", "verdict"), [("tmp_path", "skip"), ("guarded", "fail")])
def test_a_store_that_is_missing_can_be_created_or_not(folder, verdict, request, capsys):
    place = request.getfixturevalue(folder) / "new" / "store"
    check_findings(capsys, "--store", str(place), store=[verdict, str(place)])
    assert not place.parent.exists()


def test_the_store_of_a_coordinator(tmp_path, capsys):
    place = tmp_path / "store"
    with Stack(arguments=("--store", str(place))) as stack:
        check_findings(capsys, "--coordinator", stack.address, store=["ok", str(place)])
        place.rename(tmp_path / "elsewhere")
        check_findings(capsys, "--coordinator", stack.address, store=["skip", str(place)])
