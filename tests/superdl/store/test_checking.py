"""Verifying finds what is wrong in a store and drops its packs; the commands on a store in S3."""

import pytest

from superdl.main import main
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.store import open_store
from tests.fixtures.images import write_images
from tests.superdl.store.conftest import COUNT, asked, fill


def spoil(address, pack, at):
    """One bit of a pack's file is another from now on."""
    with open(f"{address}/packs/{pack}", "r+b") as file:  # noqa: PTH123
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def entries_of(store, pack):
    return store.read_index(pack, store.packs()[pack]).entries


def test_a_store_of_the_functions_is_right(filled, capsys):
    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert (code, seen["wrong"]) == (0, [])
    assert (seen["packs"], seen["records"], seen["checked"]) == (3, COUNT, COUNT)
    code, seen = asked(capsys, "verify", filled.address)
    assert (code, seen["checked"]) == (0, 16)


def test_every_kind_of_wrong_is_found_and_its_pack_dropped(filled, capsys):
    """A flipped bit in a payload, and one in an index."""
    spoilt, broken, right = filled.packs
    entry = entries_of(filled.store, spoilt)[3]
    spoil(filled.address, spoilt, int(entry["offset"]) + HEADER_BYTES + 7)
    spoil(filled.address, broken, filled.store.packs()[broken] - 100)
    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert code == 1
    found = {one["pack"]: one for one in seen["wrong"]}
    assert found.keys() == {spoilt, broken}
    assert found[spoilt]["sample"] == bytes(entry["id"]).hex()
    assert "xxh3" in found[spoilt]["why"]
    assert seen["dropped"] == []
    assert filled.store.packs().keys() == {spoilt, broken, right}, "nobody has agreed"

    code, seen = asked(capsys, "verify", filled.address, "--share", "1", "--yes")
    assert (code, set(seen["dropped"])) == (1, {spoilt, broken})
    assert filled.store.packs().keys() == {right}
    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert (code, seen["checked"]) == (0, 8)


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

    code, seen = asked(capsys, "prune", "s3://data/kept/here", "--bytes", "0", "--yes")
    assert (code, seen["packs"], store.packs()) == (0, [answers[1].pack], {})
    left = {path.name for path in (object_store.directory / "data").rglob("*") if path.is_file()}
    assert left == {"store.json", "theirs.txt"}
    assert main(["store", "ls", "s3://data/other"]) == 1
    assert "s3://data/other" in capsys.readouterr().err
