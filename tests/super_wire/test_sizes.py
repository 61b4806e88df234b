"""Sizes as settings write them: one parser for trainers, coordinators and launchers."""

from __future__ import annotations

import pytest

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.redaction import counted
from superdl.super_wire.user_text import parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("4gb", 4 * 2**30),
        ("4G", 4 * 2**30),
        (" 512 MB ", 512 * 2**20),
        ("1024kb", 2**20),
        ("1.5gb", 3 * 2**29),
        ("2tb", 2 * 2**40),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes_are_read_exactly(text, size_bytes):
    assert parse_bytes(text, "cache_bytes") == size_bytes


@pytest.mark.parametrize(
    "text", ["", "gb", "-1", "1e9", "4xb", "4 g b", "1,5gb", "٤gb", "nan", "9" * 5000, "4", "1023kb"]
)
def test_what_is_no_size_is_refused_and_named(text):
    with pytest.raises(ConfigError, match="^cache_bytes is a size of at least 1mb, such as 4gb"):
        parse_bytes(text, "cache_bytes")


def test_one_thing_is_not_several():
    words = [counted(count, "sample") for count in (0, 1, 2, 1200)]
    assert words == ["0 samples", "1 sample", "2 samples", "1,200 samples"]
