"""A source that is throttled or down for a while delays training, is reported, and ends nothing."""

import threading
import time

import pytest

from superdl.super_wire.errors import ReadTimeoutError
from tests.fixtures.bad_front import BadFront
from tests.fixtures.images import CLASSES, SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect, reading


@pytest.fixture
def front(object_store, monkeypatch):
    """An S3 front whose answer to each GET of an image the test controls."""
    bad = BadFront(object_store)
    bad.of, bad.one_in = ".jpg", 1
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", bad.url)
    yield bad
    bad.close()


@pytest.fixture
def stack(front):
    """A coordinator whose functions read through the front."""
    with Stack(arguments=("--slots", "2"), environment={"SUPER_S3_ENDPOINT_URL": front.url}) as running:
        yield running


def photos(store, count):
    """Write this many images to a bucket. Return what is expected of them."""
    images = write_images(store.directory / "photos" / "train", count)
    return expected_pixels(images, resize=SIDE, crop=SIDE)


def job(stack, batch_size=2, **options):
    return reading("s3://photos/train", stack.address, batch_size=batch_size, shuffle=False, **options)


def later(after_s, front):
    """End a fault of the front after this many seconds."""
    over = threading.Timer(after_s, setattr, (front, "fault", ""))
    over.start()


@pytest.mark.parametrize(
    ("fault", "count", "outage_s"),
    [
        ("throttled", 2, 5),
        pytest.param("throttled", 300, 60, marks=pytest.mark.slow),
        pytest.param("broken off", 30, 5, marks=pytest.mark.slow),
    ],
)
def test_a_throttled_bucket_holds_training_up_and_costs_no_sample(
    object_store, front, stack, fault, count, outage_s
):
    expected = photos(object_store, count)
    front.fault = fault
    later(outage_s, front)
    began_s = time.monotonic()
    with job(stack) as (_, loader):
        assert_exactly_once(collect(loader), expected)
    assert time.monotonic() - began_s >= outage_s
    assert front.spoilt
    if fault == "throttled":
        assert "S3 answered 503 SlowDown" in stack.log.read_text()


def test_who_waits_no_longer_is_told_the_cause(object_store, front, stack):
    photos(object_store, 4)
    front.fault = "throttled"
    told = r"S3 answered 503 SlowDown: .* \(for \d+ s\)"
    with job(stack, read_timeout=4.0) as (_, loader), pytest.raises(ReadTimeoutError, match=told):
        collect(loader)


def test_what_is_not_throttled_keeps_flowing(object_store, front, stack):
    expected = photos(object_store, 200)
    front.of, front.fault = f"/{CLASSES[-1]}/", "throttled"  # last in the plan, reached by look-ahead
    delivered = []
    with job(stack, 10) as (_, loader):
        for number, batch in enumerate(loader, start=1):
            delivered += collect([batch])
            if number == 15:  # all others have arrived
                front.fault = ""
    assert front.spoilt
    assert_exactly_once(delivered, expected)


@pytest.mark.slow
def test_a_listing_waits_for_a_throttled_bucket(object_store, front, stack):
    expected = photos(object_store, 8)
    front.of, front.fault = "list-type", "throttled"
    later(8.0, front)
    with job(stack) as (_, loader):
        assert_exactly_once(collect(loader), expected)
    assert front.spoilt > 3


@pytest.mark.slow
def test_readers_wait_while_a_restarted_coordinator_lists_longer_than_their_timeout(
    object_store, front, stack
):
    expected, delivered = photos(object_store, 300), []
    with job(stack, read_timeout=3.0) as (_, loader):
        for number, batch in enumerate(loader):
            if number == 2:
                front.of, front.fault = "list-type", "throttled"
                stack.kill_coordinator()
                stack.valkey.client().flushall()
                stack.start_coordinator()
                later(12.0, front)
            delivered += collect([batch])
    assert front.spoilt > 3
    assert_exactly_once(delivered, expected)
