"""Whole epochs over tar files in place: the same pixels and labels, each once, with few GETs."""

import json
import tarfile

import pytest

from superdl.sampler.embedded.embedded import release_all
from superdl.super_wire.errors import BadSampleError, SourceError
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect, reading, settled_stats, spoil


@pytest.fixture
def shards(images, tmp_path):
    """Two tar files that together hold all images, and a key list of their members."""
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
    expected, shards, tmp_path, monkeypatch
):
    monkeypatch.delenv("SUPER_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory, key_list = shards
    epochs, produced = [], []
    for _ in range(2):
        with reading(directory.as_uri(), None, batch_size=8, key_list=key_list) as (sampler, loader):
            epochs += [collect(loader) for _ in range(2)]
            produced.append(settled_stats(sampler).samples_produced)
            first = loader.dataset.samples[0]
        release_all()
        spoil(directory.glob("*.tar"))
    assert_exactly_once(epochs[0], expected)
    assert_exactly_once(epochs[1], expected)
    assert epochs[2:] == epochs[:2]
    assert produced == [len(expected), 0]
    assert first == (f"{directory}/0.tar::ant/00000.jpg", 0)


@pytest.fixture
def in_a_bucket(shards, object_store):
    """The shards moved into a bucket, and their key list."""
    directory, key_list = shards
    (object_store.directory / "shards").mkdir()
    return directory.rename(object_store.directory / "shards" / "train"), key_list


def test_members_in_a_bucket_and_a_shard_that_is_written_again(images, expected, in_a_bucket):
    bucket, key_list = in_a_bucket
    how = {"batch_size": 16, "key_list": key_list, "read_timeout": 60}
    with (
        Stack(arguments=("--slots", "1")) as stack,
        reading("s3://shards/train", stack.address, **how) as (sampler, loader),
    ):
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


def test_functions_keep_blocks_of_shards_while_their_coordinator_runs(expected, in_a_bucket, tmp_path):
    _, key_list = in_a_bucket
    state = tmp_path / "state"
    with Stack(arguments=("--slots", "2", "--state", str(state))) as stack:
        with reading("s3://shards/train", stack.address, key_list=key_list) as (sampler, loader):
            assert_exactly_once(collect(loader), expected)
            stats = settled_stats(sampler)
        assert len(list(state.glob("shards/*/*-0"))) == 2  # one block per shard
        assert 0 < stats.source_requests < len(loader)
    assert not list(state.glob("shards/*"))


def test_a_key_list_older_than_its_file_is_refused(shards, shared_stack):
    directory, key_list = shards
    (directory / "1.tar").write_bytes((directory / "1.tar").read_bytes()[:20_000])
    with (
        pytest.raises(SourceError, match=r"the member '\w+/\d+\.jpg' of '1\.tar' ends at .* 20000 bytes"),
        reading(directory.as_uri(), shared_stack.address, key_list=key_list),
    ):
        pass
