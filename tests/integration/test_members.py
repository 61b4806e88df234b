"""Whole epochs over tar and Parquet files, where they are: the same pixels and labels, by few GETs, once."""

import json
import os
import tarfile

import pyarrow as pa
import pytest
from pyarrow import parquet
from torch.utils.data import DataLoader

from superdl import Recipe, SuperDataset, SuperSampler
from superdl.main import main
from superdl.sampler.embedded.embedded import release_all
from superdl.super_wire.errors import BadSampleError, SourceError
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import settled_stats

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.fixture
def shards(images, tmp_path):
    """Two tar files that share all images, and a key list of their members."""
    directory = tmp_path / "shards"
    directory.mkdir()
    files, rows = sorted(images.glob("*/*.jpg")), []
    for number in range(2):
        with tarfile.open(directory / f"{number}.tar", "w") as archive:
            for file in files[number::2]:
                archive.add(file, file.relative_to(images))
        with tarfile.open(directory / f"{number}.tar") as archive:
            rows += [
                {
                    "key": f"{number}.tar",
                    "member": entry.name,
                    "offset": entry.offset_data,
                    "length": entry.size,
                    "label": entry.name.partition("/")[0],
                }
                for entry in archive
            ]
    key_list = tmp_path / "members.jsonl"
    key_list.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory, key_list.as_uri()


def test_tar_files_are_read_where_they_are_and_come_back_out_of_the_store(
    images, shards, tmp_path, monkeypatch
):
    monkeypatch.delenv("SUPER_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory, key_list = shards
    expected, epochs, produced = expected_pixels(images, resize=SIDE, crop=SIDE), [], []
    for _ in range(2):
        dataset = SuperDataset(directory.as_uri(), RECIPE, key_list=key_list)
        with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1) as sampler:
            loader = DataLoader(dataset, sampler=sampler, batch_size=None)
            epochs += [collect(loader) for _ in range(2)]
            produced.append(settled_stats(sampler).samples_produced)
            first = dataset.samples[0]
        release_all()
        for shard in directory.glob("*.tar"):  # whatever reads it gets no image any more
            found = shard.stat()
            shard.write_bytes(bytes(found.st_size))
            os.utime(shard, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert_exactly_once(epochs[0], expected)
    assert_exactly_once(epochs[1], expected)
    assert (epochs[2], epochs[3]) == (epochs[0], epochs[1])
    assert produced == [len(expected), 0]
    assert first == (f"{directory}/0.tar::ant/00000.jpg", 0)


def test_members_in_a_bucket_and_a_shard_that_is_written_again(images, shards, object_store):
    directory, key_list = shards
    bucket = object_store.directory / "shards" / "train"
    bucket.parent.mkdir()
    directory.rename(bucket)
    expected = expected_pixels(images, resize=SIDE, crop=SIDE)
    with Stack(arguments=("--slots", "1")) as stack:
        dataset = SuperDataset("s3://shards/train", RECIPE, key_list=key_list, read_timeout=60)
        with SuperSampler(dataset, batch_size=16, shuffle=True, coordinator=stack.address) as sampler:
            loader = DataLoader(dataset, sampler=sampler, batch_size=None)
            assert_exactly_once(collect(loader), expected)
            stats = settled_stats(sampler)
            assert stats.samples_produced == len(expected)
            assert 0 < stats.source_requests <= len(expected)
            assert stats.source_bytes >= sum(file.stat().st_size for file in images.glob("*/*.jpg"))
            (bucket / "1.tar").write_bytes((bucket / "1.tar").read_bytes()[:-512])
            with stack.valkey.client() as client:
                client.unlink(*client.keys("super:r1:*"))
            with pytest.raises(BadSampleError, match=r"1\.tar::\w+/\d+\.jpg"):
                collect(loader)


def test_functions_keep_blocks_of_shards_while_their_coordinator_runs(images, shards, object_store, tmp_path):
    directory, key_list = shards
    bucket, state = object_store.directory / "shards" / "train", tmp_path / "state"
    bucket.parent.mkdir()
    directory.rename(bucket)
    with Stack(arguments=("--slots", "2", "--state", str(state))) as stack:
        dataset = SuperDataset("s3://shards/train", RECIPE, key_list=key_list, read_timeout=30)
        with SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=stack.address) as sampler:
            loader = DataLoader(dataset, sampler=sampler, batch_size=None)
            assert_exactly_once(collect(loader), expected_pixels(images, resize=SIDE, crop=SIDE))
            stats = settled_stats(sampler)
        assert len(list(state.glob("shards/*/*-0"))) == 2  # a block for each
        assert 0 < stats.source_requests < len(loader)
    assert not list(state.glob("shards/*"))


def test_a_key_list_older_than_its_file_is_refused(shards, shared_stack):
    directory, key_list = shards
    (directory / "1.tar").write_bytes((directory / "1.tar").read_bytes()[:20_000])
    with pytest.raises(SourceError, match=r"the member '\w+/\d+\.jpg' of '1\.tar' ends at .* 20000 bytes"):
        SuperSampler(
            SuperDataset(directory.as_uri(), RECIPE, key_list=key_list),
            batch_size=8,
            shuffle=True,
            coordinator=shared_stack.address,
        )


def test_parquet_files_are_read_by_rows_after_they_were_indexed(images, tmp_path, monkeypatch):
    monkeypatch.delenv("SUPER_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files, source, epochs = sorted(images.glob("*/*.jpg")), tmp_path / "tables", []
    source.mkdir()
    for number in range(2):
        some = files[number::2]
        rows = [{"bytes": file.read_bytes(), "path": str(file.relative_to(images))} for file in some]
        table = pa.table({"image": rows, "label": [file.parent.name for file in some]})
        parquet.write_table(table, source / f"{number}.parquet", row_group_size=20)
    assert main(["index", str(source), "-o", str(tmp_path / "rows.jsonl")]) == 0
    dataset = SuperDataset(source.as_uri(), RECIPE, key_list=str(tmp_path / "rows.jsonl"))
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1) as sampler:
        epochs += [collect(DataLoader(dataset, sampler=sampler, batch_size=None)) for _ in range(2)]
        stats = settled_stats(sampler)
    release_all()
    assert_exactly_once(epochs[0], expected_pixels(images, resize=SIDE, crop=SIDE))
    assert len(epochs[1]) == len(epochs[0])
    assert stats.samples_produced == len(files)
