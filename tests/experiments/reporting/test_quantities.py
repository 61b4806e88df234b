"""Numbers for people: units, and digits that mean something."""

from __future__ import annotations

import math

import pytest

from superdl.experiments.reporting import quantities as q


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (q.number(None), "-"),
        (q.number(math.nan), "-"),
        (q.number(0), "0"),
        (q.number(1234567), "1,234,567"),
        (q.number(0.00012345), "0.000123"),
        (q.number(12.345), "12.3"),
        (q.number(-0.5), "-0.500"),
        (q.count(1, "epoch"), "1 epoch"),
        (q.count(0, "epoch"), "0 epochs"),
        (q.count(2345), "2,345"),
        (q.count(2, "class", "classes"), "2 classes"),
        (q.seconds(0), "0 s"),
        (q.seconds(0.0853), "85.3 ms"),
        (q.seconds(1.254), "1.25 s"),
        (q.seconds(59.99), "60.0 s"),
        (q.seconds(60), "1 min 0 s"),
        (q.seconds(723.4), "12 min 3 s"),
        (q.seconds(3599.9), "1 h 0 min"),
        (q.seconds(7512), "2 h 5 min"),
        (q.seconds(None), "-"),
        (q.percent(0.018), "1.8%"),
        (q.percent(0.5543), "55%"),
        (q.percent(None), "-"),
        (q.points_of(0.96123), "96.1%"),
        (q.size(999), "999 B"),
        (q.size(17_670_144), "17.7 MB"),
        (q.rate(1234.5, "images"), "1,234 images/s"),
        (q.usd(0.0009312), "0.000931 USD"),
        (q.usd(12.5), "12.5 USD"),
    ],
)
def test_quantities_are_written_for_people(shown, words):
    assert shown == words


def test_a_share_of_nothing_is_absent():
    assert q.share(1.0, 0.0) is None
    assert q.share(None, 2.0) is None
    assert q.share(1.0, 4.0) == 0.25


def test_a_column_has_the_decimals_that_its_largest_number_needs():
    assert q.aligned([36.54, 1.372, None, 0.004]) == ("36.5", "1.4", "-", "0.0")
    assert q.aligned([0.1318, 0.00677]) == ("0.132", "0.007")
    assert q.aligned([12345.6, 1.0]) == ("12,346", "1")
    assert q.aligned([0.5, 0.0]) == ("0.500", "0")
    assert q.aligned([0.0, math.nan]) == ("0", "-")
    assert q.aligned([]) == ()
