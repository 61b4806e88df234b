"""A source becomes a catalog: classes by folders or by key list, in an order that only the keys decide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.source import Allowed
from superdl.super_wire.errors import SourceEmptyError, SourceError, SourceNotFoundError


def make(directory, *names):
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_class_folders(tmp_path):
    make(
        tmp_path,
        "dog/1.jpg",
        "cat/2.jpg",
        "cat/sub/1.jpg",
        "cat-big/3.jpg",
        "Ähre/4.png",
        "top.jpg",
        "text/a.txt",
    )
    catalog = list_source(f"file://{tmp_path}")
    assert catalog.bucket == f"file://{tmp_path.resolve()}"
    # "-" comes before "/", so the classes' order is not that of the keys.
    assert [key.decode() for key in catalog.keys] == [
        "cat-big/3.jpg", "cat/2.jpg", "cat/sub/1.jpg", "dog/1.jpg", "Ähre/4.png",
    ]  # fmt: skip
    assert catalog.classes == ("cat", "cat-big", "dog", "Ähre")
    assert catalog.labels.tolist() == [1, 0, 0, 2, 3]
    assert catalog.label_dtype == "int64"
    assert catalog.versions[0] == b"1-%d" % (tmp_path / "cat-big/3.jpg").stat().st_mtime_ns


NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=6
).filter(lambda name: name not in {".", ".."})


@given(names=st.sets(st.tuples(NAMES, NAMES), min_size=1, max_size=12))
def test_any_names_sorted_by_bytes(tmp_path_factory, names):
    directory = tmp_path_factory.mktemp("any")
    make(directory, *(f"{folder}/{name}.jpg" for folder, name in names))
    catalog = list_source(str(directory))
    assert list(catalog.keys) == sorted(f"{folder}/{name}.jpg".encode() for folder, name in names)
    assert catalog.classes == tuple(sorted({folder for folder, _ in names}))
    for key, label in zip(catalog.keys, catalog.labels, strict=True):
        assert catalog.classes[label] == key.decode().split("/")[0]


def test_no_image_no_classes_and_keys_that_are_not_there(tmp_path):
    make(tmp_path, "a/notes.txt")
    with pytest.raises(SourceEmptyError, match=f"file://{tmp_path} holds no image .*\\.webp.*key_list"):
        list_source(str(tmp_path))
    make(tmp_path, "1.jpg", "2.jpg")
    with pytest.raises(SourceError, match=r"holds 2 images and no class folders.*key_list=") as caught:
        list_source(str(tmp_path))
    assert not isinstance(caught.value, SourceEmptyError)
    labels = tmp_path / "labels.csv"
    labels.write_text("key,label\n1.jpg,1\n0.jpg,1\n")
    with pytest.raises(SourceError, match=f"1 of its 2 keys are not in file://{tmp_path} .*: '0.jpg'$"):
        list_source(str(tmp_path), str(labels))


def test_key_list_joined_with_the_listing(tmp_path):
    make(tmp_path, "2.jpg", "1.jpg", "sub/3.bin", "not-wanted.jpg")
    labels = tmp_path / "labels.csv"
    labels.write_text("key,label\nsub/3.bin,0.5\n2.jpg,1\n1.jpg,2\n")
    told = []
    catalog = list_source(str(tmp_path), str(labels), told.append)
    assert list(catalog.keys) == [b"1.jpg", b"2.jpg", b"sub/3.bin"]
    assert catalog.labels.dtype == np.float64
    assert catalog.labels.tolist() == [2.0, 1.0, 0.5]
    assert catalog.classes == ()
    assert catalog.versions[2] == b"1-%d" % (tmp_path / "sub/3.bin").stat().st_mtime_ns
    assert told[-1] == 5


@given(st.data())
def test_every_row_gets_the_version_of_its_own_key(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("join")
    names = [f"{number}.jpg" for number in range(data.draw(st.integers(1, 20)))]
    for size, name in enumerate(names):
        (directory / name).write_bytes(bytes(size))
    wanted = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    labels = directory / "labels.csv"
    labels.write_text("key,label\n" + "".join(f"{name},{name.split('.')[0]}\n" for name in wanted))
    catalog = list_source(str(directory), str(labels))
    assert list(catalog.keys) == sorted(name.encode() for name in wanted)
    for key, version, label in zip(catalog.keys, catalog.versions, catalog.labels, strict=True):
        assert int(version.split(b"-")[0]) == label == int(key.split(b".")[0])


def test_key_list_with_versions_asks_nobody(tmp_path):
    (tmp_path / "data").mkdir()
    labels = tmp_path / "labels.jsonl"
    labels.write_text(
        '{"key": "b.jpg", "label": "x", "version": "1-2"}\n{"key": "a.jpg", "label": "y", "version": "3-4"}\n'
    )
    told = []
    catalog = list_source(str(tmp_path / "data"), f"file://{labels}", told.append)
    assert list(catalog.keys) == [b"a.jpg", b"b.jpg"]
    assert list(catalog.versions) == [b"3-4", b"1-2"]
    assert catalog.labels.tolist() == [1, 0]
    assert told == [2]
    with pytest.raises(SourceNotFoundError, match="gone does not exist"):
        list_source(str(tmp_path / "gone"), str(labels))


def test_keys_of_links_that_lead_out_are_there_where_functions_follow_them(tmp_path):
    make(tmp_path, "source/a.jpg", "outside/b.jpg")
    (tmp_path / "source/out").symlink_to("../outside")
    labels = tmp_path / "labels.csv"
    labels.write_text("key,label\na.jpg,1\nout/b.jpg,1\n")
    with pytest.raises(SourceError, match=r"not in .*'out/b.jpg'"):
        list_source(str(tmp_path / "source"), str(labels), allowed=Allowed(own_functions=False))
    assert len(list_source(str(tmp_path / "source"), str(labels))) == 2
