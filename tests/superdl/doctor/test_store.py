"""The store, each broken in one way: real directories, and what a real coordinator tells of its own."""

import os

import numpy as np
import pytest

from superdl.super_wire.record import pack
from superdl.super_wire.store import DirectoryStore, PackMeta
from tests.fixtures.stack import Stack
from tests.superdl.doctor.conftest import judged, only


@pytest.fixture(autouse=True)
def _the_store_alone(monkeypatch):
    only(monkeypatch, "coordinator", "store")
    monkeypatch.delenv("SUPER_STORE", raising=False)


def test_a_store_that_is_used(tmp_path, capsys, monkeypatch):
    store = DirectoryStore.open(tmp_path / "store", create=True)
    with store.begin_pack(PackMeta("0" * 16, "file:///x", "{}", "f", "1")) as writing:
        writing.add(b"i" * 16, *pack(np.ones((8, 8, 3), np.uint8), b"i" * 16))
        writing.commit()
    judged(capsys, "--store", store.address, store=["ok", "1 pack"])
    assert store.others("nobody", 0) == [], "it leaves no mark behind"
    monkeypatch.setenv("SUPER_STORE", store.address)
    judged(capsys, store=["ok", "1 pack"])
    (tmp_path / "store" / "store.json").write_text('{"super_store": 99, "id": ""}')
    judged(capsys, store=["fail", "version 99"])


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
    judged(capsys, "--store", str(place), store=[verdict, str(place)])
    assert not place.parent.exists()


def test_the_store_of_a_coordinator(tmp_path, capsys):
    place = tmp_path / "store"
    with Stack(arguments=("--store", str(place))) as stack:
        judged(capsys, "--coordinator", stack.address, store=["ok", str(place)])
        place.rename(tmp_path / "elsewhere")
        judged(capsys, "--coordinator", stack.address, store=["skip", str(place)])
