"""Other clouds than S3 give the same samples as a directory, page by page, or report the failure."""

import sys

import pytest

from superdl.coordinator.catalog import list_source
from superdl.super_dataset import Recipe
from superdl.super_wire.errors import ConfigError, SourceError, SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.objects import Span
from superdl.super_wire.request import Outcome
from tests.fixtures.clouds import cloud_server, etag_of
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, epoch_of
from tests.integration.fetching import LIMIT, assert_spans, failure, read, unread

__all__ = ["cloud_server"]

pytest.importorskip("obstore")
BUCKETS = ("gs://pets", "az://pets")
each_bucket = pytest.mark.parametrize("bucket", BUCKETS)


@each_bucket
def test_a_whole_epoch(cloud_server, bucket, tmp_path):
    images = write_images(tmp_path / "photos", 8)
    for path in images.glob("*/*.*"):
        cloud_server.objects[f"train/{path.relative_to(images)}"] = path.read_bytes()
    cloud_server.objects["training/x/no.jpg"] = b"beside the prefix"
    with Stack() as stack:
        delivered = epoch_of(f"{bucket}/train", Recipe.image(resize=SIDE, crop=SIDE), stack.address)
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))


@each_bucket
def test_pages_and_odd_keys_are_listed_and_read_whole_and_in_spans(cloud_server, bucket):
    keys = [f"t/{name}/{n}.jpg" for name in ("a b", "ö#%20+?&", "c") for n in range(7)]
    cloud_server.objects = {key: f"bytes of {key}".encode() for key in [*keys, "t/loose.jpg", "u/x/1.jpg"]}
    cloud_server.objects |= dict.fromkeys(("t/none/a.txt", "t/c/._1.jpg", "t/.h/1.jpg"), b"x")
    catalog = list_source(f"{bucket}/t")
    assert [key.decode() for key in catalog.keys] == sorted(keys, key=str.encode)
    assert catalog.classes == ("a b", "c", "ö#%20+?&")
    left_out = [words.rpartition(": ")[2] for words in catalog.warnings]
    assert left_out == ["t/.h/1.jpg, t/c/._1.jpg", "t/loose.jpg", "none"]
    for key, version in zip(catalog.keys, catalog.versions, strict=True):
        body = cloud_server.objects[key.decode()]
        place = bucket, key.decode(), version.decode()
        assert version.decode() == etag_of(body)
        assert read(*place) == body
        assert_spans(place, body)


@each_bucket
def test_what_a_function_cannot_read_has_an_outcome_and_a_remedy(cloud_server, bucket):
    cloud_server.objects = {"1.jpg": b"one", "big": b"x" * (LIMIT + 1)}
    variable = "GOOGLE_APPLICATION" if bucket.startswith("gs") else "AZURE_STORAGE_ACCOUNT_KEY"
    one = etag_of(b"one")

    def refused(*place, statuses=()):
        cloud_server.statuses[:] = statuses
        cloud_server.asked.clear()
        return failure(bucket, *place, reserve=unread)

    assert refused("gone.jpg", one)[0] is Outcome.MISSING
    assert refused("1.jpg", "another")[0] is Outcome.CHANGED
    assert refused("1.jpg", one, Span(3, 9))[0] is Outcome.CHANGED
    assert refused("big", etag_of(cloud_server.objects["big"]))[0] is Outcome.TOMBSTONE
    for status in (401, 403):
        outcome, why = refused("1.jpg", one, statuses=[status])
        assert outcome is Outcome.REFUSED
        assert str(status) in why
        assert variable in why
    for status in (429, 503):
        outcome, why = refused("1.jpg", one, statuses=[status] * 9)
        assert (outcome, len(cloud_server.asked)) == (Outcome.UNAVAILABLE, 3)
        assert str(status) in why
        cloud_server.statuses[:] = [status, status]  # a transient fault
        assert read(bucket, "1.jpg", one) == b"one"


@each_bucket
def test_what_the_coordinator_cannot_list_is_told(cloud_server, bucket, monkeypatch):
    cloud_server.objects = {"t/a/1.jpg": b"one", "l.csv": b"key,label\na/1.jpg,5\n"}
    assert list_source(f"{bucket}/t", f"{bucket}/l.csv").labels.tolist() == [5]
    nowhere = bucket.replace("pets", "none")
    with pytest.raises(SourceNotFoundError, match=f"{nowhere}.*404"):
        list_source(nowhere)
    with pytest.raises(SourceNotFoundError, match=f"key_list {bucket}/m.csv"):
        list_source(bucket, f"{bucket}/m.csv")
    cloud_server.statuses[:] = [403]
    with pytest.raises(SourceForbiddenError, match=f"may not read {bucket}.*403.*for public"):
        list_source(f"{bucket}/t")
    cloud_server.statuses[:] = [503] * 9
    with pytest.raises(SourceError, match=f"{bucket}/t.* 3 attempts .*503"):
        list_source(f"{bucket}/t")
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://not-met-before")
    monkeypatch.setenv("AZURE_ENDPOINT", "http://not-met-before")
    for ask in (list_source, lambda url: read(url, "1.jpg", "x")):
        with pytest.raises(ConfigError, match=rf"{bucket}.*superdl\[clouds\]"):
            ask(bucket)
