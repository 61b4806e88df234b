"""The same on a store in S3, by a real server on loopback."""

from __future__ import annotations

import pytest

from superdl.main import main
from superdl.super_wire.store import open_store
from tests.fixtures.images import write_images
from tests.superdl.store.conftest import asked, fill


@pytest.mark.slow
def test_a_store_in_s3(object_store, tmp_path, valkey, monkeypatch, capsys):
    (object_store.directory / "data").mkdir()
    store = open_store("s3://data/kept/here", create=True)
    (object_store.directory / "data" / "kept" / "theirs.txt").write_text("mine")
    images = write_images(tmp_path / "images", 20)
    answers = fill(monkeypatch, "s3://data/kept/here", images, valkey.unix_url)

    code, seen = asked(capsys, "ls", "s3://data/kept/here")
    assert (code, [(one["records"], one["packs"]) for one in seen["collections"]]) == (0, [(20, 2)])
    code, seen = asked(capsys, "verify", "s3://data/kept/here", "--share", "1")
    assert (code, seen["checked"], seen["wrong"]) == (0, 20, [])

    file = object_store.directory / "data" / "kept" / "here" / "packs" / answers[0].pack
    entry = store.read_index(answers[0].pack, file.stat().st_size).entries[0]
    content = bytearray(file.read_bytes())
    content[int(entry["offset"]) + 100] ^= 1
    file.write_bytes(content)
    code, seen = asked(capsys, "verify", "s3://data/kept/here", "--share", "1", "--yes")
    assert (code, seen["dropped"], list(store.packs())) == (1, [answers[0].pack], [answers[1].pack])

    store.touch("a-coordinator")
    assert main(["store", "clear", "s3://data/kept/here", "--yes"]) == 1
    store.forget("a-coordinator")
    store.mark_used(answers[1].pack.partition("-")[0])
    code, seen = asked(capsys, "clear", "s3://data/kept/here", "--yes")
    assert (code, seen["packs"], store.packs(), store.used()) == (0, [answers[1].pack], {}, {})
    left = {path.name for path in (object_store.directory / "data").rglob("*") if path.is_file()}
    assert left == {"store.json", "theirs.txt"}
    assert main(["store", "ls", "s3://data/other"]) == 1
    assert "s3://data/other" in capsys.readouterr().err
