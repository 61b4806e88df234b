"""Published sets from archives in their published form, of a few images: checked, laid out, found."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from superdl.coordinator.catalog import list_source
from superdl.experiments.data import importing, prepare_data
from superdl.experiments.data.importing import import_published
from superdl.experiments.image_sets import PUBLISHED_SETS
from superdl.experiments.spec import DataSpec
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def known(file: Path):
    """The sets, of which the file's has its size and digest, and those of files of the set beside it."""
    published = next(one for one in PUBLISHED_SETS.values() if file.name in one.files)
    files = {
        name: (file.with_name(name).stat().st_size, f"md5:{digest(file.with_name(name))}")
        for name in published.files
    }
    return dict(PUBLISHED_SETS) | {published.name: replace(published, files=files)}


def digest(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def cifar_rows(count: int, seed: int) -> bytes:
    random = np.random.default_rng(seed)
    rows = random.integers(256, size=(count, 3073), dtype=np.uint8)
    rows[:, 0] = (np.arange(count) + seed) % 10
    return rows.tobytes()


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_zip(path: Path, members: dict[str, bytes | str], **modes: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = modes.get(name, 0o100644) << 16
            archive.writestr(member, content)
    return path


@pytest.fixture
def cifar(tmp_path):
    """Its archive: six files of images, and those that name the classes."""
    members = {f"cifar-10-batches-bin/{name}": cifar_rows(20, seed) for seed, name in enumerate(BATCHES)}
    members["cifar-10-batches-bin/batches.meta.txt"] = b"airplane\nautomobile\n"
    members["cifar-10-batches-bin/readme.html"] = b"<meta>"
    return write_tar(tmp_path / "cifar-10-binary.tar.gz", members)


def jpeg(colour: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), (colour, 20, 30)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def tiny(tmp_path):
    """Two classes of its archive."""
    wnids = ("n01443537", "n02124075")
    members: dict[str, bytes | str] = {
        "tiny-imagenet-200/": b"",
        "tiny-imagenet-200/wnids.txt": "\n".join(wnids),
    }
    for wnid in wnids:
        members[f"tiny-imagenet-200/train/{wnid}/{wnid}_boxes.txt"] = f"{wnid}_0.JPEG\t0\t0\t62\t62\n"
        members |= {f"tiny-imagenet-200/train/{wnid}/images/{wnid}_{i}.JPEG": jpeg(i) for i in range(3)}
    members |= {f"tiny-imagenet-200/val/images/val_{i}.JPEG": jpeg(i) for i in range(4)}
    lines = [f"val_{i}.JPEG\t{wnids[i % 2]}\t0\t32\t44\t62\n" for i in range(4)]
    members["tiny-imagenet-200/val/val_annotations.txt"] = "".join(lines)
    members["__MACOSX/._tiny-imagenet-200"] = b"a Mac was here"
    return write_zip(tmp_path / "tiny-imagenet-200.zip", members)


@pytest.fixture
def mnist(tmp_path):
    """Its four files; the path is one of them."""
    for prefix, count in (("train", 12), ("t10k", 4)):
        images, labels = np.zeros((count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8) % 2
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    return tmp_path / "t10k-labels-idx1-ubyte.gz"


def labels_of(source) -> list[int]:
    return list_source(source.url, source.key_list).labels.tolist()


def test_cifar_10_becomes_png_files_that_specs_find(cifar, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    name, place = import_published(cifar, sets=known(cifar), tell=told.append)
    assert (name, place) == ("cifar10", tmp_path / "data" / "cifar10")
    assert told == [f"taking cifar-10-binary.tar.gz into {place}"]
    prepared = prepare_data(DataSpec(kind="cifar10"))
    assert prepared.train.url == f"file://{place}/train"
    train = list_source(prepared.train.url)
    assert train.classes[::9] == ("airplane", "truck")
    assert (len(train.keys), len(labels_of(prepared.val))) == (100, 20)
    rows = np.frombuffer(cifar_rows(20, 1), np.uint8).reshape(20, 3073)
    with Image.open(place / "train" / "cat" / "data_batch_2_00002.png") as image:
        assert rows[2, 0] == 3
        assert (np.asarray(image) == rows[2, 1:].reshape(3, 32, 32).transpose(1, 2, 0)).all()
    # Once: what stands there is kept.
    written = (place / "manifest.json").stat().st_mtime_ns
    assert import_published(cifar, sets=known(cifar), tell=told.append) == ("cifar10", place)
    assert (place / "manifest.json").stat().st_mtime_ns == written
    assert len(told) == 1


def test_a_zip_is_unpacked_as_it_was_packed_and_found(tiny, tmp_path):
    _, place = import_published(tiny, tmp_path / "mine", sets=known(tiny))
    prepared = prepare_data(DataSpec(kind="tiny-imagenet", directory=str(place)))
    assert (labels_of(prepared.train), labels_of(prepared.val)) == ([0, 0, 0, 1, 1, 1], [0, 1, 0, 1])
    assert (place / "train/n01443537/images/n01443537_2.JPEG").read_bytes() == jpeg(2)
    assert sorted(entry.name for entry in place.iterdir()) == ["manifest.json", "train", "val", "wnids.txt"]


def test_hymenoptera_too(tmp_path):
    names = [
        f"hymenoptera_data/{split}/{one}/{i}.jpg"
        for split in ("train", "val")
        for one in ("ants", "bees")
        for i in "01"
    ]
    file = write_zip(tmp_path / "hymenoptera_data.zip", {name: jpeg(9) for name in names})
    _, place = import_published(file, tmp_path / "set", sets=known(file))
    prepared = prepare_data(DataSpec(kind="hymenoptera", directory=str(place)))
    assert labels_of(prepared.train) == labels_of(prepared.val) == [0, 0, 1, 1]


def test_mnist_is_named_by_one_of_its_four_files(mnist, tmp_path):
    _, place = import_published(mnist, tmp_path / "mnist", sets=known(mnist))
    prepared = prepare_data(DataSpec(kind="mnist", directory=str(place)))
    assert (labels_of(prepared.train), labels_of(prepared.val)) == ([0] * 6 + [1] * 6, [0, 0, 1, 1])
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(SourceError, match=r"train-images-idx3-ubyte\.gz cannot be read \(No such file"):
        import_published(mnist, tmp_path / "again", any_digest=True)


def test_a_file_of_another_digest_is_taken_only_if_that_is_said(tiny, tmp_path):
    with pytest.raises(
        SourceError, match=f"not as published: it has .* and md5:{digest(tiny)}, not 248,100,043 and md5:9"
    ):
        import_published(tiny, tmp_path / "set")
    assert [entry.name for entry in tmp_path.iterdir()] == [tiny.name]
    import_published(tiny, tmp_path / "set", any_digest=True)
    tiny.write_bytes(tiny.read_bytes() + b"more")
    with pytest.raises(SourceError, match="holds something else than tiny-imagenet"):
        import_published(tiny, tmp_path / "set", any_digest=True)


def test_what_no_set_has_and_pickles_are_refused(tmp_path):
    file = tmp_path / "cifar-10-python.tar.gz"
    write_tar(file, {"cifar-10-batches-py/data_batch_1": pickle.dumps({b"data": b""})})
    with pytest.raises(
        ConfigError, match=r"holds pickles, which can run code: take the binary version; .*cifar-10-binary"
    ):
        import_published(file, tmp_path / "set", any_digest=True)
    with pytest.raises(
        ConfigError, match=r"imagenet\.tar is no file of a set that is known; files that are taken, by"
    ):
        import_published(tmp_path / "imagenet.tar")


LINK = 0o120777


@pytest.mark.parametrize(
    ("members", "modes", "reason"),
    [
        ({"tiny-imagenet-200/../../evil": b"x"}, {}, "encrypted, a link, or not below it"),
        ({"/etc/evil": b"x"}, {}, "encrypted, a link, or not below it"),
        ({"tiny-imagenet-200\\..\\evil": b"x"}, {}, "encrypted, a link, or not below it"),
        (
            {"tiny-imagenet-200/train": "/etc"},
            {"tiny-imagenet-200/train": LINK},
            "encrypted, a link, or not below it",
        ),
        ({"other/train/a/1.jpg": b"x"}, {}, "has no tiny-imagenet-200/train"),
        ({"tiny-imagenet-200/train/huge": b"\0" * 300_000}, {}, "unpacks to over 100,000 bytes"),
    ],
)
def test_a_hostile_zip_is_refused_and_leaves_nothing(tmp_path, monkeypatch, members, modes, reason):
    monkeypatch.setattr(importing, "_MOST_BYTES", 100_000)
    file = write_zip(tmp_path / "tiny-imagenet-200.zip", members, **modes)
    with pytest.raises(SourceError, match=reason):
        import_published(file, tmp_path / "set", any_digest=True)
    assert [entry.name for entry in tmp_path.iterdir()] == [file.name]


def test_a_hostile_tar_is_refused_and_leaves_nothing(cifar, tmp_path, monkeypatch):
    def refused(reason):
        with pytest.raises(SourceError, match=reason):
            import_published(cifar, tmp_path / "set", any_digest=True)
        assert [entry.name for entry in tmp_path.iterdir()] == [cifar.name]

    whole = cifar.read_bytes()
    cifar.write_bytes(whole[: len(whole) // 2])
    refused("is damaged")
    cifar.write_bytes(b"no gzip at all")
    refused("is damaged")
    write_tar(cifar, {f"cifar-10-batches-bin/{name}": cifar_rows(1, 0) for name in BATCHES[:-1]})
    refused(r"no whole images in test_batch\.bin")
    write_tar(cifar, {f"cifar-10-batches-bin/{name}": b"\x0a" + bytes(3072) for name in BATCHES})
    refused("has the class 10; there are ten")
    write_tar(cifar, {f"cifar-10-batches-bin/{name}": bytes(3072) for name in BATCHES})
    refused(r"no whole images in data_batch_1\.bin")
    with tarfile.open(cifar, "w:gz") as archive:
        for name in BATCHES:
            link = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    refused(r"no whole images in data_batch_1\.bin")
    monkeypatch.setattr(importing, "_CIFAR_BYTES", 100_000)
    write_tar(cifar, {"endless": bytes(1_000_000)})
    refused("unpacks to over 100,000 bytes")


def test_a_damaged_member_is_named(tiny, tmp_path):
    content = bytearray(tiny.read_bytes())
    at = content.index(b"n01443537_0.JPEG") + 200
    content[at : at + 20] = bytes(20)
    tiny.write_bytes(content)
    with pytest.raises(SourceError, match=r"tiny-imagenet-200\.zip is damaged"):
        import_published(tiny, tmp_path / "set", any_digest=True)
    assert [entry.name for entry in tmp_path.iterdir()] == [tiny.name]
