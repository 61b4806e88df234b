"""Archives and folders as people download them: hidden files, a folder around all, splits, dots, labels."""

import io
import json
import tarfile
import zipfile

import pyarrow as pa
import pytest
from pyarrow import parquet

from superdl.main import main
from tests.superdl.index.shards import index, tar_of

APPLE = b"\0\5\x16\7"


def labels_of(rows):
    return [row["label"] for row in rows]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def test_what_macos_hides_in_a_zip_and_the_folder_around_all_are_passed_over(source, tmp_path, capsys):
    with zipfile.ZipFile(source / "pets.zip", "w") as archive:
        for name in ("pets/cat/1.jpg", "__MACOSX/pets/cat/._1.jpg", "pets/dog/1.jpg", "pets/.DS_Store"):
            archive.writestr(name, b"i")
    assert labels_of(index(source, tmp_path / "list.jsonl")) == ["cat", "dog"]
    assert "classes: 2\n  cat  1\n  dog  1\n" in capsys.readouterr().err


def test_hidden_shards_and_images_of_a_folder_are_passed_over(source, tmp_path):
    tar_of(source / "a.tar", {"k1.jpg": b"i", "k1.cls": b"1", "._k1.jpg": APPLE, "._k1.cls": APPLE})
    (source / "._a.tar").write_bytes(APPLE)
    assert labels_of(index(source, tmp_path / "list.jsonl")) == [1]
    (source / "a.tar").unlink()
    for name in ("1.jpg", "._1.jpg", ".ipynb_checkpoints/1.jpg"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"i")
    (source / "1.txt").write_bytes(b"7")
    assert labels_of(index(source, tmp_path / "list.jsonl")) == [7]


def test_the_folder_around_all_is_one_of_all_shards(source, tmp_path):
    for name in ("cat", "dog"):
        tar_of(source / f"{name}.tar", {f"ds/train/{name}/{place}.jpg": b"i" for place in range(2)})
    assert labels_of(index(source, tmp_path / "list.jsonl")) == ["cat", "cat", "dog", "dog"]


def test_splits_in_an_archive_are_no_classes(source, tmp_path, capsys):
    files = [f"ds/{split}/{name}/1.jpg" for split in ("train", "val") for name in ("cat", "dog")]
    tar_of(source / "a.tar", dict.fromkeys(files, b"i"))
    assert main(["index", str(source), "-o", str(tmp_path / "list.jsonl")]) == 1
    assert "--split" in capsys.readouterr().err
    assert not (tmp_path / "list.jsonl").exists()
    rows = index(source, tmp_path / "list.jsonl", "--split", "val")
    assert [(row["member"], row["label"]) for row in rows] == [(files[2], "cat"), (files[3], "dog")]


@pytest.mark.parametrize(
    "name", ["{}-00000-of-00001.parquet", "data/{}-00000-of-00001.parquet", "{}/0.parquet"]
)
def test_splits_of_the_hub_are_not_mixed(name, source, tmp_path, capsys):
    for label, split in enumerate(("test", "train")):
        path = source / name.format(split)
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(pa.table({"image": [b"i"], "label": [label]}), path)
    assert main(["index", str(source), "-o", str(tmp_path / "list.jsonl")]) == 2
    assert "test (1 files), train (1 files)" in capsys.readouterr().err
    assert labels_of(index(source, tmp_path / "list.jsonl", "--split", "train")) == [1]
    assert labels_of(index(source, tmp_path / "list.jsonl", "--split", "all")) == [0, 1]
    assert main(["index", str(source), "-o", str(tmp_path / "x.jsonl"), "--split", "dev"]) == 2


def test_keys_with_dots_are_cut_at_the_last_where_asked(source, tmp_path, capsys):
    files = {"c/s1.0.jpg": b"i", "c/s1.0.cls": b"0", "c/s2.0.jpg": b"i", "c/s2.0.cls": b"1"}
    tar_of(source / "a.tar", files)
    assert main(["index", str(source), "-o", str(tmp_path / "list.jsonl")]) == 1
    assert "--key-at last-dot" in capsys.readouterr().err
    assert labels_of(index(source, tmp_path / "list.jsonl", "--key-at", "last-dot")) == [0, 1]


def test_a_key_that_comes_twice_is_refused(source, tmp_path, capsys):
    with tarfile.open(source / "a.tar", "w") as tar:
        for name in ("k1.jpg", "k1.cls", "k1.jpg", "k1.cls"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
    assert main(["index", str(source), "-o", str(tmp_path / "list.jsonl")]) == 1
    assert "'k1.jpg': duplicate name" in capsys.readouterr().err


def test_a_long_name_of_digits_is_read(source, tmp_path):
    tar_of(source / "a.tar", {f"{'1' * 120}{place}.jpg": b"i" for place in range(2)}, tarfile.PAX_FORMAT)
    assert len(index(source, tmp_path / "long.jsonl", "--labels", "none")) == 2


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        ((), [7, 8]),
        (("--label-field", "mood"), ["glad", "sad"]),
        (("--label-field", "txt"), ["a", "b"]),
        (("--labels", "folder"), ["y", "z"]),
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
