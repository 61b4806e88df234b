"""Ways side by side: others by hand, bigger machines, and what docs/cost.md says of conversions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from superdl.coordinator.executors.price_table import load_prices
from superdl.cost import bills
from superdl.cost.choices import without_super
from superdl.cost.model import MONTH_HOURS
from superdl.cost.scenario import PRESETS

PRICES = load_prices()
IMAGENET = PRESETS["imagenet"]
FAST = replace(IMAGENET, images_per_s=2000.0, machine="g5.xlarge")
EIGHT = replace(IMAGENET, jobs=8)
SAMPLES = IMAGENET.samples
GET, PUT = 4e-7, 5e-6
SOURCE_GB, RAW_GB = SAMPLES * 110_000 / 1e9, SAMPLES * 150_592 / 1e9
HOST_S = 8 * 0.5 * 3600  # a c6i.2xlarge's CPU seconds of the core measured, in an hour


def bill(tag, scenario=IMAGENET, **changes):
    return without_super(tag, replace(scenario, **changes), PRICES)


def test_shards_of_a_hundred_images_need_a_hundredth_of_the_gets():
    found = bill("WebDataset from S3", EIGHT)
    assert found.month.gets == pytest.approx(8 * 90 * SAMPLES / 100 * GET)
    trainers = 8 * 90 * SAMPLES / 427 / 3600 * 0.526
    assert found.month.trainer + found.month.gets == pytest.approx(trainers + 3.69, abs=0.01)
    assert found.month.trainer + found.month.gets == pytest.approx(319, abs=1)
    fetching = SAMPLES * (2.75 - 1.91) * 1e-3 / HOST_S * 0.34
    assert found.month.conversion == pytest.approx(SAMPLES * GET + SAMPLES / 100 * PUT + fetching)
    assert found.month.store == pytest.approx(SOURCE_GB * 0.023)
    assert found.first.conversion == found.month.conversion, "once, before all else"
    assert found.later.conversion == 0


def test_pixels_are_decoded_once_and_take_more_room():
    found = bill("LitData raw", EIGHT, machine="g5.xlarge", images_per_s=2000.0)
    assert found.images_per_s == 2000.0
    requests = RAW_GB * 1e3 / 64
    decoding = SAMPLES * 2.75e-3 / HOST_S * 0.34
    assert found.month.conversion == pytest.approx(SAMPLES * GET + requests * PUT + decoding)
    assert found.month.gets == pytest.approx(8 * 90 * requests * GET)
    assert found.month.store == pytest.approx(RAW_GB * 0.023)


def test_s3_express_bills_bytes_beside_requests():
    found = bill("decoding from S3 Express")
    assert found.later.gets == pytest.approx(SAMPLES * 3e-8 + SOURCE_GB * 0.0006)
    copying = SAMPLES * (2.75 - 1.91) * 1e-3 / HOST_S * 0.34
    written = SAMPLES * (GET + 1.13e-6) + SOURCE_GB * 0.0032
    assert found.month.conversion == pytest.approx(written + copying)
    assert found.month.store == pytest.approx(SOURCE_GB * 0.11)


def test_a_volume_is_as_fast_as_it_must_be_and_paid_for():
    slow = bill("decoding from gp3")
    assert slow.month.disk == pytest.approx(slow.month.hours * SOURCE_GB * 0.08 / MONTH_HOURS)
    fast = bill("decoding from gp3", machine="g5.4xlarge", images_per_s=2000.0)
    mb_per_s = 2000 * 0.11
    assert fast.images_per_s == 2000.0
    per_hour = (SOURCE_GB * 0.08 + (mb_per_s - 125) * 0.04) / MONTH_HOURS
    assert fast.month.disk == pytest.approx(fast.month.hours * per_hour)
    assert fast.first.hours - fast.later.hours == pytest.approx(SOURCE_GB * 1e3 / mb_per_s / 3600), "copying"
    bound = bill("decoding from gp3", machine="g5.4xlarge", images_per_s=2000.0, disk_mb_per_s=110.0)
    assert (bound.bound, bound.images_per_s) == ("disk", pytest.approx(1000.0))


def test_a_copy_on_nvme_is_free_where_it_fits():
    assert bill("decoding from NVMe") is None, "141 GB do not fit on 125"
    found = bill("decoding from NVMe", EIGHT, machine="g5.2xlarge", images_per_s=2000.0)
    assert found.bound == "trainer's CPU"
    assert found.month.disk == found.month.store == found.month.conversion == 0
    assert found.month.gets == pytest.approx(8 * SAMPLES * GET)
    assert found.month.usd < 176, (
        "issue: some $175 for local decoding that does not quite reach the GPU's pace"
    )
    assert bill("FFCV raw on NVMe", machine="g5.xlarge").month.store == pytest.approx(RAW_GB * 0.023)
    assert bill("FFCV raw on NVMe") is None


def test_random_crops_need_whole_images():
    random = replace(IMAGENET, random=True, machine="g5.xlarge")
    tags = {one.tag for one in bills(random, PRICES)}
    assert {tag for tag in tags if "raw" in tag or "store" in tag} == set()
    assert {"WebDataset from S3", "decoding from NVMe"} <= tags


def test_a_bigger_machine_has_a_row_where_it_is_cheaper_though_it_be_slower_than_the_gpu():
    found = {bill.loader: bill for bill in bills(replace(FAST, jobs=8), PRICES)}
    bigger = found["g5.2xlarge, decoding from gp3"]
    assert (bigger.bound, bigger.images_per_s) == ("trainer's CPU", pytest.approx(1832, abs=1))
    assert bigger.month.usd < found["g5.xlarge, decoding from gp3"].month.usd
    fastest = next(
        bill for bill in bills(replace(FAST, jobs=8, machine="g5.4xlarge"), PRICES) if "gp3" in bill.tag
    )
    assert fastest.images_per_s == 2000
    assert bigger.month.usd < fastest.month.usd
    assert not any("2xlarge" in loader and "S3" in loader for loader in found), "4xlarge is cheaper there"


def test_every_way_that_a_user_has_is_there():
    kinds = {bill.kind for bill in bills(FAST, PRICES)}
    assert kinds == {"as they lie", "a copy", "converted", "SUPER"}
    tags = " ".join(bill.tag for bill in bills(FAST, PRICES))
    for words in ("gp3", "NVMe", "Express", "WebDataset", "LitData", "FFCV", "store in S3", "store on NVMe"):
        assert words in tags


def test_a_conversion_costs_what_the_page_says():
    found = [bill for bill in bills(IMAGENET, PRICES) if bill.kind == "converted"]
    assert all(0.59 < bill.month.conversion < 0.615 for bill in found)
    assert all(3 < bill.month.store < 4.5 for bill in found if "gp3" not in bill.tag)
