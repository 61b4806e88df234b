"""Members of every format: their bytes, names and labels, in whole, truncated and corrupted shards."""

import itertools
import json
import random
import tarfile
import threading
import zipfile

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import parquet

from superdl.coordinator.catalog import parse_source
from superdl.index.building import readers_of
from superdl.index.choices import Choices
from superdl.index.key_list import rows_of
from superdl.index.shard import ShardError, Shards
from tests.superdl.index.shards import (
    content_of,
    index,
    litdata_arrow_of,
    litdata_of,
    mds_of,
    refused,
    tar_of,
    tfrecord_of,
)

# Some are as large as what is fetched at a time, so that headers lie near and far.
SIZES = st.lists(
    st.one_of(st.integers(0, 700), st.sampled_from([4096, 70_000, 300_000])), min_size=1, max_size=9
)


def images(sizes):
    rng = random.Random(len(sizes))
    return [rng.randbytes(size) for size in sizes]


def write_tar(directory, contents):
    files = {}
    for place, content in enumerate(contents):
        name = f"{'long/' * (place * 20)}{place:03d}"  # beyond 100 characters from the second on
        files |= {f"{name}.cls": str(place).encode(), f"{name}.jpg": content, f"{name}.txt": b"a caption"}
    tar_of(directory / "a.tar", files, (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)[len(contents) % 2])
    return list(range(len(contents)))


def write_zip(directory, contents):
    methods = itertools.cycle((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(directory / "a.zip", "w") as archive:
        for place, (content, method) in enumerate(zip(contents, methods, strict=False)):
            with archive.open(zipfile.ZipInfo(f"c{place}/ä.png"), "w", force_zip64=place % 3 == 0) as file:
                file.write(b"")
            archive.writestr(f"c{place}/é{place}.jpg", content, method)
            archive.comment = b"PK" * place
    return [f"c{place}" for place in range(len(contents))]


def write_tfrecord(directory, contents):
    rows = [
        {"image/width": 3, "image/encoded": content, "image/class/label": place - 1, "image/class/text": b"x"}
        for place, content in enumerate(contents)
    ]
    tfrecord_of(directory / "train-00000-of-00001", rows)
    return [place - 1 for place in range(len(contents))]


def write_parquet(directory, contents):
    rows = [{"bytes": content, "path": f"{place}.jpg"} for place, content in enumerate(contents)]
    feature = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["dog", "cat"]}}
    table = pa.table({"label": [place % 2 for place in range(len(rows))], "image": rows})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": feature}})})
    parquet.write_table(table, directory / "a.parquet", row_group_size=2)
    return [("dog", "cat")[place % 2] for place in range(len(rows))]


def write_mds(directory, contents):
    mds_of(directory, [(content, -place) for place, content in enumerate(contents)])
    return [-place for place in range(len(contents))]


def write_litdata(directory, contents):
    litdata_of(directory, [(content, place) for place, content in enumerate(contents)])
    return list(range(len(contents)))


WRITERS = [write_tar, write_zip, write_tfrecord, write_parquet, write_mds, write_litdata]


@pytest.mark.parametrize("write", WRITERS)
@given(sizes=SIZES)
@example(sizes=[0, 0])  # one of each way of packing
def test_bytes_and_labels_are_what_the_writer_was_given(write, sizes, tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    contents = images([*sizes, 1])
    labels = write(directory, contents)
    rows = index(directory, tmp_path_factory.mktemp("out") / "list.jsonl")
    if write is not write_parquet:  # what is empty is no sample
        labels = [label for label, content in zip(labels, contents, strict=True) if content]
    assert [row["label"] for row in rows] == labels
    found = [content_of(row, directory) for row in rows]
    assert found == [content for content in contents if content or write is write_parquet]
    places = [(row["offset"], row["length"]) for row in rows]
    assert places == sorted(places)
    status = (directory / rows[0]["key"]).stat()
    assert {row["version"] for row in rows} == {f"{status.st_size}-{status.st_mtime_ns}"}


class Written:
    """A source of one shard whose bytes a test changes; its index, if it has one, stays as it is."""

    def __init__(self, directory, write):
        write(directory, images([3, 200, 31]))
        names = [path.name for path in directory.iterdir()]
        self.key = next(name for name in names if name != "index.json")
        self.file = directory / self.key
        self.content = self.file.read_bytes()
        self._shards = Shards(parse_source(str(directory)), threading.Event())
        self._reader = readers_of(self._shards, names, Choices())[self.key][1]

    def rows(self, content):
        """The rows of the shard with this content; ``None`` if it is refused by an error that names it."""
        self.file.write_bytes(content)
        shard = self._shards.open(self.key)
        try:
            return rows_of(shard, self._reader(shard, Choices()), Choices())[0]
        except ShardError as error:
            assert f"{self.file}: " in str(error)  # noqa: PT017
            return None


@pytest.mark.parametrize(
    ("write", "prefixes"),
    [
        pytest.param(write_tar, 0, marks=pytest.mark.slow),
        (write_zip, 4),  # of its comment alone
        (write_tfrecord, 3),  # it has no end mark: whole records are a whole file
        (write_parquet, 0),
        (write_mds, 0),
        (write_litdata, 0),
    ],
)
def test_a_shard_that_was_cut_off_is_told_at_every_byte(write, prefixes, tmp_path):
    shard = Written(tmp_path, write)
    every = [row | {"version": ""} for row in shard.rows(shard.content)]
    # Of a tar, what follows the end mark's first block may go.
    end = len(shard.content.rstrip(b"\0")) + 1 if write is write_tar else len(shard.content)
    complete = [rows for size in range(end) if (rows := shard.rows(shard.content[:size])) is not None]
    assert len(complete) == prefixes
    assert all([row | {"version": ""} for row in rows] == every[: len(rows)] for rows in complete)


@pytest.mark.parametrize("write", WRITERS)
def test_spoilt_bytes_never_lead_out_of_a_shard(write, tmp_path):
    shard, rng = Written(tmp_path, write), random.Random(1)
    for _ in range(300):
        content = bytearray(shard.content)
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.choice((0, 1, 0x7F, 0x80, 255, rng.randrange(256)))
        rows = shard.rows(content)
        if rows is not None and write is not write_parquet:
            spans = sorted((row["offset"], row["offset"] + row["length"]) for row in rows)
            assert all(end <= len(content) for _, end in spans)
            assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))


# ----------------------------------------------------------------------------------------- labels and choices


def test_fields_are_chosen_by_name(tmp_path):
    tar_of(tmp_path / "a.tar", {"1.left.jpg": b"l", "1.right.jpg": b"right", "1.cls": b"0"})
    (row,) = index(tmp_path, tmp_path / "list.jsonl", "--image-field", "right.jpg")
    assert (row["member"], content_of(row, tmp_path)) == ("1.right.jpg", b"right")
    (tmp_path / "a.tar").unlink()
    tfrecord_of(tmp_path / "a.tfrecord", [{"png": b"pixels", "image": b"others", "score": 0.5}])
    (row,) = index(tmp_path, tmp_path / "list.jsonl", "--image-field", "png", "--label-field", "score")
    assert (row["label"], content_of(row, tmp_path)) == (0.5, b"pixels")
    (other,) = index(tmp_path, tmp_path / "list.jsonl", "--image-field", "image", "--label-field", "score")
    assert content_of(other, tmp_path) == b"others"
    assert other["member"] != row["member"]  # else both would have one id


def test_two_columns_of_a_parquet_file_have_samples_of_their_own(tmp_path):
    parquet.write_table(
        pa.table({"left": [b"l", b"m"], "right": [b"r", b"s"], "label": [0, 1]}), tmp_path / "a.parquet"
    )
    names = set()
    for column in ("left", "right"):
        names |= {row["member"] for row in index(tmp_path, tmp_path / "list.jsonl", "--image-field", column)}
    assert len(names) == 4


def test_numbers_of_class_labels_are_kept_where_asked(tmp_path):
    write_parquet(tmp_path, [b"a", b"b", b"c"])
    rows = index(tmp_path, tmp_path / "list.jsonl", "--labels", "numbers")
    assert [(row["offset"], row["length"], row["label"]) for row in rows] == [(0, 0, 0), (0, 1, 1), (1, 0, 0)]


# ------------------------------------------------------------------------------------------------- refusals


def _tar(files):
    return lambda directory: tar_of(directory / "a.tar", files)


def _mds(directory):
    return mds_of(directory, [(b"11", 1), (b"22", 2)])


def _zip(files, method=zipfile.ZIP_STORED):
    def write(directory):
        with zipfile.ZipFile(directory / "a.zip", "w", method) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return directory / "a.zip"

    return write


def _written(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def _changed(write, change):
    """What ``write`` writes, its bytes changed."""

    def write_changed(directory):
        path = write(directory)
        path.write_bytes(change(path.read_bytes()))

    return write_changed


def _header(content, **fields):
    """A tar's content whose first member has other fields; the checksum agrees."""
    info = tarfile.TarInfo.frombuf(content[:512], "utf-8", "strict")
    for name, value in fields.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content[512:]


def _many_digits(count):
    info, content = tarfile.TarInfo("x"), b"9" * count + b" path=x\n"
    info.type, info.size = tarfile.XHDTYPE, len(content)
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512 + 1024)


def _encrypted(content):
    flags = content.index(b"PK\1\2") + 8
    return content[:flags] + bytes([content[flags] | 1]) + content[flags + 1 :]


def _of_five_bytes(content):
    return content.replace((100_000).to_bytes(4, "little"), (5).to_bytes(4, "little"))


def _twice(directory):
    tar_of(directory / "a.tar", {"c/1.jpg": b"1"})
    with tarfile.open(directory / "a.tar", "a") as tar:
        tar.addfile(tarfile.TarInfo("c/1.jpg"))


def _without_labels(directory):
    parquet.write_table(pa.table({"image": [b"i"], "fine": [3]}), directory / "a.parquet")


def _compressed_mds(directory):
    _mds(directory)
    text = (directory / "index.json").read_text()
    (directory / "index.json").write_text(text.replace('"compression": null', '"compression": "zstd"'))


ONE = _tar({"c/1.jpg": b"1"})
IMAGE, LABEL, OTHER = {"1.jpg": b"i"}, {"1.cls": b"1"}, {"2.jpg": b"i"}


@pytest.mark.parametrize(
    ("write", "words", "named"),
    [
        # Samples without a clear image or label.
        (_tar(IMAGE), (), "a.tar: member '1.jpg'"),
        (_tar(IMAGE | {"1.png": b"j"} | LABEL), (), "1.jpg, 1.png"),
        (_tar(IMAGE | LABEL | OTHER | {"2.cls": b"x"}), (), "a.tar: member '2.jpg'"),
        (_tar(IMAGE | LABEL), ("--label-field", "mood"), "a.tar: member '1.jpg'"),
        (_tar({"1.txt": b"i"}), (), "--image-field"),
        (_tar(IMAGE | {"1.png": b"m"}), ("--fields", "image=jpg,mask=gif"), "all its fields"),
        (_tar({"x/1.jpg": b"i", "x/2.jpg": b"j", "x/1.cls": b"a", "x/2.cls": b"b"}), (), "x/1"),
        (_tar({"x/1.jpg": b"i", "x/1.cls": b"a", "x/2.jpg": b"j"}), (), "a.tar: member 'x/2.jpg'"),
        (_tar({"a/\udcff.jpg": b"i"}), (), "UTF-8"),
        # Shards that cannot be read in place.
        (_changed(_tar({"c/1.jpg": b""}), lambda it: _header(it, type=tarfile.SYMTYPE)), (), "link"),
        (_changed(ONE, lambda it: _header(it, type=tarfile.GNUTYPE_SPARSE)), (), "sparse"),
        (_changed(ONE, lambda it: it + _header(it, name="c/2.jpg")), (), "appended"),
        (_twice, (), "'c/1.jpg'"),
        (_written("a.tar", _many_digits(30_000)), (), "a.tar: "),
        (_written("a.tar", _many_digits(900_000)), (), "a.tar: "),
        (_written("a.tar", b"\x1f\x8b" + bytes(600)), (), "gzip"),
        (_written("a.tar.gz", b""), (), "a.tar.gz"),
        (_changed(_zip({"c/1.jpg": b"1"}), _encrypted), (), "encrypted"),
        (_zip({"c/1.jpg": b"1"}, zipfile.ZIP_BZIP2), (), "'c/1.jpg'"),
        (
            _changed(_zip({"1.jpg": b"i", "1.cls": b"7" * 100_000}, zipfile.ZIP_DEFLATED), _of_five_bytes),
            (),
            "'1.cls': size differs from the 5 bytes",
        ),
        (_changed(_mds, lambda it: it[:8] + it[4:8] + it[12:]), (), "shard.00000.mds"),  # one begins twice
        (_changed(_mds, lambda it: it + b"1"), (), "shard.00000.mds"),
        (lambda directory: _mds(directory).unlink(), (), "shard.00000.mds"),
        (_compressed_mds, (), "compressed"),
        (litdata_arrow_of, (), "Arrow"),
        (lambda it: tfrecord_of(it / "a.tfrecord", [{"jpg": b"1", "label": 1}]), (), "jpg, label"),
        (_without_labels, (), "image, fine"),
        (_written("a.tfrecord", b"no record " * 9), (), "a.tfrecord: member '0'"),
        (_written("a.parquet", b"PAR1"), (), "a.parquet: "),
        (_written("index.json", b'{"shards": [1]}'), (), "index.json: "),
    ],
)
def test_shards_that_cannot_be_read_in_place_say_why(write, words, named, tmp_path, capsys):
    (tmp_path / "source").mkdir()
    write(tmp_path / "source")
    assert named in refused(capsys, tmp_path / "source", tmp_path / "list.jsonl", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
