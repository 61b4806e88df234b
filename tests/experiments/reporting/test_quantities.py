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
        (q.number(-12.345), "-12.3"),
        (q.count(1, "epoch"), "1 epoch"),
        (q.count(2345), "2,345"),
        (q.seconds(0), "0 s"),
        (q.seconds(0.0853), "85.3 ms"),
        (q.seconds(59.99), "60.0 s"),
        (q.seconds(723.4), "12 min 3 s"),
        (q.seconds(3599.9), "1 h 0 min"),
        (q.seconds(7512), "2 h 5 min"),
        (q.percent(0.96123), "96.1%"),
        (q.usd(0.0009312), "$0.000931"),
        (q.share(1.0, 0.0), None),
        (q.share(1.0, 4.0), 0.25),
    ],
)
def test_quantities_are_written_for_people(shown, words):
    assert shown == words
