"""Samples of several files: images and masks are matched by name, in tars and folders."""

import pytest

from superdl.coordinator.catalog import list_source
from superdl.main import main
from tests.coordinator.catalog.key_lists import written
from tests.superdl.index.shards import content_of, index, tar_of, write_files

WEBDATASET = {"1.jpg": b"i1", "1.seg.png": b"m1", "1.cls": b"4", "2.jpg": b"i2", "2.cls": b"5"}
FOLDERS = {"./images/a/1.jpg": b"i1", "./images/a/2.jpg": b"i2"}
FOLDERS |= {"./masks/a/1.png": b"m1", "./masks/b/2.png": b"m2"}
VOC = "image=JPEGImages/*.jpg,mask=SegmentationClass/*.png"
CITYSCAPES = "image=leftImg8bit/*_leftImg8bit.png,mask=gtFine/*_gtFine_labelIds.png"


def mask_of(row):
    """The row of a key list that has the mask as its own object."""
    own = {name.removeprefix("mask."): value for name, value in row.items() if name.startswith("mask.")}
    return {"key": row["key"]} | own


@pytest.mark.parametrize(
    ("files", "fields", "labels", "label"),
    [
        (WEBDATASET, "mask=seg.png,image=jpg", "auto", 4),
        (FOLDERS, "image=images/*.jpg,mask=masks/*.png", "none", 0),
        (FOLDERS, "image=images/*.jpg,mask=masks/*.png", "folder", "a"),
    ],
)
def test_members_of_a_tar(files, fields, labels, label, tmp_path, capsys):
    (tmp_path / "shards").mkdir()
    tar_of(tmp_path / "shards" / "0.tar", files)
    words = ("--fields", fields, "--labels", labels)
    (row,) = index(tmp_path / "shards", tmp_path / "list.jsonl", *words)
    assert "1 sample skipped because of missing fields" in capsys.readouterr().err
    assert row["label"] == label
    assert content_of(row, tmp_path / "shards") == b"i1"
    assert content_of(mask_of(row), tmp_path / "shards") == b"m1"
    assert main(["index", str(tmp_path / "shards"), "-o", str(tmp_path / "x.parquet"), *words]) == 0
    lists = (tmp_path / "list.jsonl", tmp_path / "x.parquet", written(tmp_path, "csv", [row]))
    catalogs = [list_source(str(tmp_path / "shards"), str(path)) for path in lists]
    assert len({catalog.fingerprint for catalog in catalogs}) == 1
    for catalog in catalogs:
        (field,) = catalog.fields
        assert (field.name, list(field.keys), len(field.members)) == ("mask", [b"0.tar"], 1)


@pytest.mark.parametrize(
    ("fields", "images", "masks"),
    [
        (VOC, ["JPEGImages/1.jpg", "JPEGImages/2.jpg"], ["SegmentationClass/1.png"]),
        (CITYSCAPES, ["leftImg8bit/u/1_leftImg8bit.png"], ["gtFine/u/1_gtFine_labelIds.png"]),
        ("image=jpg,mask=png", ["a/1.jpg", "a/2.jpg"], ["a/1.png", "a/3.png"]),
        ("image=*.png,mask=*_mask.png", ["1.png"], ["1_mask.png"]),
    ],
)
def test_loose_files(fields, images, masks, tmp_path):
    source = str(write_files(tmp_path / "source", {name: name for name in (*images, *masks)}))
    fingerprints = set()
    for out in (str(tmp_path / "list.jsonl"), str(tmp_path / "list.parquet")):
        assert main(["index", source, "-o", out, "--fields", fields, "--labels", "none"]) == 0
        catalog = list_source(source, out)
        (field,) = catalog.fields
        assert (list(catalog.keys), list(field.keys)) == ([images[0].encode()], [masks[0].encode()])
        fingerprints.add(catalog.fingerprint)
    assert len(fingerprints) == 1
