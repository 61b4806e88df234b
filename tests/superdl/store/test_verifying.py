"""Verifying finds what is wrong in a store that the function wrote, says what it did not see, and drops."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from superdl.super_wire.ids import Naming
from superdl.super_wire.record import HEADER_BYTES, pack
from tests.fixtures.ids import sample_id
from tests.fixtures.images import SIDE
from tests.lambda_prefetch.prefetching import file_version
from tests.superdl.store.conftest import COUNT
from tests.superdl.store.filled import RECIPE, asked, fill


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
    assert (code, seen["wrong"], seen["not_decoded"]) == (0, [], {})
    assert (seen["packs"], seen["records"], seen["checked"], seen["decoded"]) == (3, COUNT, COUNT, COUNT)
    code, seen = asked(capsys, "verify", filled.address)
    assert (code, seen["checked"], seen["decoded"]) == (0, 16, 16)


@pytest.mark.parametrize("versions", ["times", "digests"])
def test_what_has_a_name_is_verified_where_it_is_said_to_lie(filled, capsys, monkeypatch, valkey, versions):
    for pack_name in filled.packs:
        filled.store.remove(pack_name)
    fill(monkeypatch, filled.address, filled.images, valkey.unix_url, naming=Naming("pets", versions))
    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert (code, seen["checked"], seen["decoded"]) == (0, COUNT, 0)
    assert list(seen["not_decoded"]) == ["alias://pets is a name: say by --source where its objects lie"]
    moved = shutil.copytree(filled.images, filled.images.parent / "moved")
    shutil.rmtree(filled.images)
    code, seen = asked(capsys, "verify", filled.address, "--share", "1", "--source", str(moved))
    assert (code, seen["checked"], seen["decoded"]) == (0, COUNT, COUNT)


def test_every_kind_of_wrong_is_found_and_its_pack_dropped(filled, capsys):
    """Wrong pixels under a right hash, a flipped bit in a payload, one in an index."""
    spoilt, broken, right = filled.packs
    entry = entries_of(filled.store, spoilt)[3]
    spoil(filled.address, spoilt, int(entry["offset"]) + HEADER_BYTES + 7)
    meta = filled.store.read_index(right, filled.store.packs()[right]).meta
    spoil(filled.address, broken, filled.store.packs()[broken] - 100)
    key = "ant/00000.jpg"
    version = file_version(filled.images / key)
    lying = sample_id(meta.bucket, key, version, RECIPE.digest)
    with filled.store.begin_pack(meta) as liar:
        liar.add(lying, *pack(np.zeros((SIDE, SIDE, 3), np.uint8), lying))
        liar.commit()
    (liar_name,) = set(filled.store.packs()) - set(filled.packs)

    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert code == 1
    found = {one["pack"]: one for one in seen["wrong"]}
    assert found.keys() == {spoilt, broken, liar_name}
    assert found[liar_name]["key"] == key
    assert "other bytes" in found[liar_name]["why"]
    assert found[spoilt]["sample"] == bytes(entry["id"]).hex()
    assert "xxh3" in found[spoilt]["why"]
    assert seen["dropped"] == []
    assert filled.store.packs().keys() == {spoilt, broken, right, liar_name}, "nobody has agreed"

    code, seen = asked(capsys, "verify", filled.address, "--share", "1", "--yes")
    assert (code, set(seen["dropped"])) == (1, {spoilt, broken, liar_name})
    assert filled.store.packs().keys() == {right}
    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert (code, seen["decoded"]) == (0, 8)


def test_what_cannot_be_decoded_again_is_checked_by_its_hash_and_told(filled, capsys, monkeypatch):
    changed = filled.images / "ant" / "00000.jpg"
    os.utime(changed, ns=(1, 1))
    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert (code, seen["checked"], seen["decoded"]) == (0, COUNT, COUNT - 1)
    assert seen["not_decoded"] == {"the source lists no such object, or it has changed": 1}

    monkeypatch.setattr("superdl.lambda_prefetch.decoder_fingerprint.decoder_fingerprint", lambda: "f" * 32)
    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert (code, seen["checked"], seen["decoded"]) == (0, COUNT, 0)
    ((why, count),) = seen["not_decoded"].items()
    assert count == COUNT
    assert "ffffffff" in why
    monkeypatch.undo()

    shutil.rmtree(filled.images)
    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert (code, seen["checked"], seen["decoded"]) == (0, COUNT, 0)
    ((why, count),) = seen["not_decoded"].items()
    assert (count, str(filled.images) in why) == (COUNT, True)
    entry = entries_of(filled.store, filled.packs[0])[0]
    spoil(filled.address, filled.packs[0], int(entry["offset"]) + HEADER_BYTES)
    code, seen = asked(capsys, "verify", filled.address, "--share", "1")
    assert (code, len(seen["wrong"])) == (1, 1)
