"""``superdl store prune``: which packs it drops, and that nothing outside the store changes."""

import os
import shutil
import time
from pathlib import Path

import pytest

from superdl.coordinator.store.index import IndexedPack, pack_segment
from superdl.main import main
from superdl.super_wire.recipe import Recipe
from tests.fixtures.images import SIDE
from tests.superdl.store.conftest import fill, run_store


def collection_of_pack(pack):
    return pack.partition("-")[0]


def write_segment(store, packs):
    sizes = store.packs()
    indexed = [IndexedPack(pack, sizes[pack], store.read_index(pack, sizes[pack])) for pack in packs]
    return store.write_segment(pack_segment(indexed), collection_of_pack(packs[0]))


def test_prune_keeps_what_is_in_use_and_leaves_no_segment_of_nothing(filled, valkey, monkeypatch, capsys):
    store, now_s, recipe = filled.store, time.time(), Recipe.image(resize=SIDE, crop=SIDE // 2)
    others = fill(monkeypatch, store.address, filled.images, valkey.unix_url, recipe)
    old, new = filled.packs, [answer.pack for answer in others]
    segments = {name: write_segment(store, packs) for name, packs in (("old", old), ("new", new[:2]))}
    for pack in (old[0], new[0]):
        store.mark_used(collection_of_pack(pack))
    os.utime(Path(store.address, "used", collection_of_pack(old[0])), (now_s - 40 * 86400,) * 2)

    code, seen = run_store(capsys, "ls", store.address)
    rows = [(one["name"], one["records"], one["packs"], one["in_use"]) for one in seen["collections"]]
    assert (code, rows) == (0, [(collection_of_pack(packs[0]), 40, 3, False) for packs in (new, old)])
    assert {one["bucket"] for one in seen["collections"]} == {f"file://{filled.images}"}
    assert sum(one["size_bytes"] for one in seen["collections"]) == sum(store.packs().values())
    assert 0 < seen["disk_free_bytes"] <= shutil.disk_usage(store.address).total

    assert main(["store", "prune", store.address, "--bytes", "0"]) == 2, "nobody can be run_store"
    assert "--yes" in capsys.readouterr().err
    assert store.packs().keys() == {*old, *new}
    store.touch("a-coordinator")
    code, seen = run_store(capsys, "prune", store.address, "--bytes", "0", "--yes")
    assert (code, set(seen["packs"]), seen["segments"]) == (0, set(old), 1)
    assert store.packs().keys() == set(new)
    assert store.segments() == [segments["new"]]
    code, seen = run_store(capsys, "prune", store.address, "--bytes", "0", "--yes")
    assert (code, seen["packs"]) == (0, []), "what somebody has open stays"
    store.forget("a-coordinator")
    code, seen = run_store(capsys, "prune", store.address, "--bytes", "0", "--yes")
    assert (code, set(seen["packs"]), store.packs()) == (0, set(new), {})


def snapshot(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_prune_touches_nothing_that_the_store_did_not_name(filled, tmp_path, capsys):
    store, place = filled.store, Path(filled.address)
    write_segment(store, filled.packs)
    outside = tmp_path / "outside"
    shutil.copytree(place / "packs", outside)
    (outside / "index").write_text("mine")
    link = f"{collection_of_pack(filled.packs[0])}-{'0' * 24}.pack"
    (place / "packs" / link).symlink_to(outside / filled.packs[0])
    (place / "packs" / "notes.txt").write_text("mine")
    (place / "more").symlink_to(outside)
    before, mark = snapshot(outside), (place / "store.json").read_bytes()

    code, seen = run_store(capsys, "prune", store.address, "--bytes", "0", "--yes")
    assert (code, set(filled.packs) <= set(seen["packs"]), store.packs()) == (0, True, {})
    assert store.segments() == []
    assert (place / "store.json").read_bytes() == mark
    assert (place / "packs" / "notes.txt").read_text() == "mine"
    assert snapshot(outside) == before

    (place / "packs" / "notes.txt").unlink()
    shutil.rmtree(place / "packs")
    (place / "packs").symlink_to(outside)
    main(["store", "prune", store.address, "--bytes", "0", "--yes"])
    assert snapshot(outside) == before, "a folder of the store that leads elsewhere is not followed"


@pytest.mark.parametrize("action", ["ls", "verify", "prune"])
def test_what_is_no_store_is_refused(tmp_path, action, capsys):
    words = ["--bytes", "0", "--yes"] if action == "prune" else []
    pictures = tmp_path / "pictures"
    (pictures / "packs").mkdir(parents=True)
    (pictures / "packs" / f"{'0' * 16}-{'0' * 24}.pack").write_bytes(b"x")
    before = snapshot(pictures)
    assert main(["store", action, str(pictures), *words]) in {1, 2}
    assert str(pictures) in capsys.readouterr().err
    assert main(["store", action, str(tmp_path / "nothing"), *words]) in {1, 2}
    assert snapshot(pictures) == before
    assert not (tmp_path / "nothing").exists()


def test_the_store_that_is_meant(monkeypatch, tmp_path, filled, capsys):
    monkeypatch.setenv("SUPER_STORE", filled.address)
    assert run_store(capsys, "ls")[1]["store"] == filled.address
    for none in ("none", "None"):
        monkeypatch.setenv("SUPER_STORE", none)
        assert main(["store", "ls"]) == 2
        assert "SUPER_STORE=none" in capsys.readouterr().err
    monkeypatch.delenv("SUPER_STORE")
    assert main(["store", "ls"]) == 1
    assert str(tmp_path / "cache-of-the-user" / "superdl" / "store") in capsys.readouterr().err
    assert main(["store", "ls", filled.address]) == 0
    shown = capsys.readouterr().out
    assert f"file://{filled.images}" in shown
    assert f"resize(size={SIDE}), center_crop(size={SIDE})" in shown
