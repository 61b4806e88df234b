"""The store, each broken in one way: real directories, and what a real coordinator tells of its own."""

from __future__ import annotations

import numpy as np
import pytest

from superdl.super_wire.record import HEADER_BYTES, pack
from superdl.super_wire.store import DirectoryStore, PackMeta
from tests.fixtures.stack import Stack
from tests.superdl.doctor.conftest import asked, only


@pytest.fixture(autouse=True)
def _the_store_alone(monkeypatch):
    only(monkeypatch, "coordinator", "store")
    monkeypatch.delenv("SUPER_STORE", raising=False)


def look(capsys, *words):
    code, found = asked(capsys, *words)
    return code, found["store"]


def test_a_store_that_is_used(tmp_path, capsys, monkeypatch):
    store = DirectoryStore.open(tmp_path / "store", create=True)
    with store.begin_pack(PackMeta("0" * 16, "file:///x", "{}", "f", "1")) as writing:
        offset = writing.add(b"i" * 16, *pack(np.ones((8, 8, 3), np.uint8), b"i" * 16))
        name = writing.commit()
    code, found = look(capsys, "--store", store.address)
    assert (code, found["verdict"], found["measured"]["packs"]) == (0, "ok", 1)
    assert store.others("nobody", 0) == [], "it leaves no mark behind"
    with (tmp_path / "store" / "packs" / name).open("r+b") as file:
        file.seek(offset + HEADER_BYTES)
        file.write(b"\0")
    monkeypatch.setenv("SUPER_STORE", store.address)
    code, found = look(capsys)
    assert (code, found["verdict"]) == (0, "warn")
    assert "superdl store verify" in found["remedy"]
    (tmp_path / "store" / "store.json").write_text('{"super_store": 99, "id": ""}')
    code, found = look(capsys)
    assert (code, found["verdict"]) == (1, "fail")
    assert "version 99" in found["reason"]


def test_the_store_of_a_coordinator(tmp_path, capsys):
    place = tmp_path / "store"
    stack = Stack(arguments=("--store", str(place)))
    stack.start()
    try:
        code, found = look(capsys, "--coordinator", stack.address)
        assert (code, found["verdict"]) == (0, "ok")
        assert f"{place} is seen from here" in found["reason"]
        place.rename(tmp_path / "elsewhere")
        code, found = look(capsys, "--coordinator", stack.address)
        assert (code, found["verdict"]) == (0, "skip")
        assert "mount it" in found["remedy"]
    finally:
        stack.close()
