"""Read reports survive the stream, and entries that are none of ours give a ValueError."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.stream_entries import REPORT_STREAM_MAXLEN, ReadReport

COUNT = st.integers(0, 2**63 - 1)
OFFSETS = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)
REPORTS = st.builds(ReadReport, *[COUNT] * 12, OFFSETS, OFFSETS)
REPORT = ReadReport(1, 2, 3, 256, 250, 60, 70, 8, 80, 1, 0, 9, (5, 0, 255), (5,))


@given(REPORTS)
def test_round_trip(report):
    entry = report.to_fields()
    assert all(isinstance(name, bytes) and isinstance(value, bytes) for name, value in entry.items())
    assert ReadReport.from_fields(entry) == report


def test_golden_fields():
    """Readers and coordinators of one protocol version understand each other."""
    assert REPORT.to_fields() == {
        b"r": b"1 2 3 256 250 60 70 8 80 1 0 9",
        b"m": b"\5\0\0\0\0\0\0\0\xff\0\0\0",
        b"c": b"\5\0\0\0",
    }


def test_a_report_is_small():
    whole_batch = replace(REPORT, missed=tuple(range(256)), corrupt=())
    assert sum(len(name) + len(value) for name, value in whole_batch.to_fields().items()) < 1100
    assert len(replace(REPORT, missed=(), corrupt=()).to_fields()) == 1
    assert REPORT_STREAM_MAXLEN > 0


@pytest.mark.parametrize("place", range(12))
@pytest.mark.parametrize(
    "value", [b"", b"x", b"-1", b"1.5", b"True", b"9223372036854775808", b"1" * 5000, b"\xff", b"1 1"]
)
def test_bad_numbers(place, value):
    entry = REPORT.to_fields()
    numbers = entry[b"r"].split(b" ")
    numbers[place] = value
    with pytest.raises(ValueError, match=r"has 12 numbers|lie from 0|invalid literal|has \d+ bytes"):
        ReadReport.from_fields(entry | {b"r": b" ".join(numbers)})


@pytest.mark.parametrize("name", [b"m", b"c"])
def test_bad_offsets(name):
    with pytest.raises(ValueError, match="multiple of element size"):
        ReadReport.from_fields(REPORT.to_fields() | {name: b"123"})


@pytest.mark.parametrize(("name", "size"), [(b"r", 257), (b"m", 2**22 + 4), (b"c", 2**22 + 4)])
def test_a_field_that_no_batch_needs_is_refused(name, size):
    with pytest.raises(ValueError, match=f"has {size} bytes"):
        ReadReport.from_fields(REPORT.to_fields() | {name: bytes(size)})
