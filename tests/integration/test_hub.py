"""Hugging Face Hub datasets give the same samples as a directory, each file in its pinned version."""

import logging

import pyarrow as pa
import pytest
from pyarrow import parquet

from superdl.coordinator.catalog import list_source
from superdl.main import main
from superdl.super_dataset import Recipe
from superdl.super_wire.errors import ConfigError, SourceError, SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.objects import ObjectError, Span
from superdl.super_wire.objects.hub import Dataset
from superdl.super_wire.request import Outcome
from tests.fixtures.images import CLASSES, SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.fixtures.web import TOKEN, hub_server, oid_of
from tests.integration.delivery import assert_exactly_once, epoch_of
from tests.integration.fetching import LIMIT, assert_spans, failure, read, unread

__all__ = ["hub_server"]

HUB = "hf://datasets/us/pets"
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
LARGE = b"large" * 100


def ids_of(catalog):
    """Sample id by key."""
    ids = catalog.sample_ids(RECIPE.digest)
    return {key.decode(): ids[ID_BYTES * at : ID_BYTES * (at + 1)] for at, key in enumerate(catalog.keys)}


@pytest.mark.slow
def test_a_whole_epoch_of_class_folders_in_a_private_dataset(hub_server, tmp_path):
    images = write_images(tmp_path / "photos", 8)
    files = {f"train/{path.relative_to(images)}": path.read_bytes() for path in images.glob("*/*.*")}
    hub_server.commit({"README.md": b"pets", "training/x/1.jpg": b"beside", "train/notes.txt": b"-", **files})
    hub_server.refusal = 401, "RepoNotFound"
    with Stack(environment={"SUPER_LOG_LEVEL": "DEBUG"}) as stack:
        delivered = epoch_of(f"{HUB}/train", RECIPE, stack.address)
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
        log = stack.log.read_text()
    assert TOKEN not in log
    assert "signature=" not in log
    assert hub_server.counts() == {"revision": 1, "tree": 5, "resolve": 8}


def test_an_epoch_of_parquet_asks_the_hub_once_for_each_file(hub_server, tmp_path, capsys):
    images = write_images(tmp_path / "photos", 40)
    paths = sorted(images.glob("*/*.jpg"))
    files = {}
    for number in range(2):
        rows = [
            {
                "image": {"bytes": path.read_bytes(), "path": path.name},
                "label": CLASSES.index(path.parent.name),
            }
            for path in paths[number::2]
        ]
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pylist(rows), sink, row_group_size=5)
        files[f"data/train-0000{number}.parquet"] = sink.getvalue().to_pybytes()
    commit = hub_server.commit(files, "refs/convert/parquet")
    bucket, key_list = f"{HUB}@refs/convert/parquet", str(tmp_path / "keys.jsonl")
    assert main(["index", f"{bucket}/data", "-o", key_list, "--image-field", "image.bytes"]) == 0
    indexed = hub_server.counts()["resolve"]
    assert indexed == len(files)
    with Stack(environment={"SUPER_FETCH_THREADS": "1"}) as stack:
        delivered = epoch_of(f"{bucket}/data", RECIPE, stack.address, batch_size=8, key_list=key_list)
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    # The function resolves each file once; footers and row groups come from the CDN.
    assert hub_server.counts()["resolve"] - indexed == len(files)
    assert len(hub_server.fetched) > 2 * len(files)
    assert all(commit in line for line in hub_server.asked if "/resolve/" in line)
    assert "refs%2Fconvert%2Fparquet" in hub_server.asked[0]


def test_files_keep_their_ids_over_commits_and_none_is_taken_for_another(hub_server):
    files = {"train/a/1.jpg": b"one", "train/a/2.jpg": LARGE, "train/b/3.jpg": b"three"}
    first = hub_server.commit(files)
    before = list_source(f"{HUB}/train")
    assert before.bucket == f"{HUB}@{first}"
    assert [version.decode() for version in before.versions] == [oid_of(body) for body in files.values()]
    hub_server.commit({**files, "README.md": b"more words"})
    assert list_source(f"{HUB}/train").fingerprint == before.fingerprint
    second = hub_server.commit({**files, "train/a/2.jpg": LARGE + b"!"})
    after = list_source(f"{HUB}/train")
    old, new = ids_of(before), ids_of(after)
    assert [key for key in files if old[key] != new[key]] == ["train/a/2.jpg"]
    place = "train/a/2.jpg", oid_of(LARGE)
    assert read(before.bucket, *place) == LARGE  # at the listed commit
    for bucket in (after.bucket, HUB):
        outcome, why = failure(bucket, *place)
        assert outcome is Outcome.CHANGED
        assert "the catalog lists" in why
    hub_server.branches["v1"] = first
    for revision, commit in (("v1", first), (first, first), ("main", second)):
        assert list_source(f"{HUB}@{revision}/train").bucket == f"{HUB}@{commit}"
    assert list_source("hf://datasets/us/cats/train").id_bucket == "hf://datasets/us/cats"  # it was renamed


def test_a_file_that_changes_while_it_is_read_is_no_other_version(hub_server):
    hub_server.commit({"1.jpg": b"one"})
    dataset = Dataset(HUB, hub_server.url, TOKEN)
    assert dataset.head("1.jpg") == (oid_of(b"one"), 3)  # of a branch, which functions never get
    hub_server.commit({"1.jpg": b"two"})
    with pytest.raises(ObjectError, match="that the Hub reported"):
        dataset.read("1.jpg", version=oid_of(b"one"))


@pytest.mark.parametrize("body", [b"small", LARGE])
def test_files_are_read_whole_and_in_spans_at_the_hub_and_at_its_cdn(hub_server, body):
    key = "t/ö#%20+?& a.jpg"
    bucket = f"{HUB}@{hub_server.commit({key: body})}"
    assert read(bucket, key, oid_of(body)) == body
    assert_spans((bucket, key, oid_of(body)), body)
    hub_server.signature = "second"  # cached addresses expire
    assert read(bucket, key, oid_of(body)) == body


def test_what_a_function_cannot_read_has_an_outcome_and_a_remedy(hub_server, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    bucket = f"{HUB}@{hub_server.commit({'1.jpg': b'one', 'big': b'x' * (LIMIT + 1), '2.jpg': LARGE})}"
    one = oid_of(b"one")

    def refused(*place):
        outcome, why = failure(bucket, *place, reserve=unread)
        assert TOKEN not in why
        return outcome, why

    assert refused("gone.jpg", one)[0] is Outcome.MISSING
    assert refused("1.jpg", oid_of(b"another"))[0] is Outcome.CHANGED
    assert refused("1.jpg", one, Span(3, 9))[0] is Outcome.CHANGED
    assert refused("big", oid_of(b"x" * (LIMIT + 1)))[0] is Outcome.TOMBSTONE
    assert refused("../../../../api/whoami-v2", one) == (
        Outcome.REFUSED,
        "the key is not a path, because it has an empty part, '.' or '..'",
    )
    for status in (429, 503):
        hub_server.asked.clear()
        hub_server.statuses[:] = [status] * 3
        outcome, why = refused("0.jpg", one)
        assert (outcome, len(hub_server.asked)) == (Outcome.UNAVAILABLE, 3)
        assert str(status) in why
        hub_server.statuses[:] = [status] * 2  # a transient fault
        assert refused("0.jpg", one)[0] is Outcome.MISSING
    hub_server.end_cdn()
    outcome, why = refused("2.jpg", oid_of(LARGE))
    assert outcome is Outcome.UNAVAILABLE
    assert hub_server.cdn.removeprefix("http://") in why
    assert "signature=" not in why
    monkeypatch.setenv("HF_TOKEN", "hf_ofSomebodyElse")
    for refusal, remedy in (
        ((403, "GatedRepo"), "accept the conditions at"),
        ((401, "RepoNotFound"), "set HF_TOKEN"),
    ):
        hub_server.refusal = refusal
        outcome, why = refused("1.jpg", one)
        assert outcome is Outcome.REFUSED
        assert f"{refusal[0]}" in why
        assert f"{refusal[1]} Ask nicely.\\x1b[2J" in why
        assert remedy in why
    assert "hf_" not in caplog.text


def test_what_the_coordinator_cannot_list_is_told(hub_server, monkeypatch):
    hub_server.commit(
        {"t/a/1.jpg": b"one", "l.csv": b"key,label\na/1.jpg,5\n", "m.csv": b"key,label\nb/1.jpg,5\n"}
    )
    assert list_source(f"{HUB}/t", f"{HUB}/l.csv").labels.tolist() == [5]
    with pytest.raises(SourceError, match="1 of the 1 keys"):
        list_source(f"{HUB}/t", f"{HUB}/m.csv")
    for url in ("hf://datasets/us/none", f"{HUB}@none", f"{HUB}/none"):
        with pytest.raises(SourceNotFoundError, match="hf://datasets/us/.*none.*404.*NotFound"):
            list_source(url)
    hub_server.refusal = 403, "GatedRepo"
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SourceForbiddenError, match=f"may not read {HUB}.*403.*accept the conditions"):
        list_source(f"{HUB}/t")
    hub_server.statuses[:] = [503] * 3
    with pytest.raises(SourceError, match=f"{HUB}/t.* 3 attempts .*503"):
        list_source(f"{HUB}/t")
    monkeypatch.setenv("HF_TOKEN", "hf_one\nhf_two")
    with pytest.raises(ConfigError, match="HF_TOKEN must consist of printable ASCII") as caught:
        list_source(f"{HUB}/t")
    assert "hf_" not in str(caught.value)


def test_tokens_and_bytes_go_by_tls_alone_beyond_this_machine(hub_server, monkeypatch):
    bucket = f"{HUB}@{hub_server.commit({'2.jpg': LARGE})}"
    hub_server.cdn = "http://cdn.example.org"
    outcome, why = failure(bucket, "2.jpg", oid_of(LARGE))
    assert outcome is Outcome.REFUSED
    assert "http://cdn.example.org, which does not use TLS" in why
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example.org")
    with pytest.raises(ConfigError, match="HF_ENDPOINT must be https"):
        list_source(HUB)
    dataset = Dataset(HUB, "https://huggingface.co", TOKEN)
    assert dataset._check_redirect("https://cdn.example.org/x?signature=y")
    assert not dataset._is_on_hub("http://huggingface.co/x"), "it would get the token"
    for url in ("http://cdn.example.org/x", "http://127.0.0.1/x", "ftp://127.0.0.1/x", "https://[::1/x"):
        with pytest.raises(ObjectError):
            dataset._check_redirect(url)
