"""Catalogs of sources: classes from folders or a key list, and an order that depends only on the keys."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.listing import Tally, on_threads
from superdl.coordinator.catalog.source import Allowed, parse_source
from superdl.super_wire.errors import (
    ConfigError,
    SourceEmptyError,
    SourceError,
    SourceForbiddenError,
    SourceNotFoundError,
)
from tests.coordinator.catalog.key_lists import make

ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0\1"), min_size=1, max_size=6)
# "-" sorts before "/", so classes and keys are ordered differently.
NAMES = (ANY | st.text("a-é", min_size=1, max_size=3)).filter(lambda name: name[0] != ".")


def as_image_folder(directory):
    """List paths in the order of torchvision's ``make_dataset``."""
    paths_below = []
    for folder in sorted(path for path in directory.iterdir() if path.is_dir()):
        for root, _, names in sorted(os.walk(folder)):
            paths = [Path(root, name).relative_to(directory) for name in sorted(names)]
            paths_below += [str(path).encode() for path in paths if path.suffix == ".jpg"]
    return paths_below


@given(
    names=st.sets(st.tuples(NAMES, st.lists(NAMES, max_size=2).map(tuple), NAMES), min_size=1, max_size=12)
)
@example(names={("hot", (), "1"), ("hot dog", (), "1"), ("hot-pot", (), "1"), ("hot", ("a", "b"), "0")})
@example(names={("c", ("sub",), "a"), ("c", ("sub-1",), "a"), ("c", (), "sub"), ("c", (), "z")})
def test_samples_have_image_folders_order(tmp_path_factory, names):
    directory = tmp_path_factory.mktemp("any")
    keys = ["/".join((folder, *between, f"{name}.jpg")) for folder, between, name in names]
    assume(not any(other.startswith(f"{key}/") for key in keys for other in keys))
    make(directory, *keys)
    make(directory, "top.jpg", "text/a.txt")  # not in a class folder, and not an image
    catalog = list_source(str(directory))
    assert list(catalog.keys) == as_image_folder(directory)
    assert catalog.classes == tuple(sorted({folder for folder, *_ in names}))
    for key, label in zip(catalog.keys, catalog.labels, strict=True):
        assert catalog.classes[label] == key.decode().split("/")[0]


def test_a_warning_names_the_first_few_in_order_of_names(tmp_path):
    make(tmp_path, "a/1.jpg", *(f"{number:02d}.jpg" for number in reversed(range(20))))
    (warning,) = list_source(str(tmp_path)).warnings
    assert warning.endswith(": 00.jpg, 01.jpg, 02.jpg, 03.jpg, 04.jpg, ...")


def test_sources_without_images_classes_or_listed_keys_are_refused(tmp_path):
    make(tmp_path, "a/notes.txt")
    with pytest.raises(SourceEmptyError, match=f"file://{tmp_path} contains no images .*\\.webp.*key_list"):
        list_source(str(tmp_path))
    make(tmp_path, "1.jpg", "2.jpg")
    with pytest.raises(SourceError, match=r"2 images but no class folders.*key_list=") as caught:
        list_source(str(tmp_path))
    assert not isinstance(caught.value, SourceEmptyError)
    labels = tmp_path / "labels.csv"
    labels.write_text("key,label\n1.jpg,1\n0.jpg,1\n")
    with pytest.raises(SourceError, match=f"1 of the 2 keys .* not in file://{tmp_path}, .*: '0.jpg'$"):
        list_source(str(tmp_path), str(labels))


def test_what_is_skipped_or_guessed_is_counted(tmp_path):
    make(tmp_path, "train/1.jpg", "val/.ipynb_checkpoints/1.jpg", "val/._1.jpg", "val/1.jpg", "val/.DS_Store")
    make(
        tmp_path, "__MACOSX/train/1.jpg", "top.jpg", "notes.txt", ".git/config", "Test/notes.txt", "Thumbs.db"
    )
    catalog = list_source(str(tmp_path))
    assert (catalog.classes, list(catalog.keys)) == (("train", "val"), [b"train/1.jpg", b"val/1.jpg"])
    left_out = [words.rpartition(": ")[2].replace(f"{tmp_path}/", "") for words in catalog.warnings]
    assert left_out == [
        ".git, __MACOSX, val/._1.jpg, val/.ipynb_checkpoints",
        "top.jpg",
        "Test",
        "train, val",  # these look like splits
    ]
    make(tmp_path, "cat/1.jpg")
    assert list_source(str(tmp_path)).warnings == catalog.warnings[:-1]
    labels = tmp_path / "labels.csv"
    labels.write_text("key,label\nval/._1.jpg,1\n")  # an explicitly listed key is kept
    assert list_source(str(tmp_path), str(labels)).warnings == ()


@given(st.data())
def test_each_row_gets_the_version_of_its_key(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("join")
    endings = ("jpg", "bin")  # in a key list, a file without an image's extension is a sample too
    names = [f"{number}.{endings[number % 2]}" for number in range(data.draw(st.integers(1, 20)))]
    for size, name in enumerate(names):
        (directory / name).write_bytes(bytes(size))
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    labels = directory / "labels.csv"
    labels.write_text("key,label\n" + "".join(f"{name},{name.split('.')[0]}\n" for name in chosen))
    catalog = list_source(str(directory), str(labels))
    assert list(catalog.keys) == sorted(name.encode() for name in chosen)
    for key, version, label in zip(catalog.keys, catalog.versions, catalog.labels, strict=True):
        assert int(version.split(b"-")[0]) == label == int(key.split(b".")[0])


def test_a_key_list_with_versions_needs_no_listing(tmp_path):
    (tmp_path / "data").mkdir()
    labels = tmp_path / "labels.jsonl"
    labels.write_text(
        '{"key": "b.jpg", "label": "x", "version": "1-2"}\n{"key": "a.jpg", "label": "y", "version": "3-4"}\n'
    )
    counts = []
    catalog = list_source(str(tmp_path / "data"), f"file://{labels}", counts.append)
    assert list(catalog.keys) == [b"a.jpg", b"b.jpg"]
    assert list(catalog.versions) == [b"3-4", b"1-2"]
    assert catalog.labels.tolist() == [1, 0]
    assert counts == [2, None]
    with pytest.raises(SourceNotFoundError, match="gone does not exist"):
        list_source(str(tmp_path / "gone"), str(labels))


def test_keys_behind_links_exist_where_functions_follow_them(tmp_path):
    make(tmp_path, "source/a.jpg", "outside/b.jpg")
    (tmp_path / "source/out").symlink_to("../outside")
    labels = tmp_path / "labels.csv"
    labels.write_text("key,label\na.jpg,1\nout/b.jpg,1\n")
    with pytest.raises(SourceError, match=r"not in .*'out/b.jpg'"):
        list_source(str(tmp_path / "source"), str(labels), allowed=Allowed(own_functions=False))
    assert len(list_source(str(tmp_path / "source"), str(labels))) == 2


def test_the_first_failure_stops_the_other_threads():
    tally, endless_runs = Tally(lambda _: None, threading.Event()), threading.Event()

    def work(name):
        if name == "bad":
            assert endless_runs.wait(30)
            raise SourceForbiddenError(name)
        endless_runs.set()
        while True:  # runs until the other one fails
            tally.check()

    with pytest.raises(SourceForbiddenError, match="bad"):
        on_threads(work, ["endless", "bad", *("more",) * 50], tally, threads=2)


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://b", "s3://b", ""),
        ("s3://b/", "s3://b", ""),
        ("s3://b//", "s3://b", "/"),
        ("s3://b/train", "s3://b", "train/"),
        ("s3://b/train/", "s3://b", "train/"),
        ("s3://b/a//b/ä b%20?x=1#y//", "s3://b", "a//b/ä b%20?x=1#y//"),
        ("S3://my.bucket-1/x", "s3://my.bucket-1", "x/"),
        ("file://{}", "file://{}", ""),
        ("FILE://localhost{}", "file://{}", ""),
        ("{}/", "file://{}", ""),
        ("{}/a/../link", "file://{}/real", ""),
        ("link/a%20b c", "file://{}/real/a%20b c", ""),
    ],
)
def test_a_source_has_one_normal_form(tmp_path, monkeypatch, url, bucket, prefix):
    monkeypatch.chdir(tmp_path)  # relative paths start here
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    source = parse_source(url.format(tmp_path))
    assert (source.bucket, source.prefix) == (bucket.format(tmp_path.resolve()), prefix)
    assert parse_source(source.url) == source


def test_a_directory_whose_name_is_not_utf8_is_refused(tmp_path):
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    with pytest.raises(ConfigError, match="UTF-8"):
        parse_source(f"{tmp_path}/{name}")
