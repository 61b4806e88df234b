"""Labels of images in tars and zips: of folders, of files beside them, of the shard."""

from __future__ import annotations

import json
import zipfile

import pytest

from tests.superdl.index.shards import index, tar_of


def test_a_tar_of_class_folders_is_labelled_by_them(tmp_path):
    files = {
        "./cat/1.a.jpg": b"1",
        "./cat/1.b.jpg": b"2",
        "./dog/1.png": b"3",
        "./dog/notes.txt": b"no image",
    }
    tar_of(tmp_path / "a.tar", files)
    rows = index(tmp_path, tmp_path / "list.jsonl")
    assert [(row["member"], row["label"]) for row in rows] == [
        ("./cat/1.a.jpg", "cat"),
        ("./cat/1.b.jpg", "cat"),
        ("./dog/1.png", "dog"),
    ]


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        ((), [7, 8]),
        (("--label-field", "mood"), ["glad", "sad"]),
        (("--label-field", "txt"), ["a", "b"]),
        (("--labels", "folder"), ["y", "z"]),
        (("--labels", "shard"), ["train-0", "train-0"]),
        (("--labels", "none"), [0, 0]),
    ],
)
def test_labels_come_from_where_the_user_says(words, labels, tmp_path):
    files = {}
    for name, number, mood, text in (("x/y/1", 7, "glad", "a"), ("x/z/2", 8, "sad", "b")):
        fields = json.dumps({"label": number, "mood": mood}).encode()
        files |= {f"{name}.json": fields, f"{name}.txt": text.encode(), f"{name}.jpg": b"i"}
    tar_of(tmp_path / "train-0.b.tar", files)
    assert [row["label"] for row in index(tmp_path, tmp_path / "list.jsonl", *words)] == labels


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("files", "words", "labels"),
    [
        ({"0.png": "", "1.png": "", "1.cls": "\ufeffcat", "0.cls": "dog\n"}, (), ["dog", "cat"]),
        ({"x/0.png": "", "x/0.json": '{"label": 5, "mood": "glad"}'}, (), [5]),
        ({"x/0.png": "", "x/0.json": '{"label": 5, "mood": "glad"}'}, ("--label-field", "mood"), ["glad"]),
        ({"x/0.a.png": "", "x/0.cap": "dog"}, ("--label-field", "cap"), ["dog"]),
        ({"x/0.png": "", "x/0.cls": "1"}, ("--labels", "folder"), ["x"]),
    ],
)
def test_labels_stand_beside_images_in_a_zip_in_any_order(files, words, labels, method, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content or b"i")
    assert [row["label"] for row in index(tmp_path, tmp_path / "list.jsonl", *words)] == labels
