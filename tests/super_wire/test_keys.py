"""Names in the cache are ASCII, begin as an ACL expects, and none looks like a cluster hash tag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire import keys
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.keys import (
    cache_key,
    cache_keys,
    checked_outcome_stream,
    outcome_stream,
    report_stream,
)

ID = st.binary(min_size=16, max_size=16)


@given(ID)
def test_a_cache_key_is_the_prefix_and_the_id_in_hex(sample):
    key = cache_key(sample)
    assert key.decode("ascii") == f"super:r1:{sample.hex()}"
    assert bytes.fromhex(key.removeprefix(b"super:r1:").decode()) == sample
    assert not set(b"{}") & set(key)


@given(st.lists(ID, max_size=9))
def test_many_are_the_keys_of_each(samples):
    assert cache_keys(b"".join(samples)) == [cache_key(sample) for sample in samples]


def test_streams_and_the_rest():
    assert report_stream("job-1") == b"super:n1:{reports}:job-1"
    assert checked_outcome_stream(outcome_stream("0a" * 16)) == b"super:o1:" + b"0a" * 16


@pytest.mark.parametrize(
    "name",
    [
        "",
        "super:lock",
        "super:o1:",
        f"super:r1:{'0a' * 16}",
        f"super:o1:{'0a' * 17}",
        f"super:o1:{'0A' * 16}",
        f"super:o1:{'0a' * 16}\n",
        f"super:o1:{{{'0a' * 15}}}",
        f"xsuper:o1:{'0a' * 16}",
    ],
)
def test_an_outcome_goes_nowhere_else(name):
    with pytest.raises(ConfigError, match="answer_to is super:o1: and 32 hex digits"):
        checked_outcome_stream(name)


@pytest.mark.parametrize(
    "name", ["RECORD_PREFIX", "REPORT_PREFIX", "LOCK_KEY", "FINGERPRINT_KEY", "SPENT_KEY"]
)
def test_all_names_begin_alike(name):
    value = getattr(keys, name)
    assert value.startswith(b"super:")
    assert value.isascii()
