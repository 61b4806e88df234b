"""Names in the cache are ASCII, begin as an ACL expects, and none looks like a cluster hash tag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert cache_keys(sample + sample) == [key, key]


def test_streams():
    assert report_stream("job-1") == b"super:n1:{reports}:job-1"
    assert checked_outcome_stream(outcome_stream("0a" * 16)) == b"super:o1:" + b"0a" * 16


@pytest.mark.parametrize(
    "name",
    [
        "", "super:lock", "super:o1:", f"super:r1:{'0a' * 16}", f"super:o1:{'0a' * 17}",
        f"super:o1:{'0A' * 16}", f"super:o1:{'0a' * 16}\n", f"super:o1:{{{'0a' * 15}}}",
        f"xsuper:o1:{'0a' * 16}",
    ],
)  # fmt: skip
def test_an_outcome_goes_nowhere_else(name):
    with pytest.raises(ConfigError, match="answer_to is super:o1: and 32 hex digits"):
        checked_outcome_stream(name)
