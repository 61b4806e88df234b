"""From the data section of a spec to source URLs; published sets in their layouts are never written into."""

import pytest

from superdl.coordinator.catalog import list_source
from superdl.experiments.data import MADE_SETS, PreparedData, Source, make_set, prepare_data
from superdl.experiments.spec import DataSpec
from superdl.super_wire.errors import SourceError
from tests.experiments.data.small_sets import files_of, write_images


def test_without_a_source_the_digits_are_written(tmp_path):
    prepared = prepare_data(DataSpec(directory=str(tmp_path / "digits")))
    assert prepared.train.url == f"file://{tmp_path}/digits/train"
    assert prepared.val == Source(f"file://{tmp_path}/digits/val")
    assert (tmp_path / "digits" / "train" / "7").is_dir()


def test_a_drawn_set_is_made_where_it_is_asked_for_and_taken_where_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    prepared = prepare_data(DataSpec(kind="mnist-like", samples=20), told.append)
    place = tmp_path / "data" / "mnist-like-20"
    assert prepared == PreparedData(Source(f"file://{place}/train"), Source(f"file://{place}/val"))
    assert told[0].startswith("drawing mnist-like: 20 training and 10 validation images")
    # One that is there serves without its size being named, with any seed.
    make_set(MADE_SETS["mnist-like"], tmp_path / "mine", samples=30, seed=7)
    prepared = prepare_data(DataSpec(kind="mnist-like", directory="mine"), told.append)
    assert prepared.train.url == f"file://{tmp_path}/mine/train"
    with pytest.raises(SourceError, match="something other than mnist-like"):
        prepare_data(DataSpec(kind="mnist-like", directory="mine", samples=31))
    with pytest.raises(SourceError, match="name is 'mnist-like' there"):
        prepare_data(DataSpec(kind="cifar10-like", directory="mine"))


@pytest.mark.parametrize("directory", [None, "absent", "empty"])
def test_where_a_published_set_is_not_a_drawn_one_stands_in_and_says_so(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    data = DataSpec(kind="mnist", directory=directory, samples=20)
    prepared = prepare_data(data)
    place = tmp_path / (directory or "data/mnist-like-20")
    assert prepared.train.url == f"file://{place}/train"
    assert "the published mnist is not in" in prepared.note
    assert "drawn ones, mnist-like" in prepared.note
    assert prepare_data(data) == prepared


WNIDS = ("n01443537", "n02124075")


@pytest.fixture
def tiny_imagenet(tmp_path):
    """Two classes of it, as its archive unpacks."""
    root = tmp_path / "tiny-imagenet-200"
    for wnid in WNIDS:
        write_images(root, [f"train/{wnid}/images/{wnid}_{index}.JPEG" for index in range(3)])
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
    write_images(root, [f"val/images/val_{index}.JPEG" for index in range(4)])
    write_images(root, ["test/images/test_0.JPEG"])
    (root / "val" / "val_annotations.txt").write_text(
        "".join(f"val_{index}.JPEG\t{WNIDS[1 - index % 2]}\t0\t32\t44\t62\n" for index in range(4))
    )
    (root / "wnids.txt").write_text("\n".join(WNIDS))
    return root


def test_tiny_imagenet_has_its_folders_and_a_key_list_for_validation(tiny_imagenet, tmp_path):
    before = files_of(tiny_imagenet)
    prepared = prepare_data(DataSpec(kind="tiny-imagenet", directory=str(tiny_imagenet)))
    train = list_source(prepared.train.url, prepared.train.key_list)
    val = list_source(prepared.val.url, prepared.val.key_list)
    assert train.classes == val.classes == WNIDS
    assert [key.decode() for key in train.keys][::3] == [f"{w}/images/{w}_0.JPEG" for w in WNIDS]
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [key.decode() for key in val.keys] == [f"val_{index}.JPEG" for index in range(4)]
    assert val.labels.tolist() == [1, 0, 1, 0]
    assert "tiny-imagenet as published" in prepared.note
    assert files_of(tiny_imagenet) == before, "a user's set is left alone"

    key_list = tmp_path / "tiny-imagenet-200-superdl" / "val.csv"
    assert prepared.val.key_list == f"file://{key_list}"
    written = key_list.stat()
    assert prepare_data(DataSpec(kind="tiny-imagenet", directory=str(tiny_imagenet))) == prepared
    assert key_list.stat().st_mtime_ns == written.st_mtime_ns, "once"
    key_list.write_text("key,label\n")
    prepare_data(DataSpec(kind="tiny-imagenet", directory=str(tiny_imagenet)))
    assert len(key_list.read_text().splitlines()) == 5, "but never a stale one"
    assert [entry.name for entry in key_list.parent.iterdir()] == ["val.csv"]


@pytest.mark.parametrize(
    ("kind", "names", "val"),
    [
        ("cifar10", ["train/cat/1.png", "train/dog/2.png", "test/cat/3.png", "test/dog/4.png"], "test"),
        ("hymenoptera", ["train/ants/1.jpg", "train/bees/2.jpg", "val/ants/3.jpg", "val/bees/4.jpg"], "val"),
        ("imagenet", ["train/n01/1.JPEG", "train/n02/2.JPEG", "val/n01/3.JPEG", "val/n02/4.JPEG"], "val"),
        ("tiny-imagenet", ["train/n01/images/1.JPEG", "val/n01/images/3.JPEG"], "val"),  # sorted by its user
        ("mnist", ["training/0/1.png", "training/1/2.png", "testing/0/3.png", "testing/1/4.png"], "testing"),
    ],
)
def test_class_folders_are_taken_as_they_are(tmp_path, kind, names, val):
    write_images(tmp_path / "set", names)
    prepared = prepare_data(DataSpec(kind=kind, directory=str(tmp_path / "set")))
    assert prepared.val.url == f"file://{tmp_path}/set/{val}"
    assert prepared.val.key_list is None
    train, validation = list_source(prepared.train.url), list_source(prepared.val.url)
    assert train.classes == validation.classes
    assert len(train.keys) + len(validation.keys) == len(names)
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]
