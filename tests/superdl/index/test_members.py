"""Members of every format: bytes, names and labels, out of shards that were written by hand or by libraries.

Whole shards, and shards that were cut off at every byte.
"""

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
from superdl.index.archives import tar_members, zip_members
from superdl.index.building import readers_of
from superdl.index.choices import Choices
from superdl.index.formats import parquet_members, tfrecord_members
from superdl.index.key_list import rows_of
from superdl.index.shard import ShardError, Shards
from tests.superdl.index.shards import (
    content_of,
    index,
    litdata_arrow_of,
    litdata_of,
    mds_of,
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


def members_of(reader, directory, key):
    shards = Shards(parse_source(str(directory)), threading.Event())
    shard = shards.open(key)
    return rows_of(shard, reader(shard, Choices()), Choices())[0]


def members_or_error(reader, directory, key):
    try:
        return members_of(reader, directory, key)
    except ShardError as error:
        return error if f"{directory}/{key}: " in str(error) else pytest.fail(f"{error} names no shard")


@pytest.mark.parametrize(
    ("write", "reader", "prefixes"),
    [
        pytest.param(write_tar, tar_members, 0, marks=pytest.mark.slow),
        (write_zip, zip_members, 4),  # of its comment alone
        (write_tfrecord, tfrecord_members, 3),  # it has no end mark: whole records are a whole file
        (write_parquet, parquet_members, 0),
        (write_mds, None, 0),
        (write_litdata, None, 0),
    ],
)
def test_a_shard_that_was_cut_off_is_told_at_every_byte(write, reader, prefixes, tmp_path):
    contents = images([3, 200, 31])
    write(tmp_path, contents)
    key = next(path.name for path in tmp_path.iterdir() if path.name != "index.json")
    if reader is None:
        shards = Shards(parse_source(str(tmp_path)), threading.Event())
        reader = readers_of(shards, ["index.json", key], Choices())[key][1]
    file = tmp_path / key
    whole = file.read_bytes()
    every = members_of(reader, tmp_path, key)
    complete = 0
    # Of a tar, what follows the end mark's first block may go.
    end = len(whole.rstrip(b"\0")) + 1 if reader is tar_members else len(whole)
    for size in range(end):
        file.write_bytes(whole[:size])
        rows = members_or_error(reader, tmp_path, key)
        if not isinstance(rows, ShardError):
            complete += 1
            assert [row | {"version": ""} for row in rows] == [
                row | {"version": ""} for row in every[: len(rows)]
            ]
    assert complete == prefixes


@pytest.mark.parametrize("write", WRITERS)
def test_spoilt_bytes_never_lead_out_of_a_shard(write, tmp_path):
    write(tmp_path, images([3, 200, 31]))
    rng = random.Random(1)
    originals = {path: path.read_bytes() for path in tmp_path.iterdir()}
    path = next(path for path in originals if path.name != "index.json")
    readers = {write_tar: tar_members, write_zip: zip_members, write_tfrecord: tfrecord_members}
    reader = readers.get(write) or (parquet_members if write is write_parquet else None)
    if reader is None:
        shards = Shards(parse_source(str(tmp_path)), threading.Event())
        reader = readers_of(shards, ["index.json", path.name], Choices())[path.name][1]
    for _ in range(300):
        content = bytearray(originals[path])
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.choice((0, 1, 0x7F, 0x80, 255, rng.randrange(256)))
        path.write_bytes(content)
        rows = members_or_error(reader, tmp_path, path.name)
        if not isinstance(rows, ShardError) and write is not write_parquet:
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


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ({"1.jpg": b"i"}, (), "'1.jpg': no label"),
        ({"1.jpg": b"i", "1.png": b"j", "1.cls": b"1"}, (), "several images (1.jpg, 1.png)"),
        ({"1.jpg": b"i", "1.cls": b"1", "2.jpg": b"i", "2.cls": b"x"}, (), "all numbers or all strings"),
        ({"1.jpg": b"i", "1.cls": b"1"}, ("--label-field", "mood"), "'1.jpg': no label"),
        ({"1.txt": b"i"}, (), "none contains an image"),
        (
            {"x/1.jpg": b"i", "x/2.jpg": b"j", "x/1.cls": b"a", "x/2.cls": b"b"},
            (),
            "not adjacent to its label",
        ),
        ({"x/1.jpg": b"i", "x/1.cls": b"a", "x/2.jpg": b"j"}, (), "'x/2.jpg': no label file"),
        ({"a/\udcff.jpg": b"i"}, (), "name is not UTF-8"),
    ],
)
def test_samples_without_a_clear_image_or_label_are_named(files, words, message, tmp_path, capsys):
    tar_of(tmp_path / "a.tar", files)
    with pytest.raises(AssertionError):
        index(tmp_path, tmp_path / "list.jsonl", *words)
    told = capsys.readouterr().err
    assert message in told
    assert "a.tar" in told or "1 shard" in told
    assert not (tmp_path / "list.jsonl").exists()


def _tar_with(kind):
    def write(directory):
        with tarfile.open(directory / "a.tar", "w") as tar:
            info = tarfile.TarInfo("c/1.jpg")
            info.type, info.linkname = kind, "c/0.jpg"
            tar.addfile(info)

    return write


def _sparse(directory):
    content = bytearray(tar_of(directory / "a.tar", {"c/1.jpg": b"1"}).read_bytes())
    content[156:157] = b"S"  # GNU's type of sparse files
    content[257:265] = b"ustar  \0"
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    (directory / "a.tar").write_bytes(content)


def _longer_than_declared(directory):
    with zipfile.ZipFile(directory / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.jpg", b"i")
        archive.writestr("1.cls", b"7" * 100_000)
    long, short = ((100_000).to_bytes(4, "little"), (5).to_bytes(4, "little"))
    (directory / "a.zip").write_bytes((directory / "a.zip").read_bytes().replace(long, short))


def _many_digits(count):
    def write(directory):
        info, content = tarfile.TarInfo("x"), b"9" * count + b" path=x\n"
        info.type, info.size = tarfile.XHDTYPE, len(content)
        padded = content + bytes(-len(content) % 512 + 1024)
        (directory / "a.tar").write_bytes(info.tobuf(tarfile.USTAR_FORMAT) + padded)

    return write


def _of_other_features(directory):
    tfrecord_of(directory / "a.tfrecord", [{"jpg": b"1", "label": 1}])


def _without_labels(directory):
    parquet.write_table(pa.table({"image": [b"i"], "fine": [3]}), directory / "a.parquet")


def _appended(directory):
    first = tar_of(directory / "a.tar", {"c/1.jpg": b"1"})
    second = tar_of(directory / "b.tar", {"c/2.jpg": b"2"})
    first.write_bytes(first.read_bytes() + second.read_bytes())
    second.unlink()


def _twice(directory):
    tar_of(directory / "a.tar", {"c/1.jpg": b"1"})
    with tarfile.open(directory / "a.tar", "a") as tar:
        tar.addfile(tarfile.TarInfo("c/1.jpg"))


def _encrypted(directory):
    with zipfile.ZipFile(directory / "a.zip", "w") as archive:
        archive.writestr("c/1.jpg", b"1")
    content = bytearray((directory / "a.zip").read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1
    (directory / "a.zip").write_bytes(content)


def _bzipped(directory):
    with zipfile.ZipFile(directory / "a.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("c/1.jpg", b"1")


def _overlapping(directory):
    mds_of(directory, [(b"11", 1), (b"22", 2)])
    path = directory / "shard.00000.mds"
    content = bytearray(path.read_bytes())
    content[8:12] = content[4:8]  # the second begins where the first does
    path.write_bytes(content)


def _stale(directory):
    mds_of(directory, [(b"11", 1)])
    (directory / "shard.00000.mds").write_bytes((directory / "shard.00000.mds").read_bytes() + b"1")


def _gone(directory):
    mds_of(directory, [(b"11", 1)]).unlink()


def _compressed_mds(directory):
    mds_of(directory, [(b"11", 1)])
    text = (directory / "index.json").read_text()
    (directory / "index.json").write_text(text.replace('"compression": null', '"compression": "zstd"'))


def _written(name, content):
    return lambda directory: (directory / name).write_bytes(content)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (_tar_with(tarfile.SYMTYPE), "'c/1.jpg': links cannot be read"),
        (_sparse, "'c/1.jpg': sparse files cannot be read"),
        *((_many_digits(count), "a.tar: not a tar, or truncated: ") for count in (30_000, 900_000)),
        (_longer_than_declared, "'1.cls': size differs from the 5 bytes"),
        (_of_other_features, "its features are jpg, label"),
        (_without_labels, "its columns are image, fine"),
        (_appended, "tars were appended to each other"),
        (_twice, "'c/1.jpg': duplicate name"),
        (_encrypted, "'c/1.jpg': encrypted"),
        (_bzipped, "'c/1.jpg': neither stored nor deflated"),
        (_overlapping, "shard.00000.mds"),
        (_stale, "truncated, or newer than its index"),
        (_gone, "index.json lists 1 shards that do not exist, such as shard.00000.mds"),
        (_compressed_mds, "its shards are compressed"),
        (
            litdata_arrow_of,
            "its samples are rows of Arrow, as LitData writes bytes and numbers: write PIL images",
        ),
        (_written("a.tar.gz", b""), "unpack it first"),
        (_written("a.tar", b"\x1f\x8b" + bytes(600)), "compressed with gzip"),
        (
            _written("a.tfrecord", b"no record " * 9),
            "member '0': not a TFRecord, or broken: a length of ",
        ),
        (_written("a.parquet", b"PAR1"), "a.parquet: not a valid Parquet file"),
        (_written("index.json", b'{"shards": [1]}'), "index.json: not an index"),
    ],
)
def test_shards_that_cannot_be_read_in_place_say_why(write, message, tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    write(source)
    with pytest.raises(AssertionError):
        index(source, tmp_path / "list.jsonl")
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
