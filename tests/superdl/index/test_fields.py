"""Samples of several files: images and masks in tars, zips and folders go together by their names."""

import zipfile

import pytest

from superdl.coordinator.catalog import list_source
from superdl.main import main
from tests.coordinator.catalog.key_lists import written
from tests.superdl.index.shards import content_of, index, tar_of

WEBDATASET = {"1.jpg": b"i1", "1.seg.png": b"m1", "1.cls": b"4", "2.jpg": b"i2", "2.cls": b"5"}
FOLDERS = {
    "./images/a/1.jpg": b"i1",
    "./images/a/2.jpg": b"i2",
    "./masks/a/1.png": b"m1",
    "./masks/b/2.png": b"m2",
}
VOC = "image=JPEGImages/*.jpg,mask=SegmentationClass/*.png"
CITYSCAPES = "image=leftImg8bit/*_leftImg8bit.png,mask=gtFine/*_gtFine_labelIds.png"


def mask_of(row):
    """The row of a key list that has the mask as its own object."""
    return {name.removeprefix("mask."): value for name, value in row.items() if name.startswith("mask.")} | {
        "key": row.get("mask.key", row["key"])
    }


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
    assert "1 sample in 1 shard (1 tar)" in (told := capsys.readouterr().err)
    assert "1 sample skipped because of missing fields" in told
    assert row["label"] == label
    assert content_of(row, tmp_path / "shards") == b"i1"
    assert content_of(mask_of(row), tmp_path / "shards") == b"m1"
    assert main(["index", str(tmp_path / "shards"), "-o", str(tmp_path / "x.parquet"), *words]) == 0
    for path in (tmp_path / "x.parquet", written(tmp_path, "csv", [row])):
        catalog = list_source(str(tmp_path / "shards"), str(path))
        (field,) = catalog.fields
        assert (field.name, list(field.keys), len(field.members)) == ("mask", [b"0.tar"], 1)
        assert (
            catalog.fingerprint
            == list_source(str(tmp_path / "shards"), str(tmp_path / "list.jsonl")).fingerprint
        )


def test_members_of_a_zip(tmp_path):
    (tmp_path / "shards").mkdir()
    with zipfile.ZipFile(tmp_path / "shards" / "0.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/1.jpg", b"i1" * 100)
        archive.writestr("x/1.png", b"m1" * 100)
    (row,) = index(tmp_path / "shards", tmp_path / "list.jsonl", "--fields", "image=jpg,mask=png")
    assert (row["label"], row["mask.encoding"]) == ("x", "deflate")
    assert content_of(mask_of(row), tmp_path / "shards") == b"m1" * 100


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
    for name in (*images, *masks):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(name.encode())
    rows = {}
    for extension in ("jsonl", "parquet"):
        out = tmp_path / f"list.{extension}"
        words = ("--fields", fields, "--labels", "none")
        assert main(["index", str(tmp_path / "source"), "-o", str(out), *words]) == 0
        catalog = list_source(str(tmp_path / "source"), str(out))
        (field,) = catalog.fields
        rows[extension] = list(catalog.keys), list(field.keys), catalog.fingerprint
    assert rows["jsonl"] == rows["parquet"]
    assert rows["jsonl"][:2] == ([images[0].encode()], [masks[0].encode()])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--fields", "mask=png"), "--fields must list image"),
        (("--fields", "image=jpg"), "image and up to 15 others"),
        (("--fields", "image=jpg,mask=*a*"), "names with one *"),
        (("--fields", "image=jpg,a.b=png"), "a field name must"),
        (("--fields", "image=jpg,mask=png,mask=gif"), "each once"),
        (
            ("--fields", "image=jpg,mask=gif"),
            "none contains an image with all its fields|contains no image with its fields",
        ),
        (("--fields", "image=jpg,mask=png", "--image-field", "jpg"), "omit --image-field"),
    ],
)
def test_fields_that_cannot_be(words, told, tmp_path, capsys):
    (tmp_path / "tars").mkdir()
    tar_of(tmp_path / "tars" / "0.tar", {"1.jpg": b"i", "1.png": b"m"})
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "1.jpg").write_bytes(b"i")
    for source in ("tars", "loose"):
        assert main(["index", str(tmp_path / source), "-o", str(tmp_path / "x.jsonl"), *words]) > 0
        err = capsys.readouterr().err
        assert any(one in err for one in told.split("|"))
