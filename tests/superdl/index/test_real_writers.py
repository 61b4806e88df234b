"""Shards written by the packages whose formats are parsed here; ``make test-loaders`` installs them all."""

import importlib.util
import io
import json

import pytest
from PIL import Image

from superdl.experiments.models import declare_operators
from superdl.main import main
from tests.superdl.index.shards import content_of, index

COUNT = 23


def pictures():
    found = []
    for place in range(COUNT):
        buffer = io.BytesIO()
        Image.new("RGB", (20 + 9 * place, 30), (place, 5, 200)).save(buffer, "JPEG")
        found.append(buffer.getvalue())
    return found


def check(directory, out, contents, *, same=True):
    """The rows of the pictures, by labels and sizes and, unless their writer packs them, by their bytes."""
    rows = index(directory, out)
    assert [row["label"] for row in rows] == list(range(COUNT))
    for place, row in enumerate(rows):
        content = content_of(row, directory)
        assert content == contents[place] or not same
        with Image.open(io.BytesIO(content)) as image:
            assert image.size == (20 + 9 * place, 30)
    return rows


def test_webdataset(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    contents = pictures()
    (tmp_path / "shards").mkdir()
    with webdataset.ShardWriter(str(tmp_path / "shards" / "a-%03d.tar"), maxcount=5, verbose=0) as sink:
        for place, content in enumerate(contents):
            sink.write({"__key__": f"{place:05d}", "jpg": content, "cls": place, "json": {"label": "other"}})
    rows = check(tmp_path / "shards", tmp_path / "list.jsonl", contents)
    assert [row["member"] for row in rows] == [f"{place:05d}.jpg" for place in range(COUNT)]


@pytest.mark.parametrize("kind", ["bytes", "jpeg"])
def test_mds(kind, tmp_path):
    if importlib.util.find_spec("streaming"):
        declare_operators()  # it imports torchvision, which may lack its own
    streaming = pytest.importorskip("streaming")
    contents = pictures()
    columns = {"id": "str", "image": kind, "label": "int", "score": "float32"}
    out = str(tmp_path / "shards")
    with streaming.MDSWriter(out=out, columns=columns, size_limit=6000) as sink:
        for place, content in enumerate(contents):
            image = content if kind == "bytes" else Image.open(io.BytesIO(content))
            sink.write({"id": f"{place}", "image": image, "label": place, "score": 0.5})
    rows = check(tmp_path / "shards", tmp_path / "list.jsonl", contents, same=kind == "bytes")
    assert len({row["key"] for row in rows}) > 2
    texts = index(tmp_path / "shards", tmp_path / "list.jsonl", "--label-field", "id")
    assert [row["label"] for row in texts] == [str(place) for place in range(COUNT)]
    scores = index(tmp_path / "shards", tmp_path / "list.jsonl", "--label-field", "score")
    assert {row["label"] for row in scores} == {0.5}


@pytest.mark.parametrize("kind", ["bytes", "jpeg"])
def test_litdata(kind, tmp_path, capsys):
    pytest.importorskip("litdata")
    from litdata.streaming.writer import BinaryWriter

    contents = pictures()
    directory = tmp_path / "chunks"
    directory.mkdir()
    writer = BinaryWriter(str(directory), chunk_bytes=6000)
    writer._distributed_env = type(writer._distributed_env)(1, 0, 1)  # else it waits for other ranks
    for place, content in enumerate(contents):
        image = content if kind == "bytes" else Image.open(io.BytesIO(content))
        writer[place] = {"image": image, "label": place}
    writer.done()
    writer.merge()
    config = json.loads((directory / "index.json").read_text())["config"]
    assert config["data_format"] == [kind, "int"]
    if b"ARROW1" in (directory / "chunk-0-0.bin").read_bytes():  # since 0.2.76
        assert main(["index", str(directory), "-o", str(tmp_path / "list.jsonl")]) == 1
        assert "its samples are rows of Arrow" in capsys.readouterr().err
        return
    check(directory, tmp_path / "list.jsonl", contents, same=kind == "bytes")
