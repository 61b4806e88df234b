"""Archives and folders as downloaded: hidden files, a top-level folder, splits, dots in names, labels."""

import tarfile
import zipfile

import pyarrow as pa
import pytest
from pyarrow import parquet

from superdl.main import main
from tests.superdl.index.shards import index, refused, tar_of, write_files

APPLE = b"\0\5\x16\7"
DOTS = {"c/s1.0.jpg": b"i", "c/s1.0.cls": b"0", "c/s2.0.jpg": b"i", "c/s2.0.cls": b"1"}
SPLITS = dict.fromkeys(
    [f"ds/{split}/{of}/1.jpg" for split in ("train", "val") for of in ("cat", "dog")], b"i"
)
FIELDS = {
    f"x/{folder}/{number}.{extension}": content
    for folder, number, *contents in (
        ("y", 1, b'{"label": 7, "mood": "glad"}', b"a", b"i"),
        ("z", 2, b'{"label": 8, "mood": "sad"}', b"b", b"i"),
    )
    for extension, content in zip(("json", "txt", "jpg"), contents, strict=True)
}


def labels_of(rows):
    return [row["label"] for row in rows]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def test_hidden_files_and_the_folder_around_all_shards_are_passed_over(source, tmp_path):
    with zipfile.ZipFile(source / "pets.zip", "w") as archive:
        for name in ("pets/cat/1.jpg", "__MACOSX/pets/cat/._1.jpg", "pets/dog/1.jpg", "pets/.DS_Store"):
            archive.writestr(name, b"i")
    assert labels_of(index(source, tmp_path / "list.jsonl")) == ["cat", "dog"]
    (source / "pets.zip").unlink()
    for name in ("cat", "dog"):
        tar_of(source / f"{name}.tar", {f"ds/train/{name}/{place}.jpg": b"i" for place in range(2)})
    assert labels_of(index(source, tmp_path / "list.jsonl")) == ["cat", "cat", "dog", "dog"]


def test_hidden_shards_and_images_of_a_folder_are_passed_over(source, tmp_path):
    tar_of(source / "a.tar", {"k1.jpg": b"i", "k1.cls": b"1", "._k1.jpg": APPLE, "._k1.cls": APPLE})
    (source / "._a.tar").write_bytes(APPLE)
    assert labels_of(index(source, tmp_path / "list.jsonl")) == [1]
    (source / "a.tar").unlink()
    write_files(source, {"1.jpg": b"i", "._1.jpg": b"i", ".ipynb_checkpoints/1.jpg": b"i", "1.txt": "7"})
    assert labels_of(index(source, tmp_path / "list.jsonl")) == [7]


@pytest.mark.parametrize(
    ("files", "words", "labels"),
    [
        (SPLITS, ("--split", "val"), ["cat", "dog"]),
        (DOTS, ("--key-at", "last-dot"), [0, 1]),
        ({f"{'1' * 120}{place}.jpg": b"i" for place in range(2)}, ("--labels", "none"), [0, 0]),
        (FIELDS, (), [7, 8]),
        (FIELDS, ("--label-field", "mood"), ["glad", "sad"]),
        (FIELDS, ("--label-field", "txt"), ["a", "b"]),
        (FIELDS, ("--labels", "folder"), ["y", "z"]),
        (FIELDS, ("--labels", "none"), [0, 0]),
    ],
)
def test_labels_of_a_tar_come_from_where_the_user_says(files, words, labels, source, tmp_path):
    tar_of(source / "train-0.b.tar", files, tarfile.PAX_FORMAT)
    rows = index(source, tmp_path / "list.jsonl", *words)
    assert labels_of(rows) == labels
    images = [name for name in files if name.endswith(".jpg")]
    assert [row["member"] for row in rows] == images[-len(labels) :]


@pytest.mark.parametrize(("files", "option"), [(SPLITS, "--split"), (DOTS, "--key-at last-dot")])
def test_what_must_be_chosen_is_asked_for(files, option, source, tmp_path, capsys):
    tar_of(source / "a.tar", files)
    assert option in refused(capsys, source, tmp_path / "list.jsonl")


@pytest.mark.parametrize(
    "name", ["{}-00000-of-00001.parquet", "data/{}-00000-of-00001.parquet", "{}/0.parquet"]
)
def test_splits_of_the_hub_are_not_mixed(name, source, tmp_path, capsys):
    for label, split in enumerate(("test", "train")):
        path = source / name.format(split)
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(pa.table({"image": [b"i"], "label": [label]}), path)
    assert "test (1 files), train (1 files)" in refused(capsys, source, tmp_path / "list.jsonl")
    assert labels_of(index(source, tmp_path / "list.jsonl", "--split", "train")) == [1]
    assert labels_of(index(source, tmp_path / "list.jsonl", "--split", "all")) == [0, 1]
    assert main(["index", str(source), "-o", str(tmp_path / "x.jsonl"), "--split", "dev"]) == 2


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("files", "words", "labels"),
    [
        ({"0.png": "", "1.png": "", "1.cls": "\ufeffcat", "0.cls": "dog\n"}, (), ["dog", "cat"]),
        ({"x/0.png": "", "x/0.json": '{"label": 5}'}, (), [5]),
        ({"x/0.a.png": "", "x/0.cap": "dog"}, ("--label-field", "cap"), ["dog"]),
    ],
)
def test_labels_stand_beside_images_in_a_zip_in_any_order(files, words, labels, method, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content or b"i")
    assert labels_of(index(tmp_path, tmp_path / "list.jsonl", *words)) == labels
