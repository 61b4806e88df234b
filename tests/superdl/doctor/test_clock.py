"""What differences between clocks mean, and that no more is said than was measured."""

from __future__ import annotations

import time

import pytest

from superdl.doctor import Verdict
from superdl.doctor.aws import note_clock
from superdl.doctor.case import Clock, Seen
from superdl.doctor.clock import judge_clocks


@pytest.mark.parametrize(
    ("ahead_s", "within_s", "verdict"),
    [
        (0.2, 0.1, Verdict.GOOD),
        (8.0, 4.0, Verdict.GOOD),
        (-8.0, 1.0, Verdict.DOUBTFUL),
        (299.0, 0.1, Verdict.DOUBTFUL),
        (-400.0, 0.1, Verdict.BAD),
        (301.0, 2.0, Verdict.DOUBTFUL),
    ],
)
def test_judgement(ahead_s, within_s, verdict):
    found = judge_clocks([Clock("S3", 0.0, 0.5), Clock("the function", ahead_s, within_s)], aws=True)
    assert found.verdict is verdict
    assert "the function" in found.reason
    if verdict is not Verdict.GOOD:
        assert "the clock of the function" in found.remedy


def test_where_all_others_agree_it_is_this_machines():
    found = judge_clocks([Clock("S3", 90.0, 0.5), Clock("the cache", 90.2, 0.1)], aws=True)
    assert "set this machine's clock right" in found.remedy


def test_nobody_told():
    assert judge_clocks([], aws=True).verdict is Verdict.SKIPPED


def test_a_date_is_as_good_as_its_seconds():
    seen = Seen()
    headers = {"HTTPHeaders": {"date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())}}
    note_clock(seen, "S3", headers, time.time())
    (clock,) = seen.clocks
    assert abs(clock.ahead_s) <= clock.within_s + 0.01


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_no_date_is_no_clock(date):
    seen = Seen()
    note_clock(seen, "S3", {"HTTPHeaders": {} if date is None else {"date": date}}, time.time())
    assert not seen.clocks


def test_five_minutes_are_no_end_where_nothing_is_signed():
    clocks = [Clock("the cache", 400.0, 0.1)]
    found = judge_clocks(clocks, aws=False)
    assert found.verdict is Verdict.DOUBTFUL
    assert "AWS" not in found.reason
    assert judge_clocks(clocks, aws=True).verdict is Verdict.BAD
