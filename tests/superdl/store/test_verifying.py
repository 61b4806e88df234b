"""Verifying finds what is wrong in a store that the function wrote, and drops its packs."""

from __future__ import annotations

from superdl.super_wire.record import HEADER_BYTES
from tests.superdl.store.conftest import COUNT, asked


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
