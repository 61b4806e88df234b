"""Images outside shards: label files, boxes of YOLO and COCO, and missing or invalid labels."""

import json
import math
import threading

import pytest

from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.key_list import read_key_list
from superdl.coordinator.catalog.listing import Tally
from superdl.index.loose import LABEL_FILE_BYTES, coco_in
from superdl.main import main
from superdl.super_wire.errors import SourceError
from tests.superdl.index.shards import held_shard, index, refused, write_files


@pytest.fixture
def source(tmp_path):
    return tmp_path / "source"


BESIDE = {
    "numbers": ({"a/1.jpg": "", "a/1.cls": "7\n", "b.2.png": "", "b.2.txt": " -8 "}, (), [7, -8]),
    "texts": ({"1.jpg": "", "1.txt": "a dog\n", "2.JPEG": "", "2.cls": "cat"}, (), ["a dog", "cat"]),
    "JSON": ({"1.jpg": "", "1.json": '{"label": 3, "mood": "glad"}'}, (), [3]),
    "a field": ({"1.jpg": "", "1.json": '{"mood": "glad"}'}, ("--label-field", "mood"), ["glad"]),
    "an extension": ({"1.jpg": "", "1.cap": "dog", "1.cls": "1"}, ("--label-field", "cap"), ["dog"]),
    "first of several": ({"1.jpg": "", "1.cls": "1", "1.txt": "2", "1.json": "{}"}, (), [1]),
    "a parallel folder": (
        {"images/t/1.jpg": "", "labels/t/1.txt": "4", "images/images/2.jpg": "", "images/labels/2.cls": "5"},
        (),
        [5, 4],
    ),
    "what a missing file stands for": (
        {"1.jpg": "", "1.txt": "4", "2.jpg": ""}, ("--missing-label", "0"), [4, 0]
    ),
    "folders": ({"x/cat/1.jpg": "", "x/dog/2.jpg": ""}, ("--labels", "folder"), ["cat", "dog"]),
    "other extensions": ({"1.dcm": "", "1.cls": "1", "2.jpg": ""}, ("--image-field", "dcm"), [1]),
    "some": ({"a/1.jpg": "", "a/1.cls": "1", "b/2.jpg": ""}, ("--only", "a/*"), [1]),
}  # fmt: skip


@pytest.mark.parametrize(("files", "words", "labels"), BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_labels_come_out_of_files_beside_images(files, words, labels, extension, source, tmp_path):
    write_files(source, files)
    out = tmp_path / f"list.{extension}"
    assert main(["index", str(source), "-o", str(out), *words]) == 0
    found = read_key_list(str(out), Tally(lambda _: None, threading.Event()), of_files=True)
    classes = found.classes or {label: label for label in labels}
    assert [classes[place] for place in found.labels] == labels
    keys = [key.decode() for key in found.own.keys]
    assert keys == sorted(keys)
    for key, version in zip(keys, found.own.versions, strict=True):
        status = (source / key).stat()
        assert version.decode() == f"{status.st_size}-{status.st_mtime_ns}"


YOLO = {
    "images/1.jpg": "",
    "labels/1.txt": "\ufeff0 0.5 0.5 0.25 1\r\n \n12 .1 .2 .3 4e-1\n\n",
    "images/2.jpg": "",
    "labels/2.txt": "",
    "images/3.png": "",
    "labels/classes.txt": "cat",
}


def test_yolos_boxes_are_as_many_as_an_image_has(source, tmp_path, capsys):
    write_files(source, YOLO)
    words = ("--labels", "yolo", "--missing-label", "")
    rows = index(source, tmp_path / "list.jsonl", *words)
    assert [row["label"] for row in rows] == [
        {"boxes[]": [[0.5, 0.5, 0.25, 1], [0.1, 0.2, 0.3, 0.4]], "classes[]": [0, 12]},
        {"boxes[]": [], "classes[]": []},
        {"boxes[]": [], "classes[]": []},
    ]
    said = capsys.readouterr().err
    assert "3 samples" in said
    assert "1 other object" in said
    assert "1 sample with --missing-label" in said
    catalog = list_source(str(source), str(tmp_path / "list.jsonl"))
    assert catalog.labels[0]["boxes"].tolist() == [[0.5, 0.5, 0.25, 1], [0.1, 0.2, 0.3, 0.4]]
    assert catalog.labels[2]["boxes"].shape == (0, 4)
    assert ".jsonl" in refused(capsys, source, tmp_path / "list.parquet", *words)


MISSING = dict.fromkeys([*(f"images/{number}.jpg" for number in (1, 2, 3)), "labels/3.txt"], "1")
WRONG = {
    "missing": (MISSING, (), "2 of 3 images have no label file, such as images/1.jpg"),
    "no box": ({"1.jpg": "", "1.txt": "0 1 1 1"}, ("--labels", "yolo"), "1.txt: line 1 "),
    "polygons": (
        {"1.jpg": "", "1.txt": "0 1 1 1 1\n0 1 1 1 1 1 1"}, ("--labels", "yolo"), "1.txt: line 2 ",
    ),
    "not finite": ({"1.jpg": "", "1.txt": "0 1 1 1 nan"}, ("--labels", "yolo"), "1.txt: line 1 "),
    "not UTF-8": ({"1.jpg": "", "1.txt": b"\xff"}, (), "1.txt: "),
    "empty": ({"1.jpg": "", "1.txt": ""}, (), "1.txt: "),
    "too large": ({"1.jpg": "", "1.txt": bytes(LABEL_FILE_BYTES + 1)}, (), "1.txt "),
    "no JSON": ({"1.jpg": "", "1.json": "{"}, (), "1.json: "),
    "no field": ({"1.jpg": "", "1.json": "{}"}, (), "1.jpg: "),
    "a list": ({"1.jpg": "", "1.json": '{"label": [1]}'}, (), "1.json: "),
    "mixed": ({"1.jpg": "", "1.txt": "1", "2.jpg": "", "2.txt": "x"}, (), "2.jpg: its label is 'x'"),
    "in no folder": ({"1.jpg": ""}, ("--labels", "folder"), "1.jpg: "),
    "no image": ({"1.txt": "1"}, ("--labels", "yolo"), "contains no image"),
    "no pair": ({"1.jpg": "", "1.png": ""}, ("--fields", "image=jpg,mask=gif"), "fields"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "words", "named"), WRONG.values(), ids=WRONG)
def test_labels_that_are_missing_or_wrong_are_named(files, words, named, source, tmp_path, capsys):
    write_files(source, files)
    assert named in refused(capsys, source, tmp_path / "list.jsonl", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_labels_of_images_that_are_named_one_by_one_are_refused(source, tmp_path):
    write_files(source, {"1.jpg": "", "2.jpg": "", "1.txt": "", "2.txt": ""})
    words = [str(source / "1.jpg"), str(source / "2.jpg"), "-o", str(tmp_path / "list.jsonl")]
    assert main(["index", *words, "--labels", "yolo"]) == 2


def test_links_to_labels_are_followed_as_those_to_images_are(source, tmp_path):
    write_files(source, {"1.jpg": ""})
    write_files(tmp_path, {"elsewhere.txt": "5"})
    (source / "1.txt").symlink_to(tmp_path / "elsewhere.txt")
    assert [row["label"] for row in index(source, tmp_path / "list.jsonl")] == [5]


# ------------------------------------------------------------------------------------------------------ COCO

INSTANCES = {
    "info": {"year": 2017},
    "images": [
        {"id": 9, "file_name": "b.jpg", "height": 480, "width": 640, "coco_url": "http://x"},
        {"id": 4, "file_name": "a/a.jpg", "height": 5, "width": 6},
    ],
    "annotations": [
        {"id": 1, "image_id": 9, "category_id": 18, "bbox": [1, 2.5, 3, 4], "area": 12, "iscrowd": 0,
         "segmentation": [[1, 2, 3, 4, 5, 6]]},
        {"id": 2, "image_id": 9, "category_id": 1, "bbox": [0, 0, 10, 10], "iscrowd": 1,
         "segmentation": {"counts": [1, 2], "size": [480, 640]}},
    ],
    "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}],
}  # fmt: skip


def test_cocos_boxes_become_a_key_list(source, tmp_path, capsys):
    write_files(source, {"b.jpg": "", "a/a.jpg": "", "c.jpg": "", "notes.txt": ""})
    (tmp_path / "instances.json").write_text(json.dumps(INSTANCES))
    words = ("--coco", str(tmp_path / "instances.json"))
    rows = index(source, tmp_path / "list.jsonl", *words)
    boxes = {"boxes[]": [[1, 2.5, 4, 6.5], [0, 0, 10, 10]], "classes[]": [18, 1], "crowd[]": [0, 1]}
    assert {row["key"]: row["label"] for row in rows} == {
        "a/a.jpg": {"image_id": 4, "size": [5, 6], "boxes[]": [], "classes[]": [], "crowd[]": []},
        "b.jpg": {"image_id": 9, "size": [480, 640]} | boxes,
    }
    assert "2 other objects" in capsys.readouterr().err
    catalog = list_source(str(source), str(tmp_path / "list.jsonl"))
    assert catalog.labels[1]["boxes"].tolist() == [[1, 2.5, 4, 6.5], [0, 0, 10, 10]]
    (row,) = index(source, tmp_path / "list.jsonl", *words, "--only", "a/*")
    assert row["key"] == "a/a.jpg"


def _instances(**changed):
    return json.dumps(INSTANCES | changed)


IMAGE, BOX = INSTANCES["images"][0], INSTANCES["annotations"][0]
NO_COCO = {  # spoilt files are for tests/hostile/fuzz_lists.py
    "no JSON": ("{", "JSONDecodeError"),
    "one id twice": (_instances(images=[IMAGE, IMAGE | {"file_name": "c.jpg"}]), "1 images have the same id"),
    "one name twice": (_instances(images=[IMAGE, IMAGE | {"id": 5}]), "1 images have the same id or file"),
    "captions": (_instances(annotations=[{"image_id": 9, "caption": "x"}]), "annotation 0 "),
    "not finite": (_instances(annotations=[BOX | {"bbox": [1, 2, 3, math.inf]}]), "1, 2, 3, inf"),
    "of no image": (_instances(annotations=[BOX, BOX | {"image_id": 7}]), "annotation 1 "),
}


@pytest.mark.parametrize(("content", "named"), NO_COCO.values(), ids=NO_COCO)
def test_what_is_no_coco_is_told(content, named):
    with pytest.raises(SourceError, match=f"^--coco held/x.json: .*{named}"):
        coco_in(held_shard(content.encode(), "x.json"))


def test_images_that_coco_names_and_the_source_lacks_are_told(source, tmp_path, capsys):
    write_files(source, {"b.jpg": "", "val/a/a.jpg": ""})
    file, out = tmp_path / "instances.json", tmp_path / "list.jsonl"
    assert str(file) in refused(capsys, source, out, "--coco", str(file))
    for name in ("../../etc/passwd", "/etc/passwd", "a/a.jpg"):
        file.write_text(_instances(images=[IMAGE, INSTANCES["images"][1] | {"file_name": name}]))
        said = refused(capsys, source, out, "--coco", str(file))
        assert f"lacks 1 of the images in {file}, such as {name!r}" in said
