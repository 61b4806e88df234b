"""``superdl store verify`` finds and drops damaged packs; all actions on a store in S3."""

from pathlib import Path

import pytest

from superdl.main import main
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.store import open_store
from tests.fixtures.images import write_images
from tests.superdl.store.conftest import COUNT, fill, run_store


def spoil(store, pack, at):
    """Flip one bit of a pack's file."""
    file = Path(store, "packs", pack)
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def entries_of(store, pack):
    return store.read_index(pack, store.packs()[pack]).entries


def test_every_kind_of_wrong_is_found_and_its_pack_dropped(filled, capsys):
    """A flipped bit in a payload, and one in an index."""
    code, seen = run_store(capsys, "verify", filled.address, "--share", "1")
    assert (code, seen["wrong"]) == (0, [])
    assert (seen["packs"], seen["records"], seen["checked"]) == (3, COUNT, COUNT)
    code, seen = run_store(capsys, "verify", filled.address)
    assert (code, seen["checked"]) == (0, 16)

    spoilt, broken, right = filled.packs
    entry = entries_of(filled.store, spoilt)[3]
    spoil(filled.address, spoilt, int(entry["offset"]) + HEADER_BYTES + 7)
    spoil(filled.address, broken, filled.store.packs()[broken] - 100)
    code, seen = run_store(capsys, "verify", filled.address, "--share", "1")
    assert code == 1
    found = {one["pack"]: one for one in seen["wrong"]}
    assert found.keys() == {spoilt, broken}
    assert found[spoilt]["sample"] == bytes(entry["id"]).hex()
    assert "xxh3" in found[spoilt]["why"]
    assert seen["dropped"] == []
    assert filled.store.packs().keys() == {spoilt, broken, right}, "nobody has agreed"

    code, seen = run_store(capsys, "verify", filled.address, "--share", "1", "--yes")
    assert (code, set(seen["dropped"])) == (1, {spoilt, broken})
    assert filled.store.packs().keys() == {right}
    code, seen = run_store(capsys, "verify", filled.address, "--share", "1")
    assert (code, seen["checked"]) == (0, 8)


@pytest.mark.slow
def test_a_store_in_s3(object_store, tmp_path, valkey, monkeypatch, capsys):
    (object_store.directory / "data").mkdir()
    store = open_store("s3://data/kept/here", create=True)
    (object_store.directory / "data" / "kept" / "theirs.txt").write_text("mine")
    images = write_images(tmp_path / "images", 20)
    answers = fill(monkeypatch, "s3://data/kept/here", images, valkey.unix_url)

    code, seen = run_store(capsys, "ls", "s3://data/kept/here")
    assert (code, [(one["records"], one["packs"]) for one in seen["collections"]]) == (0, [(20, 2)])
    code, seen = run_store(capsys, "verify", "s3://data/kept/here", "--share", "1")
    assert (code, seen["checked"], seen["wrong"]) == (0, 20, [])

    entry = entries_of(store, answers[0].pack)[0]
    spoil(object_store.directory / "data" / "kept" / "here", answers[0].pack, int(entry["offset"]) + 100)
    code, seen = run_store(capsys, "verify", "s3://data/kept/here", "--share", "1", "--yes")
    assert (code, seen["dropped"], list(store.packs())) == (1, [answers[0].pack], [answers[1].pack])

    code, seen = run_store(capsys, "prune", "s3://data/kept/here", "--bytes", "0", "--yes")
    assert (code, seen["packs"], store.packs()) == (0, [answers[1].pack], {})
    left = {path.name for path in (object_store.directory / "data").rglob("*") if path.is_file()}
    assert left == {"store.json", "theirs.txt"}
    assert main(["store", "ls", "s3://data/other"]) == 1
    assert "s3://data/other" in capsys.readouterr().err
