"""A source that is throttled or away for a while holds training up; it ends nothing, and is named."""

import threading
import time

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import ReadTimeoutError
from tests.fixtures.bad_front import BadFront
from tests.fixtures.images import CLASSES, SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.fixture
def front(object_store, monkeypatch):
    """S3, which answers each GET of an image as it is told."""
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
    """So many images in a bucket."""
    return write_images(store.directory / "photos" / "train", count)


def loader(stack, batch_size, **options):
    dataset = SuperDataset("s3://photos/train", RECIPE, **options)
    sampler = SuperSampler(dataset, batch_size=batch_size, shuffle=False, coordinator=stack.address)
    return DataLoader(dataset, sampler=sampler, batch_size=None)


@pytest.mark.parametrize(
    ("fault", "count", "outage_s"),
    [
        ("throttled", 2, 5),
        *(
            pytest.param("throttled", *size, marks=pytest.mark.slow)
            for size in [(30, 20), (300, 20), (30, 60)]
        ),
        pytest.param("broken off", 30, 5, marks=pytest.mark.slow),
    ],
)
def test_a_throttled_bucket_holds_training_up_and_costs_no_sample(
    object_store, front, stack, fault, count, outage_s
):
    expected = expected_pixels(photos(object_store, count), resize=SIDE, crop=SIDE)
    front.fault = fault
    over = threading.Timer(outage_s, setattr, (front, "fault", ""))
    over.start()
    began_s = time.monotonic()
    assert_exactly_once(collect(loader(stack, 2)), expected)
    assert time.monotonic() - began_s >= outage_s
    assert front.spoilt
    if fault == "throttled":
        assert "S3 answered 503 SlowDown" in stack.log.read_text()


def test_who_waits_no_longer_is_told_the_cause(object_store, front, stack):
    photos(object_store, 4)
    front.fault = "throttled"
    with pytest.raises(ReadTimeoutError, match=r"S3 answered 503 SlowDown: .* \(for \d+ s\)"):
        collect(loader(stack, 2, read_timeout=4.0))


def test_what_is_not_throttled_keeps_flowing(object_store, front, stack):
    expected = expected_pixels(photos(object_store, 200), resize=SIDE, crop=SIDE)
    front.of, front.fault = f"/{CLASSES[-1]}/", "throttled"  # the last of the plan; look-ahead comes to it
    delivered = []
    for number, (images, labels) in enumerate(loader(stack, 10), start=1):
        delivered += collect([(images, labels)])
        if number == 15:  # all others are here
            front.fault = ""
    assert front.spoilt
    assert_exactly_once(delivered, expected)


@pytest.mark.slow
def test_a_listing_waits_for_a_throttled_bucket(object_store, front, stack):
    expected = expected_pixels(photos(object_store, 8), resize=SIDE, crop=SIDE)
    front.of, front.fault = "list-type", "throttled"
    over = threading.Timer(8.0, setattr, (front, "fault", ""))
    over.start()
    assert_exactly_once(collect(loader(stack, 2)), expected)
    assert front.spoilt > 3


@pytest.mark.slow
def test_readers_wait_while_a_restarted_coordinator_lists_longer_than_their_timeout(
    object_store, front, stack
):
    expected = expected_pixels(photos(object_store, 300), resize=SIDE, crop=SIDE)
    delivered = []
    for number, batch in enumerate(loader(stack, 2, read_timeout=3.0)):
        if number == 2:
            front.of, front.fault = "list-type", "throttled"
            stack.kill_coordinator()
            stack.valkey.client().flushall()
            stack.start_coordinator()
            over = threading.Timer(12.0, setattr, (front, "fault", ""))
            over.start()
        delivered += collect([batch])
    assert front.spoilt > 3
    assert_exactly_once(delivered, expected)
