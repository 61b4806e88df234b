"""From a spec's data section to source URLs. Published sets are never modified."""

import pytest

from superdl.coordinator.catalog import list_source
from superdl.experiments.data import MADE_SETS, PreparedData, Source, make_set, prepare_data
from superdl.experiments.spec import DataSpec
from superdl.super_wire.errors import SourceError
from tests.experiments.data.small_sets import files_of, write_images


def test_a_drawn_set_is_drawn_or_reused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = []
    prepared = prepare_data(DataSpec(kind="mnist-like", samples=20), lines.append)
    place = tmp_path / "data" / "mnist-like-20"
    assert prepared == PreparedData(Source(f"file://{place}/train"), Source(f"file://{place}/val"))
    assert lines[0].startswith("drawing mnist-like: 20 training and 10 validation images")
    # Without samples, an existing set of any size and seed is used.
    make_set(MADE_SETS["mnist-like"], tmp_path / "mine", samples=30, seed=7)
    prepared = prepare_data(DataSpec(kind="mnist-like", directory="mine"), lines.append)
    assert prepared.train.url == f"file://{tmp_path}/mine/train"
    with pytest.raises(SourceError, match="cannot write mnist-like to"):
        prepare_data(DataSpec(kind="mnist-like", directory="mine", samples=31))
    with pytest.raises(SourceError, match="name is 'mnist-like', not"):
        prepare_data(DataSpec(kind="cifar10-like", directory="mine"))


@pytest.mark.parametrize("directory", [None, "absent", "empty"])
def test_a_missing_published_set_is_replaced_by_a_drawn_one_with_a_note(tmp_path, monkeypatch, directory):
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
    """Two classes, as in the unpacked archive."""
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


def test_a_key_list_is_written_for_the_validation_images_of_tiny_imagenet(tiny_imagenet, tmp_path):
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
    assert files_of(tiny_imagenet) == before, "a user's set is not modified"

    key_list = tmp_path / "tiny-imagenet-200-superdl" / "val.csv"
    assert prepared.val.key_list == f"file://{key_list}"
    written = key_list.stat()
    assert prepare_data(DataSpec(kind="tiny-imagenet", directory=str(tiny_imagenet))) == prepared
    assert key_list.stat().st_mtime_ns == written.st_mtime_ns, "written once"
    key_list.write_text("key,label\n")
    prepare_data(DataSpec(kind="tiny-imagenet", directory=str(tiny_imagenet)))
    assert len(key_list.read_text().splitlines()) == 5, "a stale one is replaced"
    assert [entry.name for entry in key_list.parent.iterdir()] == ["val.csv"]


@pytest.mark.parametrize(
    ("kind", "names", "val"),
    [
        ("cifar10", ["train/cat/1.png", "train/dog/2.png", "test/cat/3.png", "test/dog/4.png"], "test"),
        ("hymenoptera", ["train/ants/1.jpg", "train/bees/2.jpg", "val/ants/3.jpg", "val/bees/4.jpg"], "val"),
        ("imagenet", ["train/n01/1.JPEG", "train/n02/2.JPEG", "val/n01/3.JPEG", "val/n02/4.JPEG"], "val"),
        ("tiny-imagenet", ["train/n01/images/1.JPEG", "val/n01/images/3.JPEG"], "val"),
        ("mnist", ["training/0/1.png", "training/1/2.png", "testing/0/3.png", "testing/1/4.png"], "testing"),
    ],
)
def test_class_folders_are_used_as_they_are(tmp_path, kind, names, val):
    write_images(tmp_path / "set", names)
    prepared = prepare_data(DataSpec(kind=kind, directory=str(tmp_path / "set")))
    assert prepared.val.url == f"file://{tmp_path}/set/{val}"
    assert prepared.val.key_list is None
    train, validation = list_source(prepared.train.url), list_source(prepared.val.url)
    assert train.classes == validation.classes
    assert len(train.keys) + len(validation.keys) == len(names)
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]
