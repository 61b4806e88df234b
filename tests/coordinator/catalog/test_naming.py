"""With an alias and digests, copies keep their ids and changed files do not."""

import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.lister import list_objects
from superdl.super_wire.ids import Naming, digest_version, size_of_digest, split_ids

RECIPE = bytes(16)
NAMED = Naming("pets", "digests")
NAMES = st.text("abc.-é", min_size=1, max_size=4).filter(lambda name: not name.startswith("."))
TREES = st.dictionaries(st.tuples(NAMES, NAMES), st.binary(max_size=40), min_size=1, max_size=8)


def write(directory, tree):
    for (folder, name), content in tree.items():
        (directory / folder).mkdir(parents=True, exist_ok=True)
        (directory / folder / f"{name}.jpg").write_bytes(content)
    return directory


def ids_of(directory, naming=NAMED, randomness=None):
    """Return ids by the path below the directory, and the fingerprint."""
    catalog = list_source(str(directory), naming=naming)
    ids = split_ids(catalog.sample_ids(RECIPE, randomness))
    return dict(zip((key.decode() for key in catalog.keys), ids, strict=True)), catalog.fingerprint


@given(tree=TREES, data=st.data())
def test_a_copy_keeps_its_ids_and_a_changed_byte_changes_one(tmp_path_factory, tree, data):
    first = write(tmp_path_factory.mktemp("first"), tree)
    copy = write(tmp_path_factory.mktemp("copy") / "deeper", tree)
    for file in copy.glob("*/*"):
        os.utime(file, ns=(1, data.draw(st.integers(0, 2**60))))
    randomness = data.draw(st.none() | st.just((3, 7)))
    assert ids_of(first, randomness=randomness) == ids_of(copy, randomness=randomness)
    before, fingerprint = ids_of(copy)
    changed = data.draw(st.sampled_from(sorted(before)))
    content = bytearray((copy / changed).read_bytes())
    if content:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        content += b"x"
    (copy / changed).write_bytes(content)
    after, other = ids_of(copy)
    assert {key for key in before if before[key] != after[key]} == {changed}
    assert fingerprint != other


def test_without_an_alias_ids_depend_on_location_and_times(tmp_path):
    first = write(tmp_path / "first", {("cat", "1"): b"one", ("dog", "2"): b"two"})
    copy = tmp_path / "copy"
    shutil.copytree(first, copy)  # preserves modification times
    by_place, by_digest = ids_of(first, Naming()), ids_of(first, Naming(versions="digests"))
    assert by_place == ids_of(first, Naming(versions="times"))
    assert by_place != ids_of(copy, Naming())
    assert by_digest != ids_of(copy, Naming(versions="digests"))
    assert by_digest != by_place
    named = ids_of(first, Naming("pets"))
    assert named == ids_of(copy, Naming("pets"))
    assert named != ids_of(copy, Naming("others"))
    os.utime(copy / "cat" / "1.jpg", ns=(1, 1))
    assert named != ids_of(copy, Naming("pets"))


def test_digests_apply_to_key_lists_and_links(tmp_path):
    source = write(tmp_path / "source", {("cat", "1"): b"one", ("cat", "2"): b"two"})
    (source / "dog").mkdir()
    (source / "dog" / "same.jpg").symlink_to("../cat/1.jpg")
    rows = tmp_path / "keys.csv"
    rows.write_text("key,label\ndog/same.jpg,1\ncat/1.jpg,0\n")
    catalog = list_source(str(source), str(rows), naming=NAMED)
    assert [key.decode() for key in catalog.keys] == ["cat/1.jpg", "dog/same.jpg"]
    assert catalog.versions[0] == catalog.versions[1]
    assert size_of_digest(catalog.versions[0].decode()) == 3
    keys, versions = list_objects(str(source), naming=NAMED)
    assert dict(zip(keys, versions, strict=True))[b"cat/1.jpg"] == catalog.versions[0]


def test_each_digested_file_is_progress(tmp_path):
    source = write(tmp_path, {("cat", str(number)): b"x" for number in range(5)})
    counts = []
    list_source(str(source), None, counts.append, naming=NAMED)
    assert sorted(set(counts[:-1])) == [1, 2, 3, 4, 5]
    assert counts[-1] is None


@pytest.mark.parametrize("version", ["5-12345", "5-b2:abc", f"-1-b2:{'0' * 32}", f"5-b2:{'0' * 33}", "etag"])
def test_other_versions_are_not_digests(version):
    assert size_of_digest(version) is None
    assert size_of_digest(digest_version(5, bytes(16))) == 5
