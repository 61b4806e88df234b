"""``SuperDataset`` in a single process: items, arguments, and errors on misuse."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_dataset.listed_source import normalise_url
from superdl.super_dataset.reading.bad_samples import BadSamples
from superdl.super_wire.errors import (
    BadSampleError,
    CacheError,
    CacheUnreachableError,
    ConfigError,
    UsageError,
)
from tests.fixtures.ports import free_port
from tests.super_dataset.stored_batches import bound_dataset, images, ref_of, stored, tombstone

RECIPE = Recipe.image(resize=8, crop=8)


def test_an_unreachable_list_of_bad_samples_is_replaced_by_a_local_one(tmp_path):
    kept = BadSamples("file:///x")
    message, number = pickle.dumps(kept), kept.__reduce__()[1][1]
    with (tmp_path / "another").open("wb") as another:
        kept.close()
        os.dup2(another.fileno(), number)  # a file that the trainer opened since
        code = (
            "import pickle, sys\nfrom types import SimpleNamespace\n"
            "kept = pickle.load(sys.stdin.buffer)\n"
            "kept.add(SimpleNamespace(name_of=str), {0: 'broken'}, 'skipped')\n"
            "print([one.reason for one in kept.listed()])"
        )
        command = [sys.executable, "-c", code]
        child = subprocess.run(command, input=message, capture_output=True, timeout=60, check=True)
        os.close(number)
    assert child.stdout.decode().strip() == "['broken']"
    assert (tmp_path / "another").read_bytes() == b""


def test_bad_samples_raise_by_default(valkey):
    ref = stored(valkey, [*images(2), tombstone("train/0-2.jpg")])
    with pytest.raises(BadSampleError, match=r"train/0-2\.jpg"):
        bound_dataset()[ref]
    everything = stored(valkey, [tombstone("k")] * 2, position=9)
    for policy in ("skip", "replace"):
        with pytest.raises(BadSampleError, match="not read a good sample"):
            bound_dataset(on_bad_sample=policy)[everything]


@pytest.mark.parametrize("index", [[1, 2], [], "train", None, True, 1.0, torch.tensor([3, 4]), (0, 1)])
def test_other_indices_are_rejected_with_an_example(index):
    with pytest.raises(UsageError) as caught:
        bound_dataset()[index]
    for line in ("SuperDataset(source, recipe)", "SuperSampler(dataset", "sampler=sampler, batch_size=None"):
        assert line in str(caught.value)


def test_a_missing_batch_size_none_is_reported():
    refs = [ref_of(2, "unix:///c"), ref_of(2, "unix:///c")]
    match = r"a list of BatchRefs.*Pass batch_size=None"
    with pytest.raises(UsageError, match=match):
        bound_dataset()[refs]
    for arguments in ({"sampler": refs}, {"batch_sampler": refs}, {"sampler": refs, "batch_size": 2}):
        with pytest.raises(UsageError, match=match):
            next(iter(DataLoader(bound_dataset(), **arguments)))


WRONG = [("read_timeout", value) for value in (0, -1.0, float("inf"), float("nan"), "120", True)]
WRONG += [
    ("source", "ftp://bucket"),
    ("source", ""),
    ("source", b"/bytes"),
    ("source", "/caf\udce9"),
    ("recipe", "resize"),
    ("key_list", "gopher://host/keys.csv"),
]
WRONG += [("transform", 3), ("on_bad_sample", "ignore"), ("on_bad_sample", None), ("verify", "none")]
WRONG += [("in_flight_bytes", 0), ("in_flight_bytes", 1.5)]
WRONG += [("alias", value) for value in ("", "my/pets", "-pets", "größe", "p" * 65, 5)]
WRONG += [("versions", value) for value in ("", "dates", 5)] + [("coordinator", value) for value in ("", 5)]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_invalid_arguments_are_named(name, value):
    with pytest.raises(ConfigError, match=name):
        SuperDataset(**{"source": "s3://bucket/train", "recipe": RECIPE, name: value})


def test_a_ping_reports_an_unreachable_or_protected_cache(valkey, monkeypatch):
    dataset = SuperDataset("s3://bucket/train", RECIPE)
    dataset.ping_cache(valkey.unix_url)
    dataset.ping_cache(valkey.url)
    with valkey.client() as client:
        assert len(client.client_list()) == 1  # nothing stays open
        client.config_set("requirepass", "geheim")
    with pytest.raises(CacheError, match=r"NOAUTH.*SUPER_CACHE_PASSWORD"):
        dataset.ping_cache(valkey.url)
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "geheim")
    dataset.ping_cache(valkey.url)
    nobody = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(CacheUnreachableError, match=nobody):
        dataset.ping_cache(nobody)
    with pytest.raises(ConfigError, match="cache address"):
        dataset.ping_cache("http://host")


def test_one_trailing_slash_of_a_url_is_dropped():
    for text, url in {
        "s3://bucket/": "s3://bucket",
        "S3://bucket/a b/c/": "s3://bucket/a b/c",
        "s3://bucket/a//": "s3://bucket/a//",  # a different prefix
        "s3://bucket//": "s3://bucket//",
    }.items():
        assert normalise_url(text, name="source") == url


def test_paths_become_file_urls(tmp_path, monkeypatch):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    url = f"file://{os.path.realpath(real)}"
    for form in [
        "real",
        "link",
        Path("real/"),
        str(real),
        f"file://{tmp_path}/link/",
        "~/real",
        "real/../real",
    ]:
        assert normalise_url(form, name="source") == url


def test_a_batch_of_another_dataset_is_rejected(valkey):
    ref = stored(valkey, images(1))
    other = replace(ref, dataset_id=b"x" * 16)
    with pytest.raises(UsageError, match=other.dataset_id.hex()):
        bound_dataset()[other]
    with pytest.raises(UsageError, match="not bound yet"):
        SuperDataset("s3://bucket/train", RECIPE)[ref]
